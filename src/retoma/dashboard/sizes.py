"""What the store takes on its disk, for people; asked for again only after a while, because a server has to count."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from retoma.clock import Clock
from retoma.settings import Settings
from retoma.store.contract import Store

_KNOWN_FOR_MS = 5_000


@runtime_checkable
class _ServerStore(Protocol):
    def size_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Sizes:
    """`log` is SQLite's write-ahead log; a server has neither that nor a disk that could be seen from here."""

    database: int
    log: int | None
    disk_free: int | None


def measure(store: Store, settings: Settings) -> Sizes:
    """Asks the disk or the server; raises Unavailable. Blocks."""
    if isinstance(store, _ServerStore):
        return Sizes(store.size_bytes(), None, None)
    database = settings.database
    log = database.with_name(f"{database.name}-wal")
    return Sizes(_size(database), _size(log), shutil.disk_usage(database.parent).free)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


class KnownSizes:
    """The sizes as they were a few seconds ago at most."""

    def __init__(self, look: Callable[[], Awaitable[Sizes]]) -> None:
        self._look = look
        self._known: Sizes | None = None
        self._looked_at_ms = 0

    async def get(self, clock: Clock) -> Sizes:
        """Raises Unavailable when the store doesn't answer."""
        now_ms = clock.boot_ms()
        if self._known is None or now_ms - self._looked_at_ms > _KNOWN_FOR_MS:
            self._known, self._looked_at_ms = await self._look(), now_ms
        return self._known
