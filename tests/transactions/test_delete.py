"""Finished tasks go when they are asked to or when their time is over; unfinished ones never."""

# ruff: noqa: S608 - the statements are put together from this file's own words

from __future__ import annotations

from functools import partial

import pytest

from retoma.core.task import FINISHED, UNFINISHED, State
from retoma.errors import NotFound, StaleVersion, TaskUnfinished
from retoma.store.contract import Tx
from retoma.store.statements import Statement
from retoma.transactions.accept import accept
from tests.support.world import DAY_MS, World, key_of

TABLES = ("tasks", "task_events", "responses", "idempotency_keys", "snapshots")
COUNTS = {table: Statement(table, "How many.", f"SELECT count(*) FROM {table}") for table in TABLES}


def counts(world: World) -> dict[str, int]:
    def look(tx: Tx) -> dict[str, int]:
        return {table: tx.rows(one, {})[0][0] for table, one in COUNTS.items()}

    return world.store.read(look)


@pytest.mark.parametrize("state", sorted(FINISHED))
def test_a_finished_task_goes_with_all_that_belongs_to_it(world: World, state: State) -> None:
    task = world.in_state(state, key=key_of("K"))
    world.delete(task.id)
    assert counts(world) == dict.fromkeys(TABLES, 0)
    with pytest.raises(NotFound):
        world.task(task.id)


@pytest.mark.requirement("S-005")
def test_a_delete_driven_again_says_that_it_is_gone(world: World) -> None:
    task = world.in_state(State.COMPLETED)
    world.delete(task.id)
    with pytest.raises(NotFound):
        world.delete(task.id)


@pytest.mark.requirement("P-11.2-never")
@pytest.mark.parametrize("state", UNFINISHED)
def test_an_unfinished_task_is_not_deleted(world: World, state: State) -> None:
    task = world.in_state(state)
    with pytest.raises(TaskUnfinished):
        world.delete(task.id)
    assert world.task(task.id) == task


@pytest.mark.requirement("S-003", "S-003b")
def test_a_delete_under_an_old_version_or_by_another_client_deletes_nothing(world: World) -> None:
    task = world.in_state(State.COMPLETED)
    with pytest.raises(StaleVersion):
        world.delete(task.id, version=task.version - 1)
    with pytest.raises(NotFound):
        world.delete(task.id, client_id="cli_2")
    assert world.task(task.id) == task
    world.delete(task.id, version=task.version, client_id="cli_1")


@pytest.mark.requirement("P-11.2-retain", "P-11.2-never")
def test_clean_up_takes_what_is_finished_past_its_time_and_of_its_kind_and_nothing_else(world: World) -> None:
    old = world.in_state(State.COMPLETED)
    unstored = world.in_state(State.FAILED, stored=False)
    unfinished = [world.in_state(state).id for state in UNFINISHED[1:]]
    world.clock.advance(DAY_MS)
    young = world.in_state(State.COMPLETED)
    unfinished.append(world.accept().id)
    before_ms = world.clock.wall_ms()
    assert world.prune("stored", before_ms) == [old.id]
    assert world.prune("stored", before_ms) == []
    assert world.prune("unstored", before_ms) == [unstored.id]
    world.clock.advance(1)
    assert world.prune("stored") == [young.id]
    assert sorted(unfinished) == sorted(task_id for task_id in unfinished if world.task(task_id))
    assert world.problems() == []


@pytest.mark.requirement("P-11.2-retain")
def test_a_finished_task_stays_while_its_key_is_valid(world: World) -> None:
    key = key_of("K", expires_at_ms=world.clock.wall_ms() + DAY_MS)
    task = world.in_state(State.COMPLETED, key=key)
    world.clock.advance(DAY_MS)
    assert world.prune() == []
    assert world.does(accept, world.accept_command(key=key)).task_id == task.id
    world.clock.advance(1)
    assert world.prune() == [task.id]


def test_clean_up_goes_in_batches_oldest_first(world: World) -> None:
    tasks = []
    for _ in range(5):
        tasks.append(world.in_state(State.CANCELLED).id)
        world.clock.advance(1)
    assert [world.prune(limit=2), world.prune(limit=2), world.prune(limit=2)] == [tasks[:2], tasks[2:4], tasks[4:]]


@pytest.mark.requirement("P-11.2-never")
def test_a_task_that_is_queued_again_between_selection_and_deletion_can_not_go(world: World) -> None:
    """The deleting statement and the triggers look again, whatever a faulty selection found."""
    from retoma.store.statements import statement
    from retoma.transactions import delete

    task = world.accept()
    wrong = Statement("tests.expired", "Takes all.", "SELECT id FROM tasks")
    original = delete.EXPIRED
    assert original == statement("tasks.expired")
    delete.EXPIRED = wrong
    try:
        with pytest.raises(Exception, match="never deleted"):
            world.prune()
    finally:
        delete.EXPIRED = original
    assert world.task(task.id) == task


def test_followers_of_a_deleted_task_are_woken(world: World) -> None:
    task = world.in_state(State.COMPLETED)
    woken: list[frozenset[str]] = []
    world.store.listen(lambda thunk: thunk(), woken.append)
    world.delete(task.id)
    assert woken == [frozenset({task.id})]
    world.store.listen(lambda thunk: thunk(), lambda _: None)
    with pytest.raises(NotFound):
        world.store.read(partial(lambda tx, task_id: tx and world.task(task_id), task_id=task.id))
