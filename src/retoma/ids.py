"""Identifiers: `resp_…`, `msg_…`, `evt_…`, `cli_…`, each with a time-ordered random part (UUIDv7, RFC 9562).

Time-ordered keys keep the store's B-trees dense (peers.md: 2.4–3.7 times the rows per second of random ones). Within
one process ids rise strictly, also when many are made in one millisecond, so that the order of acceptance is the order
of ids.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol

from retoma.clock import Clock

_RANDOM_BITS = 74
_RANDOM_MASK = (1 << _RANDOM_BITS) - 1
_KEY_BYTES = 32


class Ids(Protocol):
    """Where new identifiers come from."""

    def new(self, prefix: str) -> str:
        """A fresh id: the prefix, an underscore and 32 hexadecimal digits."""
        ...

    def op_id(self) -> str:
        """Names one mutating command, so that driving it again has one effect (invariant I5)."""
        ...

    def key(self) -> bytes:
        """32 bytes that nobody can guess, to derive secrets from."""
        ...


class SystemIds:
    """UUIDv7 from the wall clock and the system's randomness; safe for use from several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0

    def new(self, prefix: str) -> str:
        """A fresh id, larger than every earlier one of this process."""
        return f"{prefix}_{self._next():032x}"

    def op_id(self) -> str:
        """A fresh command id."""
        return f"{self._next():032x}"

    def key(self) -> bytes:
        """From the system's randomness alone."""
        return os.urandom(_KEY_BYTES)

    def _next(self) -> int:
        bits = int.from_bytes(os.urandom(10)) & _RANDOM_MASK
        with self._lock:
            candidate = (self._clock.wall_ms() & (1 << 48) - 1) << _RANDOM_BITS | bits
            # A clock that stood still or went back must not break the order.
            self._last = candidate if candidate > self._last else self._last + 1
            value = self._last
        millis, random_part = value >> _RANDOM_BITS, value & _RANDOM_MASK
        high, low = random_part >> 62, random_part & (1 << 62) - 1
        return millis << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low
