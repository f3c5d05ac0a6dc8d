"""When an instance counts as gone, and when it must stop by itself (architecture.md §4, requirement S-006)."""

from __future__ import annotations

LEASE_MS = 10_000
RENEW_EVERY_MS = 2_000
# An instance that has had no confirmed renewal for this long, by its own clock, stops before the others may take over.
STOP_AFTER_MS = 7_000


def decide_dead(*, same_boot: bool, lock_is_free: bool, lease_until_boot_ms: int, now_boot_ms: int) -> bool:
    """Dead: the machine was started anew since, its lock can be taken, or its lease has run out."""
    return not same_boot or lock_is_free or lease_until_boot_ms < now_boot_ms


def decide_stop(*, confirmed_from_ms: int, now_ms: int) -> bool:
    """True if the last confirmed renewal, counted from before it was sent, is too old to go on."""
    return now_ms - confirmed_from_ms > STOP_AFTER_MS
