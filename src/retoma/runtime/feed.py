"""The feed: who waits for which task, and how a stream is read.

A stream is one loop: read the log after number n, hand it out, wait for a wake-up, read again. Live, resumed and
two-day-old streams are the same code. A wake-up carries nothing, so a lost or a doubled one can't lose or double an
event, and a reader that is slow holds up nobody: it reads when it comes back, from the store.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress

# The net beneath the wake-ups: a follower looks by itself after this long.
LOOK_EVERY_S = 5.0


class Feed:
    """Wakes the followers of tasks. Used on one event loop."""

    def __init__(self) -> None:
        self._followers: dict[str, set[asyncio.Event]] = defaultdict(set)
        self.closed = False

    def wake(self, task_ids: Iterable[str]) -> None:
        """These tasks have changed."""
        for task_id in task_ids:
            for event in self._followers.get(task_id, ()):
                event.set()

    def wake_all(self) -> None:
        """Any task may have changed: another process has committed."""
        for events in self._followers.values():
            for event in events:
                event.set()

    def close(self) -> None:
        """The service stops: followers wake and find `closed`."""
        self.closed = True
        self.wake_all()

    @contextmanager
    def follow(self, task_id: str) -> Generator[asyncio.Event]:
        """An event that is set whenever the task may have changed; clear it before you look."""
        event = asyncio.Event()
        self._followers[task_id].add(event)
        try:
            yield event
        finally:
            self._followers[task_id].discard(event)
            if not self._followers[task_id]:
                del self._followers[task_id]


async def wait_for(event: asyncio.Event, seconds: float = LOOK_EVERY_S) -> None:
    """Waits for the event, but no longer than this."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
