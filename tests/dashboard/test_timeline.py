"""What the log of a task is turned into: a life in steps, a bar, and reasons to wait."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from retoma.core.response import Ending
from retoma.core.task import OnRestart, State
from retoma.dashboard.timeline import BAR_UNITS, Life, failure, life_of
from retoma.dashboard.waiting import Around, why_waiting
from retoma.dashboard.words import CAUSES, ERROR_ADVICE, duration, number, plain, plural, short_id, size
from retoma.errors import EngineCrashed, EngineError, EngineStalled, StoreFull
from retoma.runtime.service import Workers
from retoma.store.rows import TaskRow
from retoma.transactions import survey
from tests.support.world import World


def life(world: World, task: TaskRow) -> Life:
    turns = world.store.read(partial(survey.read_turns, task_id=task.id))
    return life_of(turns, world.task(task.id).tokens, world.clock.wall_ms())


def told(found: Life) -> list[tuple[str, int | None]]:
    return [(step.title, step.lasted_ms) for step in found.steps]


def begun(world: World, policy: OnRestart = OnRestart.RESUME) -> TaskRow:
    """Waited 1 s, loaded 2 s, running for 4 s with two tokens, the last of them 1 s ago."""
    world.accept(policy)
    world.clock.advance(1_000)
    claimed = world.claim()
    assert claimed is not None
    world.clock.advance(2_000)
    running = world.start(claimed)
    world.clock.advance(1_000)
    world.append(running)
    world.clock.advance(2_000)
    world.append(running)
    world.clock.advance(1_000)
    return running


def test_a_plain_life_has_four_steps_with_their_lengths(world: World) -> None:
    running = begun(world)
    world.finish(running)
    found = life(world, running)
    assert told(found) == [("Accepted, waiting", 1_000), ("Loading", 2_000), ("Running", 4_000), ("Completed", None)]
    assert [(stretch.kind, stretch.length_ms) for stretch in found.stretches] == [
        ("queued", 1_000),
        ("loading", 2_000),
        ("running", 4_000),
    ]
    assert found.complete
    assert found.steps[-1].sentences == ["2 tokens in all."]


def test_a_resumed_life_tells_where_it_went_on_and_how_long_nobody_was_there(world: World) -> None:
    running = begun(world)
    world.clock.advance(6_000)
    rescued = replace(world, me="instance-2").recover(running)
    assert rescued is not None
    world.clock.advance(500)
    world.start(rescued, "snapshot")
    world.clock.advance(250)
    found = life(world, running)
    assert told(found)[3:] == [("Restart", 500), ("Goes on", None)]
    gap = "The last commit before that was 7.0 s earlier."
    assert found.steps[3].sentences == [
        f"Found running: the service that worked on it ended or was paused. {gap}",
        "Policy resume: it goes on after 2 tokens, none of them lost.",
        "Taken over by instance-2.",
    ]
    assert found.steps[4].sentences == ["A snapshot was restored, and what was committed after it decoded again."]
    assert [(stretch.kind, stretch.length_ms) for stretch in found.stretches] == [
        ("queued", 1_000),
        ("loading", 2_000),
        ("running", 3_000),
        ("down", 7_000),
        ("loading", 500),
        ("running", 250),
    ]
    assert found.total_ms("loading") == 2_500


def test_a_second_restart_at_the_same_token_is_a_step_of_its_own(world: World) -> None:
    running = begun(world)
    for me in ("instance-2", "instance-3"):
        world.clock.advance(2_000)
        rescued = replace(world, me=me).recover(world.task(running.id))
        assert rescued is not None
        if me == "instance-3":
            world.start(replace(rescued), "log")
    assert [title for title, _ in told(life(world, running))[3:]] == ["Restart", "Restart", "Goes on"]
    assert life(world, running).steps[-1].sentences[0].startswith("No snapshot could be used")


def test_an_engine_of_another_kind_is_told(world: World) -> None:
    running = begun(world)
    rescued = world.recover(running)
    assert rescued is not None
    command = replace(world.start_command(rescued, "log"), exact=False)
    from retoma.transactions.start import start

    world.does(start, command)
    assert "may differ" in life(world, running).steps[-1].sentences[1]


@pytest.mark.parametrize(
    ("state", "policy", "sentence"),
    [
        (State.RUNNING, OnRestart.RETRY, "Policy retry: it begins again."),
        (State.LOADING, OnRestart.RESUME, "Policy resume: it begins again."),
        (State.QUEUED, OnRestart.RETRY, "Policy retry: it keeps its place in the queue."),
    ],
)
def test_a_restart_says_what_the_policy_did(world: World, state: State, policy: OnRestart, sentence: str) -> None:
    task = world.in_state(state, policy)
    world.clock.advance(1_000)
    world.recover(task)
    step = life(world, task).steps[-1]
    assert (step.kind, step.sentences[1]) == ("restart", sentence)
    assert step.sentences[0].startswith(f"Found {state}:")


def test_ends_are_told_with_their_reasons(world: World) -> None:
    cancelled = world.in_state(State.RUNNING)
    world.append(cancelled)
    world.cancel(cancelled.id)
    world.finish(world.task(cancelled.id), "cancelled")
    assert [title for title, _ in told(life(world, cancelled))[3:]] == ["Cancel asked for", "Cancelled"]
    assert [stretch.kind for stretch in life(world, cancelled).stretches] == []

    incomplete = begun(world)
    world.finish(incomplete, "incomplete")
    assert life(world, incomplete).steps[-1].sentences == [
        "It reached the length that it was given.",
        "2 tokens in all.",
    ]

    left = begun(world, OnRestart.FAIL)
    world.recover(left)
    end = life(world, left).steps[-1]
    assert (end.title, end.sentences[0]) == (
        "Failed",
        "The service was restarted while the response was unfinished.",
    )
    assert end.sentences[1].startswith("Its policy was to fail.")

    taken = begun(world)
    world.cancel(taken.id)
    world.recover(world.task(taken.id))
    assert life(world, taken).steps[-1].sentences[1].startswith("It was left behind")


def test_an_unknown_reason_is_told_as_it_is(world: World) -> None:
    task = begun(world)
    command = world.finish_command(task, "incomplete")
    world.finish(task, ending=Ending("incomplete", command.ending.output, command.ending.usage, "content_filter"))
    assert life(world, task).steps[-1].sentences[0] == "Reason: content_filter."
    assert failure({"code": "of_tomorrow", "message": ""}) == []
    assert failure({"code": "of_tomorrow", "message": "who knows?"}) == ["Who knows?"]


def test_every_reason_to_fail_comes_with_advice() -> None:
    of_engines = {kind.code for kind in EngineError.__subclasses__()}
    assert of_engines | {"server_restarted", StoreFull.code, "internal"} <= set(ERROR_ADVICE)
    assert {"server_restarted", EngineCrashed.code, EngineStalled.code} == set(CAUSES)


def test_a_long_life_is_told_from_where_it_can_be(world: World) -> None:
    task = world.in_state(State.QUEUED)
    for _ in range(survey.TURNS_MAX):
        world.recover(world.task(task.id))
    found = life(world, task)
    assert not found.complete
    assert len(found.steps) == survey.TURNS_MAX


def test_the_bar_is_full_and_shows_even_the_shortest_stretch(world: World) -> None:
    running = begun(world)
    world.clock.advance(10_000_000)
    stretches = life(world, running).stretches
    assert sum(stretch.width for stretch in stretches) in range(BAR_UNITS - 3, BAR_UNITS + 4)
    assert min(stretch.width for stretch in stretches) >= 5
    assert life_of([], 0, 0).stretches == []


HERE = Workers(total=2, paused=False, models=None)


@pytest.mark.parametrize(
    ("around", "why"),
    [
        (Around(HERE, 2, 0, None), "Both workers here are busy."),
        (Around(HERE, 1, 0, None), "A worker is free and will take it in a moment."),
        (Around(Workers(1, paused=False, models=None), 1, 0, None), "The only worker here is busy."),
        (Around(Workers(5, False, None), 7, 2, None), "All 5 workers here are busy. 2 other instances may take it."),
        (Around(HERE, 0, 1, "the disk is full"), "Nothing is begun here now: the disk is full. 1 other instance may"),
        (Around(Workers(2, True, None), 0, 0, None), "This instance has paused: it can't confirm that its tasks are"),
        (Around(Workers(0, False, None), 0, 0, None), "This instance has no workers. Start one that has: retoma serve"),
        (Around(Workers(0, False, None), 0, 1, None), "This instance has no workers. 1 other instance may take it."),
        (Around(Workers(2, False, frozenset({"b"})), 0, 0, None), "The file of a is not on this host. Add it with"),
        (
            Around(Workers(2, False, frozenset({"b"})), 0, 3, None),
            "The file of a is not on this host. 3 other instances",
        ),
        (Around(Workers(2, False, frozenset({"a"})), 2, 0, None), "Both workers here are busy."),
    ],
)
def test_a_task_waits_for_what_is_known_to_hold_it_up(around: Around, why: str) -> None:
    assert why_waiting(0, "a", around).startswith(f"Next in the queue. {why}")
    assert why_waiting(1, "a", around).startswith("Behind 1 other. ")
    assert why_waiting(1_200, "a", around).startswith("Behind 1\u202f200 others. ")


def test_numbers_are_written_for_people() -> None:
    lengths = [0, 42, 980, 9_960, 59_000, 61_000, 3_600_000, 7_500_000, 200_000_000]
    assert [duration(length) for length in lengths] == [
        *("0 ms", "42 ms", "1.0 s", "10.0 s", "59 s", "1 min 1 s", "1 h", "2 h 5 min", "2 d 7 h"),
    ]
    assert [size(count) for count in (0, 999, 1_000, 2.5e9, 3e15)] == ["0 B", "999 B", "1.0 kB", "2.5 GB", "3000.0 TB"]
    assert [number(value) for value in (7, 12_345, 3.14159, 250.0)] == ["7", "12\u202f345", "3.1", "250"]
    assert [plain(value) for value in (30.0, 0.5, 10_000, "x")] == ["30", "0.5", "10\u202f000", "x"]
    assert [plural(1, "task"), plural(2, "task"), plural(2, "is", "are")] == ["1 task", "2 tasks", "2 are"]
    assert [short_id("cli_local"), short_id("resp_" + "0" * 24 + "12345678")] == ["cli_local", "resp…12345678"]
