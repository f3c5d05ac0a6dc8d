"""Settings that are stored for all instances go before an instance's own. Read again every few seconds."""

from __future__ import annotations

from typing import Any

from retoma.clock import Clock
from retoma.runtime.bridge import AsyncStore
from retoma.settings import Settings
from retoma.transactions.service import StoredService, read_service

# How long another instance's change may stay unseen.
_KNOWN_FOR_MS = 2_000


class StoredSettings:
    """What is in force here, by the name of the setting."""

    def __init__(self, store: AsyncStore, clock: Clock, settings: Settings) -> None:
        self._store = store
        self._clock = clock
        self._own: dict[str, Any] = {
            "name": None,
            "queue_max": settings.queue_max,
            "retention_days": settings.retention_days,
            "unstored_minutes": settings.unstored_minutes,
            "snapshot_hours": settings.snapshot_hours,
        }
        self._stored: StoredService | None = None
        self._read_at_ms = 0

    async def get(self, name: str) -> Any:
        """The value in force; raises Unavailable when it has to be read and can't be."""
        now_ms = self._clock.boot_ms()
        stored = self._stored
        if stored is None or now_ms - self._read_at_ms > _KNOWN_FOR_MS:
            stored = self._stored = await self._store.read(read_service)
            self._read_at_ms = now_ms
        return stored.values.get(name, self._own[name])

    def in_force(self, stored: StoredService) -> dict[str, Any]:
        """All of them, where this is stored."""
        return self._own | dict(stored.values)

    def forget(self) -> None:
        """What is stored has changed."""
        self._stored = None
