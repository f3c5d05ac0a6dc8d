"""When a snapshot pays: never more than a set share of the time, and only to save a multiple of what it costs."""

from __future__ import annotations

from dataclasses import dataclass

from retoma.limits import SNAPSHOT_BYTES_MAX, SNAPSHOT_GAIN_MIN, SNAPSHOT_TIME_SHARE_MAX

_FIRST_WRITE_MS = 5.0
_FIRST_WRITE_MS_PER_BYTE = 2e-6


@dataclass(frozen=True, slots=True)
class WriteCost:
    """What a snapshot is expected to take, judged by the last one; until there is one, by a slow disk."""

    last_ms: float | None = None
    last_bytes: int = 0

    def expected_ms(self, state_bytes: int) -> float:
        """Never less than the last one took, because most of a small write is waiting for the disk."""
        if self.last_ms is None:
            return _FIRST_WRITE_MS + state_bytes * _FIRST_WRITE_MS_PER_BYTE
        return self.last_ms * max(1.0, state_bytes / max(1, self.last_bytes))


def decide_snapshot(
    *, state_bytes: int, write_ms: float, unsaved_ms: float, spent_ms: float, elapsed_ms: float
) -> bool:
    """Whether a state of `state_bytes` is worth `write_ms` now.

    `unsaved_ms`: computing that a crash would lose, prompt included. `spent_ms`: already spent on snapshots of this
    text. `elapsed_ms`: its computing so far, without them.
    """
    pays = unsaved_ms >= SNAPSHOT_GAIN_MIN * write_ms
    affordable = spent_ms + write_ms <= SNAPSHOT_TIME_SHARE_MAX * elapsed_ms
    return state_bytes <= SNAPSHOT_BYTES_MAX and pays and affordable
