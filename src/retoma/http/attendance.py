"""Who still waits for a foreground task.

A foreground task ends when its client goes away. A client that repeats a request under its idempotency key may have two
connections to one task for a while; the first one's end must not take the text away from the second. So connections are
counted, in this process only: it decides when a cancel is asked for, never whether one is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager


class Attendance:
    """Counts connections per task; used on the event loop only."""

    def __init__(self) -> None:
        self._waiting: Counter[str] = Counter()

    @contextmanager
    def attending(self, task_id: str) -> Generator[None]:
        """One connection, for as long as the block runs."""
        self._waiting[task_id] += 1
        try:
            yield
        finally:
            self._waiting[task_id] -= 1
            if not self._waiting[task_id]:
                del self._waiting[task_id]

    def connections(self, task_id: str) -> int:
        """How many wait for this task."""
        return self._waiting[task_id]
