"""What is measured of a store is what stands in it, whoever wrote it and in whatever order it waits."""

from __future__ import annotations

from functools import partial

import pytest

from retoma.core.task import State
from retoma.metrics import STORED, StoreSeen
from retoma.transactions.instances import DeclareDead, Register, declare_dead, register
from retoma.transactions.measure import measure
from tests.support.world import World


def measured(world: World) -> StoreSeen:
    return world.store.read(partial(measure, now_ms=world.clock.wall_ms()))


def test_an_empty_store_measures_nothing(world: World) -> None:
    assert measured(world) == {
        "retoma_tasks": {"queued": 0, "loading": 0, "running": 0, "cancelling": 0},
        "retoma_queue_oldest_age_seconds": {"": 0},
        "retoma_instances": {"alive": 0, "expired": 0, "dead": 0},
        "retoma_webhooks": {"waiting": 0, "pending": 0, "unconfirmed": 0},
    }


def test_each_unfinished_state_is_counted_exactly_and_finished_ones_are_not(world: World) -> None:
    for count, state in enumerate(State, start=1):
        for _ in range(count if state is not State.QUEUED else 0):
            world.in_state(state)
    for _ in range(8):
        world.in_state(State.QUEUED)
    assert measured(world)["retoma_tasks"] == {"queued": 8, "loading": 2, "running": 3, "cancelling": 4}


def test_the_age_is_that_of_the_task_that_was_accepted_first_even_if_others_go_before_it(world: World) -> None:
    world.accept()
    world.clock.advance(4_000)
    world.accept(priority=-1)
    world.clock.advance(500)
    assert measured(world)["retoma_queue_oldest_age_seconds"] == {"": 4.5}
    world.claim()
    assert measured(world)["retoma_queue_oldest_age_seconds"] == {"": 4.5}
    world.claim()
    assert measured(world)["retoma_queue_oldest_age_seconds"] == {"": 0}


def test_a_clock_that_goes_back_makes_no_negative_age(world: World) -> None:
    world.accept()
    assert world.store.read(partial(measure, now_ms=0))["retoma_queue_oldest_age_seconds"] == {"": 0}


@pytest.mark.requirement("S-006")
def test_an_instance_is_alive_only_as_long_as_its_lease(world: World) -> None:
    for name, lease_ms in (("inst_1", 60_000), ("inst_2", 60_000), ("inst_3", -1), ("inst_4", -1)):
        world.does(register, Register(name, "host", "boot", 1, lease_ms, 0))
    world.does(declare_dead, DeclareDead("inst_4", lock_is_free=True, boot_id=None))
    assert measured(world)["retoma_instances"] == {"alive": 2, "expired": 1, "dead": 1}


def test_everything_that_is_measured_is_shown(world: World) -> None:
    assert measured(world).keys() <= {described.name for described in STORED}
