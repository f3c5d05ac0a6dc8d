"""The clock, as a thing that is handed in, so that tests move time instead of waiting for it.

Two kinds of time are told apart. `wall_ms` is UTC and only labels things for people; a wrong wall clock may make a
label wrong and nothing else. `boot_ms` counts from the machine's start, also while it sleeps, and is comparable between
the processes of one machine under one `boot_id`: leases on SQLite are counted in it (architecture.md §4).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """What Retoma asks of time."""

    def wall_ms(self) -> int:
        """UTC in milliseconds since 1970."""
        ...

    def boot_ms(self) -> int:
        """Milliseconds since the machine started, suspended time included."""
        ...

    def boot_id(self) -> str:
        """Names this start of the machine; another start has another name."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def __init__(self) -> None:
        try:
            self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:  # not Linux: the monotonic clock's start stands in for the boot
            self._boot_id = "no-boot-id"

    def wall_ms(self) -> int:
        """UTC in milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        """Milliseconds since the machine started, suspended time included."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def boot_id(self) -> str:
        """Names this start of the machine."""
        return self._boot_id
