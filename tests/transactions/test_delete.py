"""Finished tasks go when they are asked to or when their time is over; unfinished ones never."""

# ruff: noqa: S608 - the statements are put together from this file's own words

from __future__ import annotations

from functools import partial

import pytest

from retoma.core.task import FINISHED, UNFINISHED, State
from retoma.errors import NotFound, StaleVersion, TaskUnfinished
from retoma.store.contract import Tx
from retoma.store.statements import Statement
from tests.support.world import World, key_of

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


def test_followers_of_a_deleted_task_are_woken(world: World) -> None:
    task = world.in_state(State.COMPLETED)
    woken: list[frozenset[str]] = []
    world.store.listen(lambda thunk: thunk(), woken.append)
    world.delete(task.id)
    assert woken == [frozenset({task.id})]
    world.store.listen(lambda thunk: thunk(), lambda _: None)
    with pytest.raises(NotFound):
        world.store.read(partial(lambda tx, task_id: tx and world.task(task_id), task_id=task.id))
