"""When an instance counts as gone, and when it must stop by itself (architecture.md §4, requirement S-006)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """The times of an instance's ownership, all of them parts of one length."""

    lease_ms: int

    @property
    def renew_every_ms(self) -> int:
        """Several renewals fit into one lease."""
        return self.lease_ms // 5

    @property
    def renew_timeout_ms(self) -> int:
        """How long one renewal may take."""
        return self.lease_ms * 3 // 10

    @property
    def stop_after_ms(self) -> int:
        """Without a confirmed renewal for this long, by its own clock, it stops: before the others may take over."""
        return self.lease_ms * 7 // 10


def decide_dead(*, same_boot: bool, lock_is_free: bool, lease_until_ms: int, now_ms: int) -> bool:
    """Dead: the machine was started anew since, its lock can be taken, or its lease has run out by the store's time."""
    return not same_boot or lock_is_free or lease_until_ms < now_ms


def decide_stop(lease: Lease, *, confirmed_from_ms: int, now_ms: int) -> bool:
    """True if the last confirmed renewal, counted from before it was sent, is too old to go on."""
    return now_ms - confirmed_from_ms > lease.stop_after_ms
