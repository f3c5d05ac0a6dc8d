"""What is left behind is moved by its policy, once, whoever looks and however often."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from functools import partial

import pytest

from retoma.core.restart import RESTART
from retoma.core.task import UNFINISHED, OnRestart, State
from retoma.errors import LeaseLost, NotFound
from retoma.limits import CRASHES_WITHOUT_PROGRESS_MAX, RESTARTS_KEPT_MAX
from retoma.transactions.instances import read_left_behind
from retoma.transactions.recover import recover, recover_after_crash
from retoma.transactions.snapshots import read_snapshots
from tests.support import processes
from tests.support.stores import open_store
from tests.support.world import World

SPECIFIED = {
    "queued": ("failed", "queued", "queued"),
    "loading": ("failed", "queued", "queued"),
    "running": ("failed", "queued", "running"),
    "cancelling": ("cancelled", "cancelled", "cancelled"),
}
CELLS = [
    (State(found), OnRestart(policy), State(reached))
    for found, row in SPECIFIED.items()
    for policy, reached in zip(("fail", "retry", "resume"), row, strict=True)
]
LAST_EVENT = {"failed": "failed", "queued": "queued", "running": "in_progress", "cancelled": "cancelled"}


@pytest.mark.requirement("P-11.2-startup", "P-11.3-table", "P-11.3-events")
@pytest.mark.parametrize(("found", "policy", "reached"), CELLS)
def test_each_cell_of_the_restart_table_is_one_transaction_with_its_event(
    world: World, found: State, policy: OnRestart, reached: State
) -> None:
    task = world.in_state(found, policy)
    if found is State.RUNNING:
        world.append(task, "so far ")
    world.me = "instance-2"
    moved = world.recover(task)
    assert moved == world.task(task.id)
    assert (moved.state, moved.instance_id, moved.fencing_token) == (reached, "instance-2", task.fencing_token + 1)
    assert world.types(task.id)[-1] == LAST_EVENT[reached]
    assert [entry["from"] for entry in moved.restart_list] == [found]
    if reached is State.FAILED:
        assert world.response(task.id)["error"]["code"] == "server_restarted"
    expected = "so far " if found is State.RUNNING and reached in {State.RUNNING, State.FAILED} else ""
    assert world.output(task.id).text == (expected if found is not State.CANCELLING else "word ")
    assert world.recover(task) is None
    assert world.problems() == []


@pytest.mark.requirement("S-005", "S-006", "S-005b")
@pytest.mark.parametrize(("found", "policy", "reached"), CELLS)
def test_a_recovery_driven_again_has_one_effect_and_returns_what_it_did(
    world: World, found: State, policy: OnRestart, reached: State
) -> None:
    task = world.in_state(found, policy)
    world.me = "instance-2"
    command = world.recover_command(task)
    moved = world.does(recover, command)
    log = world.log(task.id)
    assert world.does(recover, command) == moved
    assert world.log(task.id) == log


def test_what_somebody_else_has_recovered_is_passed_over(world: World) -> None:
    task = world.running()
    world.me = "instance-2"
    assert world.recover(task) is not None
    world.me = "instance-3"
    assert world.recover(task) is None
    assert world.task(task.id).instance_id == "instance-2"


def test_a_task_that_has_ended_or_is_gone_is_passed_over(world: World) -> None:
    task = world.running()
    command = world.recover_command(task)
    world.finish(task)
    assert world.does(recover, command) is None
    world.delete(task.id)
    assert world.does(recover, command) is None


def test_a_rescuer_without_workers_leaves_a_running_text_to_others_and_nothing_else(world: World) -> None:
    task = world.running()
    world.me = "instance-2"
    assert world.recover(task, can_work=False) is None
    assert world.task(task.id) == task
    queued = world.accept()
    world.me = "instance-3"
    assert world.recover(queued, can_work=False) is not None


def test_a_retry_begins_the_text_again_and_drops_its_snapshots(world: World) -> None:
    task = world.running(OnRestart.RETRY)
    world.append(task, "lost")
    world.snapshot(task, 1)
    moved = world.recover(task)
    assert moved is not None
    assert (moved.tokens, moved.attempt) == (0, 2)
    assert world.store.read(partial(read_snapshots, task_id=task.id)) == []
    again = world.claim()
    assert again is not None
    world.start(again)
    world.append(again, "new")
    assert world.output(task.id).text == "new"
    world.finish(again)
    assert world.response(task.id)["output"][0]["content"][0]["text"] == "new"
    assert world.problems() == []


def test_a_resumed_text_keeps_its_snapshots_and_its_tokens(world: World) -> None:
    task = world.running()
    world.append(task, "kept ")
    world.snapshot(task, 1)
    moved = world.recover(task)
    assert moved is not None
    assert moved.restart_list[-1]["resumed_at_token"] == moved.tokens == 1
    assert len(world.store.read(partial(read_snapshots, task_id=task.id))) == 1
    world.append(moved, "on")
    world.finish(moved)
    assert world.response(task.id)["output"][0]["content"][0]["text"] == "kept on"
    assert world.problems() == []


def test_the_list_of_restarts_has_a_bound(world: World) -> None:
    task = world.running()
    for _ in range(RESTARTS_KEPT_MAX + 5):
        moved = world.recover(task)
        assert moved is not None
        task = moved
    assert len(task.restart_list) == RESTARTS_KEPT_MAX
    assert world.problems() == []
    world.finish(task)
    assert world.problems() == []


# A crashed engine


@pytest.mark.parametrize(
    ("state", "policy"), [(state, policy) for state in UNFINISHED[1:] for policy in OnRestart], ids=str
)
def test_a_crashed_engine_is_like_a_restart_while_there_is_progress(
    world: World, state: State, policy: OnRestart
) -> None:
    task = world.in_state(state, policy)
    moved = world.crash(task)
    reached = {"fail": "failed", "requeue": "queued", "continue": "running", "confirm_cancel": "cancelled"}
    assert moved.state == reached[RESTART[state][policy]]
    assert moved.crashes == 1
    if moved.state is State.FAILED:
        assert world.response(task.id)["error"] == {"code": "engine_crashed", "message": "the engine died"}
    assert world.problems() == []


def test_a_text_that_kills_its_engine_without_progress_fails_in_the_end(world: World) -> None:
    task = world.running()
    world.append(task)
    for _ in range(CRASHES_WITHOUT_PROGRESS_MAX - 1):
        task = world.crash(task)
        assert task.state is State.RUNNING
    assert world.crash(task).state is State.FAILED
    assert world.response(task.id)["error"]["code"] == "engine_crashed"
    assert world.problems() == []


def test_progress_between_crashes_starts_the_count_again(world: World) -> None:
    task = world.running()
    for _ in range(CRASHES_WITHOUT_PROGRESS_MAX * 2):
        world.append(task)
        task = world.crash(task)
        assert (task.state, task.crashes) == (State.RUNNING, 1)


@pytest.mark.requirement("S-005")
@pytest.mark.parametrize("policy", OnRestart)
def test_a_crash_reported_twice_counts_once(world: World, policy: OnRestart) -> None:
    task = world.running(policy)
    command = world.crash_command(task)
    moved = world.does(recover_after_crash, command)
    assert world.does(recover_after_crash, command) == moved
    with pytest.raises(LeaseLost):
        world.does(recover_after_crash, replace(command, op_id="another"))


def test_a_crash_of_a_task_that_is_not_there_is_not_found(world: World) -> None:
    task = world.running()
    with pytest.raises(NotFound):
        world.does(recover_after_crash, replace(world.crash_command(task), task_id="resp_gone"))


# Many at once


def left_behind(world: World, count: int) -> dict[str, State]:
    """Tasks of a dead instance in every unfinished state, and where each must get to."""
    world.me = "dead"
    expected: dict[str, State] = {}
    for number in range(count):
        found, policy, reached = CELLS[number % len(CELLS)]
        if found is not State.QUEUED:
            expected[world.in_state(found, policy).id] = reached
    for found, policy, reached in CELLS[:3]:
        expected[world.in_state(found, policy).id] = reached
    return expected


@pytest.mark.requirement("P-11.2-startup", "S-002", "S-005", "S-002a")
def test_recovery_by_two_instances_at_once_equals_one(target: str) -> None:
    store = open_store(target)
    expected = left_behind(World(store), 60)
    store.close()
    both = [processes.python("tests.support.instance", target, str(space)) for space in (2, 3)]
    for process in both:
        processes.tell(process, "recover dead")
    moved = [json.loads(processes.line(process)) for process in both]
    assert [processes.end(process) for process in both] == [0, 0]
    assert sum(moved) == len(expected)
    store = open_store(target)
    world = World(store)
    assert {task_id: world.task(task_id).state for task_id in expected} == expected
    assert all(len(world.task(task_id).restart_list) == 1 for task_id in expected)
    assert store.read(partial(read_left_behind, instance_id="dead", limit=10)) == []
    assert world.problems() == []
    store.close()


@pytest.mark.requirement("S-002", "S-003", "S-002c")
def test_claims_by_several_processes_and_threads_never_give_a_task_to_two(target: str) -> None:
    store = open_store(target)
    world = World(store)
    queued = [world.accept().id for _ in range(150)]
    others = [processes.python("tests.support.instance", target, str(space)) for space in (2, 3)]
    for process in others:
        processes.tell(process, "claim")
    mine: list[str] = []

    def work() -> None:
        while (task := world.claim()) is not None:
            mine.append(task.id)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    claimed = [*mine, *(one for process in others for one in json.loads(processes.line(process)))]
    assert [processes.end(process) for process in others] == [0, 0]
    assert sorted(claimed) == queued
    assert all(world.task(one).fencing_token == 1 for one in queued)
    assert world.problems() == []
    store.close()
