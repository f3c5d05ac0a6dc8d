"""When an instance counts as gone, and when it stops by itself."""

from __future__ import annotations

from itertools import product

import pytest

from retoma.core.lease import LEASE_MS, RENEW_EVERY_MS, STOP_AFTER_MS, decide_dead, decide_stop


@pytest.mark.parametrize(
    ("same_boot", "lock_is_free", "left_ms"), list(product([True, False], [True, False], [-1, 0, 1]))
)
def test_dead_is_another_boot_or_a_free_lock_or_a_lease_that_has_run_out(
    same_boot: bool, lock_is_free: bool, left_ms: int
) -> None:
    dead = decide_dead(same_boot=same_boot, lock_is_free=lock_is_free, lease_until_ms=1_000 + left_ms, now_ms=1_000)
    assert dead == (not same_boot or lock_is_free or left_ms < 0)


@pytest.mark.requirement("S-006")
@pytest.mark.parametrize(("silent_ms", "stops"), [(0, False), (STOP_AFTER_MS, False), (STOP_AFTER_MS + 1, True)])
def test_an_instance_without_a_confirmed_renewal_stops_by_its_own_clock(silent_ms: int, stops: bool) -> None:
    assert decide_stop(confirmed_from_ms=5_000, now_ms=5_000 + silent_ms) is stops


@pytest.mark.requirement("S-006")
def test_an_instance_stops_before_others_may_take_over_and_renews_more_than_once_before_that() -> None:
    assert STOP_AFTER_MS + RENEW_EVERY_MS < LEASE_MS
    assert RENEW_EVERY_MS * 3 <= STOP_AFTER_MS
