"""What clients and operators see."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from retoma.core.task import State
from retoma.errors import NotFound
from retoma.transactions import read
from tests.support.world import World


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (State.QUEUED, "queued"),
        (State.LOADING, "in_progress"),
        (State.RUNNING, "in_progress"),
        (State.CANCELLING, "in_progress"),
        (State.COMPLETED, "completed"),
        (State.FAILED, "failed"),
        (State.CANCELLED, "cancelled"),
    ],
)
def test_a_response_shows_each_state_in_a_word_that_clients_know(world: World, state: State, status: str) -> None:
    task = world.in_state(state)
    response = world.response(task.id)
    assert (response["status"], response["task"]["state"]) == (status, state)


def test_a_running_response_shows_the_text_so_far(world: World) -> None:
    task = world.running()
    world.append(task, "so ")
    world.append(task, "far")
    (message,) = world.response(task.id)["output"]
    assert (message["content"][0]["text"], message["status"]) == ("so far", "in_progress")


def test_a_waiting_response_knows_its_place(world: World) -> None:
    first, second = world.accept(), world.accept()
    assert world.response(first.id)["task"]["queue_position"] == 0
    assert world.response(second.id)["task"]["queue_position"] == 1
    urgent = world.accept(priority=-1)
    assert world.response(urgent.id)["task"]["queue_position"] == 0
    claimed = world.claim()
    assert claimed is not None
    assert world.response(claimed.id)["task"]["queue_position"] is None


def test_a_client_sees_only_its_own(world: World) -> None:
    task = world.accept()
    assert world.store.read(partial(read.read_task, task_id=task.id, client_id="cli_1")) == task
    for wrong in ({"task_id": task.id, "client_id": "cli_2"}, {"task_id": "resp_gone"}):
        with pytest.raises(NotFound):
            world.store.read(partial(read.read_response, **wrong))


def test_a_log_is_read_in_pages_that_know_their_end(world: World) -> None:
    task = world.in_state(State.COMPLETED)
    whole = world.log(task.id)
    pages: list[tuple[int, str, str]] = []
    complete = False
    while not complete:
        after = pages[-1][0] if pages else -1
        page = world.store.read(partial(read.read_log, task_id=task.id, after=after, limit=3))
        assert len(page.events) <= 3
        pages += page.events
        complete = page.complete
    assert pages == whole
    assert [json.loads(text)["sequence_number"] for _, _, text in whole] == list(range(len(whole)))
    beyond = world.store.read(partial(read.read_log, task_id=task.id, after=99, limit=3))
    assert (beyond.events, beyond.complete) == ([], True)


def test_the_log_of_an_unfinished_task_is_never_complete(world: World) -> None:
    task = world.running()
    assert not world.store.read(partial(read.read_log, task_id=task.id, after=-1, limit=100)).complete
    with pytest.raises(NotFound):
        world.store.read(partial(read.read_log, task_id="resp_gone", after=-1, limit=100))


def test_what_was_sent_once_is_sent_again_byte_for_byte(world: World) -> None:
    task = world.running()
    world.append(task, "é \u2028")
    before = world.log(task.id)
    world.finish(task)
    assert world.log(task.id)[: len(before)] == before


def test_tasks_are_listed_newest_first_by_state_and_client_in_pages(world: World) -> None:
    cancelled = world.in_state(State.CANCELLED, client_id="cli_2")
    first, second = world.accept(), world.accept()

    def listed(**wanted: Any) -> list[str]:
        filters = {"state": "", "client_id": "", "before": "", "limit": 10} | wanted
        return [task.id for task in world.store.read(partial(read.read_tasks, **filters))]

    assert listed() == [second.id, first.id, cancelled.id]
    assert listed(limit=1, before=second.id) == [first.id]
    assert listed(state="cancelled") == listed(client_id="cli_2") == [cancelled.id]
    assert world.store.read(read.count_states) == {"cancelled": 1, "queued": 2}


def test_the_dispatcher_sees_the_queue_and_the_states_at_a_glance(world: World) -> None:
    assert not world.store.read(read.read_queue_head)
    task = world.accept()
    assert world.store.read(read.read_queue_head)
    states = world.store.read(partial(read.read_states, task_ids=[task.id, "resp_gone"]))
    assert states == {task.id: State.QUEUED}
    claimed = world.claim()
    assert claimed is not None
    running = world.start(claimed)
    world.append(running, "x", (5,))
    assert world.store.read(partial(read.read_folded, task_id=task.id)).output.tokens == [5]
