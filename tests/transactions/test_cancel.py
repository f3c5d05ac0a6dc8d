"""A cancel is atomic: it wins or it loses, and nothing in between is ever seen."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict
from random import Random
from typing import Any

import pytest

from retoma.core.task import State
from retoma.errors import IllegalTransition, NotFound, RequestError, StaleVersion
from retoma.transactions.cancel import cancel
from retoma.transactions.finish import finish
from tests.support import evidence, processes
from tests.support.linearizability import Operation, TaskHistory, linearizable
from tests.support.stores import open_store
from tests.support.world import World

CANCELS = {
    State.QUEUED: State.CANCELLED,
    State.LOADING: State.CANCELLING,
    State.RUNNING: State.CANCELLING,
    State.CANCELLING: State.CANCELLING,
    State.COMPLETED: State.COMPLETED,
    State.FAILED: State.FAILED,
    State.CANCELLED: State.CANCELLED,
}


@pytest.mark.requirement("P-11.2-cancel", "S-003")
@pytest.mark.parametrize(("state", "reached"), CANCELS.items())
def test_a_cancel_leads_from_each_state_where_it_should_any_number_of_times(
    world: World, state: State, reached: State
) -> None:
    task = world.in_state(state)
    cancelled = world.cancel(task.id)
    assert cancelled.state is reached
    assert world.cancel(task.id) == cancelled == world.task(task.id)
    assert world.problems() == []


def test_a_queued_task_that_is_cancelled_has_its_terminal_event_and_response(world: World) -> None:
    task = world.in_state(State.CANCELLED)
    assert world.types(task.id) == ["created", "queued", "cancelled"]
    assert world.response(task.id)["status"] == "cancelled"


def test_a_cancel_of_another_client_s_task_finds_nothing(world: World) -> None:
    task = world.running()
    with pytest.raises(NotFound):
        world.cancel(task.id, client_id="cli_2")
    assert world.cancel(task.id, client_id="cli_1").state is State.CANCELLING


def test_a_foreground_response_is_cancelled_by_the_service_only(world: World) -> None:
    task = world.accept(background=False)
    with pytest.raises(RequestError, match="only background responses"):
        world.cancel(task.id)
    assert world.cancel(task.id, by_client=False).state is State.CANCELLED


@pytest.mark.requirement("S-003", "S-003b")
def test_a_cancel_under_an_old_version_changes_nothing_unless_it_was_its_own_doing(world: World) -> None:
    task = world.running()
    command = world.cancel_command(task.id, version=task.version)
    with pytest.raises(StaleVersion):
        world.cancel(task.id, version=task.version - 1)
    assert world.task(task.id) == task
    cancelling = world.does(cancel, command)
    assert world.does(cancel, command) == cancelling
    with pytest.raises(StaleVersion):
        world.cancel(task.id, version=task.version)


def winner(world: World, task_id: str) -> State:
    """What the task ended as, once the owner has confirmed a cancel."""
    task = world.task(task_id)
    if task.state is State.CANCELLING:
        task = world.finish(task, "cancelled")
    return task.state


@pytest.mark.requirement("P-11.2-cancel", "S-003a")
def test_of_a_cancel_and_a_completion_at_once_exactly_one_wins_among_threads(world: World, rng: Random) -> None:
    winners: list[State] = []
    for _ in range(150):
        task = world.running()
        commands = [(finish, world.finish_command(task)), (cancel, world.cancel_command(task.id))]
        rng.shuffle(commands)
        barrier = threading.Barrier(2)
        refused: list[Exception] = []

        def act(transaction: Any, command: Any, barrier: Any = barrier, refused: Any = refused) -> None:
            barrier.wait(20)
            try:
                world.does(transaction, command)
            except IllegalTransition as error:
                refused.append(error)

        threads = [threading.Thread(target=act, args=pair) for pair in commands]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        winners.append(winner(world, task.id))
        assert len(refused) == (winners[-1] is State.CANCELLED)
        terminal = [one for one in world.types(task.id) if one in {"completed", "cancelled"}]
        assert len(terminal) == 1
    assert set(winners) == {State.COMPLETED, State.CANCELLED}, "the race never went both ways"
    assert world.problems() == []


def race_of_processes(target: str, task_ids: list[str]) -> dict[str, TaskHistory]:
    """Three processes on the same tasks. The first two complete every other one and cancel the rest, so that both verbs
    win somewhere whoever is quicker; the third cancels from the last task on.
    """
    verbs = ["cancel", "complete"] * len(task_ids)
    wishes = [
        [f"{verb}:{task_id}" for verb, task_id in zip(verbs, task_ids, strict=False)],
        [f"{verb}:{task_id}" for verb, task_id in zip(verbs[1:], task_ids, strict=False)],
        [f"cancel:{task_id}" for task_id in reversed(task_ids)],
    ]
    racers = [processes.python("tests.support.instance", target, str(space)) for space in (2, 3, 4)]
    for process, wish in zip(racers, wishes, strict=True):
        processes.tell(process, f"race {' '.join(wish)}")
    assert [processes.line(process) for process in racers] == ['"ready"'] * 3
    for process in racers:
        processes.tell(process, "go")
    histories: dict[str, TaskHistory] = {task_id: [] for task_id in task_ids}
    for process in racers:
        for task_id, verb, began, ended, outcome in json.loads(processes.line(process)):
            histories[task_id].append(Operation(began, ended, verb, outcome))
    for process in racers:
        assert processes.end(process) == 0
    return histories


def running_tasks(target: str, count: int) -> list[str]:
    store = open_store(target)
    world = World(store)
    task_ids = [world.running().id for _ in range(count)]
    store.close()
    return task_ids


@pytest.mark.requirement("P-11.2-cancel", "S-002", "S-003", "S-002c", "S-003a")
def test_the_histories_of_three_processes_that_cancel_and_complete_are_linearizable(target: str) -> None:
    histories = race_of_processes(target, running_tasks(target, 80))
    evidence.keep("histories.json", lambda: {task_id: list(map(asdict, one)) for task_id, one in histories.items()})
    store = open_store(target)
    world = World(store)
    ends: set[State] = set()
    for task_id, history in histories.items():
        history.append(Operation(2**62, 2**62 + 1, "read", str(world.task(task_id).state)))
        assert linearizable(history), f"{task_id}: {history}"
        ends.add(world.task(task_id).state)
    assert ends == {State.COMPLETED, State.CANCELLING}, "the race never went both ways"
    assert world.problems() == []
    store.close()


CHECK_THEN_ACT: list[tuple[str, Callable[[], TaskHistory], bool]] = [
    (
        "the cancel wins",
        lambda: [Operation(0, 3, "cancel", "cancelling"), Operation(1, 4, "complete", "IllegalTransition")],
        True,
    ),
    (
        "the completion wins",
        lambda: [Operation(0, 3, "cancel", "completed"), Operation(1, 4, "complete", "completed")],
        True,
    ),
    ("both win", lambda: [Operation(0, 3, "cancel", "cancelling"), Operation(1, 4, "complete", "completed")], False),
    (
        "neither wins",
        lambda: [Operation(0, 3, "cancel", "completed"), Operation(1, 4, "complete", "IllegalTransition")],
        False,
    ),
    ("out of order", lambda: [Operation(0, 1, "cancel", "completed"), Operation(2, 3, "complete", "completed")], False),
    (
        "a lost answer that took effect",
        lambda: [Operation(0, None, "cancel", None), Operation(5, 6, "read", "cancelling")],
        True,
    ),
    (
        "a lost answer that did not",
        lambda: [Operation(0, None, "cancel", None), Operation(5, 6, "read", "running")],
        True,
    ),
    (
        "a change that is taken back",
        lambda: [
            Operation(0, 1, "read", "cancelling"),
            Operation(2, 3, "read", "running"),
            Operation(0, None, "cancel", None),
        ],
        False,
    ),
]


@pytest.mark.parametrize(
    ("history", "expected"), [case[1:] for case in CHECK_THEN_ACT], ids=[c[0] for c in CHECK_THEN_ACT]
)
def test_the_checker_of_histories_tells_right_from_wrong(history: Callable[[], TaskHistory], expected: bool) -> None:
    assert linearizable(history()) is expected
