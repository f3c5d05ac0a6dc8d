"""An instance claims only tasks whose model it can load, in the order of the queue."""

from __future__ import annotations

import pytest

from retoma.limits import PAGE_ITEMS_MAX
from retoma.transactions.claim import Claim, claim
from tests.support.world import World


def claimed_by(world: World, *models: str) -> str | None:
    command = Claim(world.me, world.clock.wall_ms(), world.ids.op_id(), frozenset(models))
    task = world.does(claim, command)
    again = world.does(claim, command)
    assert (again and again.id) == (task and task.id) or task is None
    return task.id if task else None


@pytest.mark.requirement("S-002")
def test_tasks_with_other_models_are_left_to_those_who_have_them(world: World) -> None:
    other, mine, urgent = world.accept(model="b"), world.accept(model="a"), world.accept(model="a", priority=-1)
    assert claimed_by(world, "c") is None
    assert claimed_by(world) is None
    assert [claimed_by(world, "a") for _ in range(3)] == [urgent.id, mine.id, None]
    assert claimed_by(world, "a", "b") == other.id
    assert world.problems() == []


def test_a_long_queue_of_other_models_hides_nothing(world: World) -> None:
    for _ in range(PAGE_ITEMS_MAX + 5):
        world.accept(model="b")
    mine = world.accept(model="a")
    assert claimed_by(world, "a") == mine.id
    assert claimed_by(world, "a") is None
