"""Housekeeping: retention, and files whose rows are gone. Each pass is bounded and may be interrupted anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial

from retoma import limits
from retoma.blobs.models import ModelFiles
from retoma.blobs.snapshots import SnapshotFolder
from retoma.clock import Clock
from retoma.errors import Unavailable
from retoma.runtime.bridge import AsyncStore
from retoma.runtime.stored_settings import StoredSettings
from retoma.transactions.delete import Prune, prune
from retoma.transactions.models import read_models
from retoma.transactions.read import read_states

logger = logging.getLogger(__name__)
_EVERY_S = 60.0
_ORPHAN_GRACE_S = 24 * 3600.0
_DAY_MS = 86_400_000
_MINUTE_MS = 60_000


class Housekeeping:
    """What keeps the data directory from growing."""

    def __init__(
        self, store: AsyncStore, snapshots: SnapshotFolder, models: ModelFiles, clock: Clock, settings: StoredSettings
    ) -> None:
        self._store = store
        self._snapshots = snapshots
        self._models = models
        self._clock = clock
        self._settings = settings

    async def run(self) -> None:
        """A pass now, then one a minute."""
        while True:
            try:
                await self.once()
            except (Unavailable, OSError) as error:
                logger.warning("housekeeping waits: %s", error)
            except Exception:
                logger.exception("housekeeping stumbled and goes on")
            await asyncio.sleep(_EVERY_S)

    async def once(self) -> None:
        """One pass."""
        now_ms = self._clock.wall_ms()
        if retention_days := await self._settings.get("retention_days"):
            await self._prune("stored", now_ms - int(retention_days * _DAY_MS), now_ms)
        unstored_minutes = await self._settings.get("unstored_minutes")
        await self._prune("unstored", now_ms - int(unstored_minutes * _MINUTE_MS), now_ms)
        await self._sweep_snapshots()
        await self._sweep_models(now_ms / 1000)

    async def _prune(self, retention: str, before_ms: int, now_ms: int) -> None:
        command = Prune(retention, before_ms, now_ms, limits.PRUNE_BATCH_MAX)
        while gone := await self._store.transact(partial(prune, command=command)):
            logger.info("retention removed %d responses", len(gone))
            for task_id in gone:
                await asyncio.to_thread(self._snapshots.remove_all, task_id)

    async def _sweep_snapshots(self) -> None:
        """A folder goes when its task is over or gone; the row always goes first."""
        folders = await asyncio.to_thread(self._snapshots.tasks)
        states = await self._store.read(partial(read_states, task_ids=folders))
        for task_id in folders:
            if task_id not in states or states[task_id].finished:
                await asyncio.to_thread(self._snapshots.remove_all, task_id)

    async def _sweep_models(self, now_s: float) -> None:
        known = {row.digest for row in await self._store.read(read_models)}
        orphans = await asyncio.to_thread(self._models.orphans, known, _ORPHAN_GRACE_S, now_s)
        for path in orphans:
            logger.info("removing %s, which no model names", path)
            with contextlib.suppress(OSError):  # one that can't go must not keep the others
                path.unlink(missing_ok=True)
