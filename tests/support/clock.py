"""Time and names that a test decides on."""

from __future__ import annotations

import itertools


class ManualClock:
    """Stands still until it is moved."""

    def __init__(self, wall_ms: int = 1_700_000_000_000, boot_ms: int = 1_000_000) -> None:
        self._wall_ms = wall_ms
        self._boot_ms = boot_ms
        self.boot_name = "boot-1"

    def wall_ms(self) -> int:
        return self._wall_ms

    def boot_ms(self) -> int:
        return self._boot_ms

    def boot_id(self) -> str:
        return self.boot_name

    def advance(self, ms: int) -> None:
        self._wall_ms += ms
        self._boot_ms += ms


class SequentialIds:
    """`resp_…0001`, `resp_…0002`: in order and the same in every run; `space` keeps two processes apart."""

    def __init__(self, space: int = 0) -> None:
        self._numbers = itertools.count(space * 1_000_000 + 1)

    def new(self, prefix: str) -> str:
        return f"{prefix}_{next(self._numbers):032d}"

    def op_id(self) -> str:
        return f"op_{next(self._numbers):032d}"

    def key(self) -> bytes:
        return f"{next(self._numbers):032d}".encode()
