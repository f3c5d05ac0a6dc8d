"""What the operator's page reads."""

from __future__ import annotations

from functools import partial

from retoma.core.task import OnRestart, State
from retoma.store.rows import TaskRow
from retoma.store.schema import SCHEMA_VERSION
from retoma.transactions import survey
from retoma.transactions.survey import Pace
from tests.support.world import World


def ids(found: list[survey.Brief]) -> list[str]:
    return [brief.id for brief in found]


def test_each_list_has_its_tasks_in_its_order(world: World) -> None:
    ended = [world.in_state(state).id for state in (State.COMPLETED, State.FAILED, State.CANCELLED)]
    running, cancelling = world.in_state(State.RUNNING).id, world.in_state(State.CANCELLING).id
    later, first = world.accept().id, world.accept(priority=-1).id
    read = world.store.read
    assert ids(read(partial(survey.read_under_way, limit=9))) == [running, cancelling]
    assert ids(read(partial(survey.read_waiting, limit=9))) == [first, later]
    assert ids(read(partial(survey.read_waiting, limit=1))) == [first]
    assert ids(read(partial(survey.read_ended, limit=2))) == ended[:0:-1]
    every = read(partial(survey.read_briefs, state="", before="", limit=9))
    assert ids(every) == sorted([*ended, running, cancelling, later, first], reverse=True)
    older = read(partial(survey.read_briefs, state="", before=running, limit=9))
    assert ids(older) == ended[::-1]
    assert ids(read(partial(survey.read_briefs, state="failed", before="", limit=9))) == [ended[1]]


def test_a_brief_says_what_its_row_says(world: World) -> None:
    task = world.in_state(State.RUNNING, OnRestart.RETRY)
    world.append(task)
    (brief,) = world.store.read(partial(survey.read_under_way, limit=9))
    row = world.task(task.id)
    shared = set(survey.Brief.__dataclass_fields__) & set(TaskRow.__dataclass_fields__)
    assert len(shared) == len(survey.Brief.__dataclass_fields__)
    assert {name: getattr(brief, name) for name in shared} == {name: getattr(row, name) for name in shared}
    world.recover(row)
    (brief,) = world.store.read(partial(survey.read_waiting, limit=9))
    assert brief.restart_list == world.task(task.id).restart_list != []


def test_the_pace_is_that_of_the_last_run_of_tokens(world: World) -> None:
    task = world.in_state(State.RUNNING)

    def pace() -> Pace:
        return world.store.read(partial(survey.read_pace, task_id=task.id))

    assert pace() == Pace(None, world.clock.wall_ms())
    world.append(task, tokens=(1,))
    assert pace().tokens_per_s is None  # nothing to count from
    world.clock.advance(500)
    world.append(task, tokens=(1, 2))
    world.clock.advance(500)
    world.append(task, tokens=(3, 4, 5))
    assert pace() == Pace(5.0, world.clock.wall_ms())
    for _ in range(40):  # what was long ago is forgotten
        world.clock.advance(100)
        world.append(task, tokens=(6,))
    assert pace() == Pace(10.0, world.clock.wall_ms())
    rescued = world.recover(world.task(task.id))
    assert rescued is not None
    assert pace().tokens_per_s is None


def test_turns_are_the_changes_of_state_with_the_time_before_them(world: World) -> None:
    task = world.accept()
    world.clock.advance(100)
    claimed = world.claim()
    assert claimed is not None
    running = world.start(claimed)
    world.clock.advance(100)
    world.append(running)
    world.clock.advance(100)
    world.finish(running)
    turns = world.store.read(partial(survey.read_turns, task_id=task.id))
    began = world.task(task.id).created_at_ms
    assert [(turn.seq, turn.type.removeprefix("response."), turn.at_ms - began) for turn in turns] == [
        (0, "created", 0),
        (1, "queued", 0),
        (2, "in_progress", 100),
        (3, "in_progress", 100),
        (world.task(task.id).last_seq, "completed", 300),
    ]
    assert [turn.before_ms and turn.before_ms - began for turn in turns] == [None, 0, 0, 100, 300]
    assert turns[-1].response["status"] == "completed"


def test_the_schema_has_the_version_of_this_release(world: World) -> None:
    assert world.store.read(survey.read_schema_version) == SCHEMA_VERSION
