"""When an instance counts as gone, and when it stops by itself."""

from __future__ import annotations

from itertools import product

import pytest

from retoma.core.lease import Lease, decide_dead, decide_stop

LEASE = Lease(10_000)


@pytest.mark.parametrize(
    ("same_boot", "lock_is_free", "left_ms"), list(product([True, False], [True, False], [-1, 0, 1]))
)
def test_dead_is_another_boot_or_a_free_lock_or_a_lease_that_has_run_out(
    same_boot: bool, lock_is_free: bool, left_ms: int
) -> None:
    dead = decide_dead(same_boot=same_boot, lock_is_free=lock_is_free, lease_until_ms=1_000 + left_ms, now_ms=1_000)
    assert dead == (not same_boot or lock_is_free or left_ms < 0)


@pytest.mark.requirement("S-006")
@pytest.mark.parametrize(("silent_ms", "stops"), [(0, False), (7_000, False), (7_001, True)])
def test_an_instance_without_a_confirmed_renewal_stops_by_its_own_clock(silent_ms: int, stops: bool) -> None:
    assert decide_stop(LEASE, confirmed_from_ms=5_000, now_ms=5_000 + silent_ms) is stops


@pytest.mark.requirement("S-006")
@pytest.mark.parametrize("lease_ms", [1_000, 1_500, 10_000, 60_000])
def test_an_instance_stops_before_others_may_take_over_and_renews_more_than_once_before_that(lease_ms: int) -> None:
    lease = Lease(lease_ms)
    assert lease.stop_after_ms + lease.renew_every_ms < lease.lease_ms
    assert lease.renew_every_ms * 3 <= lease.stop_after_ms
    assert lease.renew_timeout_ms < lease.stop_after_ms
