"""When the wall clock is believed by what deletes things after their time.

What is deleted early never comes back, and what is deleted late costs some space. So a wall clock that has just jumped,
or that is far ahead of everything in the store, is doubted: nothing is deleted by it until it has stood for a while.
That is the time in which a machine whose clock came up wrong hears from its time server. A clock that stays wrong for
longer is believed in the end, since a service that was switched off for a month looks the same.
"""

from __future__ import annotations

from dataclasses import dataclass

JUMP_MS = 10 * 60_000
FAR_AHEAD_MS = 24 * 3_600_000
DOUBTED_FOR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Sighting:
    """Both clocks at one moment, and when the last task in the store ended, as it was labelled; None: there is none."""

    wall_ms: int
    boot_ms: int
    newest_ms: int | None


@dataclass(frozen=True, slots=True)
class Watch:
    """The last sighting, and since when (on the boot clock) the wall clock is doubted, and why."""

    seen: Sighting
    doubted_from_ms: int | None = None
    doubt: str = ""

    @property
    def believed(self) -> bool:
        """What has expired by the wall clock may be deleted."""
        return self.doubted_from_ms is None or self.seen.boot_ms - self.doubted_from_ms >= DOUBTED_FOR_MS


def is_far_ahead(wall_ms: int, newest_ms: int | None) -> bool:
    """True when a day or more lies between the last end of a task and now; a long pause looks so, and a wrong clock."""
    return newest_ms is not None and wall_ms - newest_ms > FAR_AHEAD_MS


def look_again(before: Watch | None, seen: Sighting) -> Watch:
    """What is to be thought of the wall clock after one more sighting."""
    far = is_far_ahead(seen.wall_ms, seen.newest_ms)
    if before is None:
        return _doubted(seen, "it is more than a day ahead of everything in the store") if far else Watch(seen)
    jump_ms = (seen.wall_ms - before.seen.wall_ms) - (seen.boot_ms - before.seen.boot_ms)
    if jump_ms > JUMP_MS:
        return _doubted(seen, f"it has jumped ahead by {jump_ms // 1000} s")
    if jump_ms < -JUMP_MS and not far:  # what was wrong is right again
        return Watch(seen)
    if far and seen.newest_ms is not None and seen.newest_ms > (before.seen.newest_ms or 0):
        return _doubted(seen, "another instance has a clock that is more than a day behind")
    return Watch(seen, before.doubted_from_ms, before.doubt)


def _doubted(seen: Sighting, why: str) -> Watch:
    return Watch(seen, seen.boot_ms, why)
