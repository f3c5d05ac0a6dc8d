"""A wall clock that jumps kills nobody and keeps nobody alive: leases are not counted on it (S-006)."""

from __future__ import annotations

import time
from functools import partial

import pytest

from retoma.transactions.instances import DeclareDead, Register, declare_dead, register, renew
from tests.support.world import World

DAY_S = 86_400
LEASE_MS = 60_000


@pytest.fixture(params=[DAY_S, -DAY_S], ids=["a_day_ahead", "a_day_back"])
def wrong_clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, whatever asks for the wall clock's time hears another; the machine's other clocks go on."""
    jump_s: int = request.param
    real, real_ns, clock, clock_ns = time.time, time.time_ns, time.clock_gettime, time.clock_gettime_ns
    on_wall = {time.CLOCK_REALTIME}
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + jump_s * 10**9)
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + jump_s * (which in on_wall))
    monkeypatch.setattr(time, "clock_gettime_ns", lambda which: clock_ns(which) + jump_s * 10**9 * (which in on_wall))


def is_declared_dead(world: World) -> bool:
    return world.does(declare_dead, DeclareDead("other", lock_is_free=False, boot_id="boot-1"))


@pytest.fixture
def registered(world: World) -> World:
    world.does(register, Register("other", "host", "boot-1", 1, LEASE_MS, 0))
    return world


@pytest.fixture
def registered_then_wrong(registered: World, wrong_clock: None) -> World:
    return registered


@pytest.mark.requirement("S-006", "S-006a")
def test_a_wall_clock_that_jumps_kills_nobody(registered_then_wrong: World) -> None:
    assert not is_declared_dead(registered_then_wrong)


@pytest.mark.requirement("S-006")
def test_a_lease_that_is_renewed_under_a_wrong_wall_clock_is_as_long_as_any_other(
    registered_then_wrong: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = registered_then_wrong
    assert world.store.transact(partial(renew, instance_id="other", lease_ms=0))
    monkeypatch.undo()
    now_ms = world.store.transact(lambda tx: tx.now_ms())
    while world.store.transact(lambda tx: tx.now_ms()) == now_ms:
        pass
    assert is_declared_dead(world)
