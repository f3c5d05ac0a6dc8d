"""Claim, start, append, finish: what the owner of a task does, and what nobody else can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from retoma.core.response import Ending
from retoma.core.task import OnRestart, State
from retoma.errors import IllegalTransition, LeaseLost, NotFound
from retoma.store.rows import TaskRow
from retoma.transactions.append import append
from retoma.transactions.claim import claim
from retoma.transactions.finish import finish
from retoma.transactions.recover import recover_after_crash
from retoma.transactions.snapshots import register_snapshot
from retoma.transactions.start import start
from tests.support.world import World

# Claim


def test_the_first_of_the_lowest_priority_is_claimed_under_a_new_token(world: World) -> None:
    late, first, urgent = world.accept(), world.accept(priority=-1), world.accept(priority=-2)
    claimed = [world.claim() for _ in range(4)]
    assert [task.id if task else None for task in claimed] == [urgent.id, first.id, late.id, None]
    assert claimed[0] is not None
    assert (claimed[0].state, claimed[0].fencing_token, claimed[0].instance_id) == (State.LOADING, 1, world.me)
    assert world.types(urgent.id) == ["created", "queued", "in_progress"]


@pytest.mark.requirement("S-005")
def test_a_claim_driven_again_returns_its_task_and_takes_no_second_one(world: World) -> None:
    world.accept()
    second = world.accept()
    command = world.claim_command()
    claimed = world.does(claim, command)
    assert world.does(claim, command) == claimed
    assert world.task(second.id).state is State.QUEUED


@pytest.mark.requirement("S-005")
def test_a_claim_driven_again_finds_its_task_even_if_a_client_has_cancelled_it_meanwhile(world: World) -> None:
    world.accept()
    second = world.accept()
    command = world.claim_command()
    claimed = world.does(claim, command)
    assert claimed is not None
    cancelling = world.cancel(claimed.id)
    assert world.does(claim, command) == cancelling
    assert world.task(second.id).state is State.QUEUED


def test_a_claim_by_another_command_takes_the_next_task(world: World) -> None:
    first, second = world.accept(), world.accept()
    assert [task.id for task in (world.claim(), world.claim()) if task] == [first.id, second.id]


# Start


def test_start_moves_to_running_and_tells_how_a_restarted_text_came_back(world: World) -> None:
    task = world.running(OnRestart.RETRY)
    world.append(task)
    world.crash(task)
    again = world.claim()
    assert again is not None
    running = world.start(again, "prompt")
    assert running.state is State.RUNNING
    assert running.restart_list[0]["path"] == "prompt"
    assert running.restart_list[0]["exact"] is True


@pytest.mark.requirement("S-005")
def test_start_driven_again_has_one_event(world: World) -> None:
    world.accept()
    claimed = world.claim()
    assert claimed is not None
    command = world.start_command(claimed)
    running = world.does(start, command)
    assert world.does(start, command) == running
    assert world.types(running.id).count("in_progress") == 2


def test_a_continued_text_is_started_once_more_with_an_event_of_its_own(world: World) -> None:
    task = world.running()
    world.append(task)
    world.me = "instance-2"
    taken = world.recover(task)
    assert taken is not None
    command = world.start_command(taken, "snapshot")
    continued = world.does(start, command)
    assert (continued.state, continued.version) == (State.RUNNING, taken.version + 1)
    assert continued.restart_list[-1]["path"] == "snapshot"
    assert world.does(start, command) == continued


def test_a_task_that_is_being_cancelled_does_not_start(world: World) -> None:
    world.accept()
    claimed = world.claim()
    assert claimed is not None
    world.cancel(claimed.id)
    with pytest.raises(IllegalTransition):
        world.start(claimed)


# Append


@pytest.mark.requirement("P-11.2-seq")
def test_output_and_the_place_in_the_log_change_together(world: World) -> None:
    task = world.running()
    seq = world.append(task, "Hello", (1, 2))
    assert seq == world.task(task.id).last_seq == world.log(task.id)[-1][0]
    assert world.task(task.id).tokens == 2
    assert world.output(task.id).tokens == [1, 2]
    assert world.problems() == []


@pytest.mark.requirement("S-005", "S-005b")
def test_append_driven_again_has_one_effect_also_after_a_cancel(world: World) -> None:
    task = world.running()
    command = world.append_command(task)
    seq = world.does(append, command)
    assert world.does(append, command) == seq
    world.cancel(task.id)
    assert world.does(append, command) == seq
    assert world.task(task.id).tokens == 1


@pytest.mark.requirement("P-11.2-cancel")
def test_nothing_is_appended_once_a_cancel_is_committed(world: World) -> None:
    task = world.running()
    command = world.append_command(task)
    before = len(world.log(task.id))
    world.cancel(task.id)
    with pytest.raises(IllegalTransition):
        world.does(append, command)
    with pytest.raises(IllegalTransition):
        world.does(append, replace(command, after_seq=command.after_seq + 1))
    assert len(world.log(task.id)) == before + 1


def test_a_place_that_is_taken_by_another_command_is_lost(world: World) -> None:
    task = world.running()
    first, second = world.append_command(task), world.append_command(task)
    world.does(append, first)
    with pytest.raises(LeaseLost, match="grown past"):
        world.does(append, second)
    assert world.task(task.id).tokens == 1


# Finish


def test_finish_writes_the_last_output_the_end_and_the_response_together(world: World) -> None:
    task = world.running()
    world.append(task, "Hello")
    done = world.finish(task)
    assert (done.state, done.finished_at_ms) == (State.COMPLETED, world.clock.wall_ms())
    assert world.types(task.id)[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    response = world.response(task.id)
    assert response["output"][0]["content"][0]["text"] == "Hello"
    assert (response["status"], response["usage"]["output_tokens"]) == ("completed", 1)
    assert world.problems() == []


@pytest.mark.parametrize(
    ("status", "state"), [("completed", "completed"), ("incomplete", "completed"), ("failed", "failed")]
)
def test_a_running_task_ends_in_each_way(world: World, status: str, state: str) -> None:
    task = world.running()
    world.append(task)
    assert world.finish(task, status).state == state
    assert world.types(task.id)[-1] == status
    assert world.response(task.id)["status"] == status
    assert world.problems() == []


def test_the_output_is_taken_from_the_log_for_an_owner_that_does_not_know_it(world: World) -> None:
    task = world.in_state(State.CANCELLING)
    ending = Ending("cancelled", [])
    world.finish(task, "cancelled", ending=ending, fold_output=True)
    assert world.response(task.id)["output"][0]["content"][0]["text"] == "word "
    assert world.problems() == []


def test_a_task_that_never_ran_ends_without_output(world: World) -> None:
    world.accept()
    claimed = world.claim()
    assert claimed is not None
    ending = Ending("failed", [], code="model_unavailable", message="no such file")
    world.finish(claimed, "failed", ending=ending, fold_output=True)
    assert world.response(claimed.id)["error"] == {"code": "model_unavailable", "message": "no such file"}
    assert world.response(claimed.id)["output"] == []


@pytest.mark.requirement("S-005")
def test_finish_driven_again_has_one_end(world: World) -> None:
    task = world.running()
    command = world.finish_command(task)
    done = world.does(finish, command)
    assert world.does(finish, command) == done
    assert world.types(task.id).count("completed") == 1


@pytest.mark.requirement("P-11.2-cancel")
def test_no_completion_wins_once_a_cancel_is_committed(world: World) -> None:
    task = world.running()
    command = world.finish_command(task)
    world.cancel(task.id)
    with pytest.raises(IllegalTransition, match="cancelling"):
        world.does(finish, command)
    assert world.task(task.id).state is State.CANCELLING


# Fencing

PROTECTED: dict[str, tuple[Callable[..., Any], Callable[[World, TaskRow], Any]]] = {
    "start": (start, World.start_command),
    "append": (append, World.append_command),
    "finish": (finish, World.finish_command),
    "crash": (recover_after_crash, World.crash_command),
    "snapshot": (register_snapshot, lambda world, task: world.snapshot_command(task, 0)),
}


@pytest.mark.requirement("S-003", "S-006", "S-006c")
@pytest.mark.parametrize("verb", PROTECTED)
@pytest.mark.parametrize("state", [State.LOADING, State.RUNNING, State.CANCELLING])
def test_a_stale_fencing_token_writes_nothing(world: World, verb: str, state: State) -> None:
    transaction, command_of = PROTECTED[verb]
    task = world.in_state(state)
    stale = replace(task, fencing_token=task.fencing_token - 1)
    row, log = world.task(task.id), world.log(task.id)
    with pytest.raises(LeaseLost):
        world.does(transaction, command_of(world, stale))
    assert (world.task(task.id), world.log(task.id)) == (row, log)


@pytest.mark.requirement("S-002", "S-006", "S-006a", "S-006b")
@pytest.mark.parametrize("verb", PROTECTED)
def test_an_owner_that_was_paused_while_another_took_over_writes_nothing(world: World, verb: str) -> None:
    transaction, command_of = PROTECTED[verb]
    task = world.running()
    world.append(task)
    command = command_of(world, task)
    world.me = "instance-2"
    taken = world.recover(task)
    assert taken is not None
    world.append(taken, "mine")
    row, log = world.task(task.id), world.log(task.id)
    with pytest.raises(LeaseLost):
        world.does(transaction, command)
    assert (world.task(task.id), world.log(task.id)) == (row, log)
    assert world.problems() == []


ALLOWED = {
    "start": {State.LOADING, State.RUNNING},
    "append": {State.RUNNING},
    "finish": {State.RUNNING},
    "snapshot": {State.RUNNING},
}


@pytest.mark.parametrize("verb", ALLOWED)
@pytest.mark.parametrize("state", State)
def test_a_command_in_the_wrong_state_writes_nothing(world: World, verb: str, state: State) -> None:
    transaction, command_of = PROTECTED[verb]
    task = world.in_state(state)
    log = world.log(task.id)
    if state in ALLOWED[verb]:
        world.does(transaction, command_of(world, task))
        return
    with pytest.raises((IllegalTransition, LeaseLost)):
        world.does(transaction, command_of(world, task))
    assert (world.task(task.id), world.log(task.id)) == (task, log)


@pytest.mark.parametrize("verb", PROTECTED)
def test_a_task_that_is_not_there_is_not_found(world: World, verb: str) -> None:
    transaction, command_of = PROTECTED[verb]
    task = world.running()
    with pytest.raises(NotFound):
        world.does(transaction, replace(command_of(world, task), task_id="resp_gone"))
