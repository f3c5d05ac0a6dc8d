"""Housekeeping: retention, files whose rows are gone, and free space. A pass may be interrupted anywhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial

from retoma.blobs.models import ModelFiles
from retoma.blobs.snapshots import SnapshotFolder
from retoma.clock import Clock
from retoma.core.clock_watch import DOUBTED_FOR_MS, Sighting, Watch, look_again
from retoma.errors import Unavailable
from retoma.limits import PRUNE_BATCH_MAX
from retoma.runtime.bridge import AsyncStore
from retoma.runtime.retention import Retention, Windows
from retoma.runtime.stored_settings import StoredSettings
from retoma.transactions.models import read_models
from retoma.transactions.outbox import PruneMessages, prune_messages
from retoma.transactions.prune import read_newest_finished
from retoma.transactions.read import read_states

logger = logging.getLogger(__name__)
_EVERY_S = 60.0
_ORPHAN_GRACE_S = 24 * 3600.0
# Retention goes on where its last pass came to; so often it begins again, for what was committed behind that place.
_ANEW_EVERY_MS = 3_600_000
_DAY_MS = 86_400_000


class Housekeeping:
    """What keeps the data directory from growing."""

    def __init__(
        self,
        store: AsyncStore,
        snapshots: SnapshotFolder,
        models: ModelFiles,
        clock: Clock,
        settings: StoredSettings,
        *,
        webhook_days: float,
    ) -> None:
        self._store = store
        self._snapshots = snapshots
        self._models = models
        self._clock = clock
        self._settings = settings
        self._webhook_days = webhook_days
        self._retention = Retention(store, snapshots)
        self._watch: Watch | None = None
        self._anew_at_ms = 0

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
        """One pass. What is deleted by the wall clock waits while that clock is doubted."""
        now_ms = self._clock.wall_ms()
        if await self._clock_is_believed(now_ms):
            await self._prune(now_ms)
            await self._prune_messages(now_ms)
            await self._sweep_models(now_ms / 1000)
        await self._sweep_snapshots()
        if given := await self._retention.give_space_back():
            logger.info("%.0f MB of free space were given back to the file system", given / 1e6)

    async def _clock_is_believed(self, now_ms: int) -> bool:
        newest_ms = await self._store.read(read_newest_finished)
        before, self._watch = self._watch, look_again(self._watch, Sighting(now_ms, self._clock.boot_ms(), newest_ms))
        if self._watch.doubt and (before is None or before.doubted_from_ms != self._watch.doubted_from_ms):
            logger.warning(
                "nothing is deleted for %d minutes, in case the wall clock is wrong: %s; if it is right, "
                "`retoma store prune --trust-clock` deletes what has expired now",
                DOUBTED_FOR_MS // 60_000,
                self._watch.doubt,
            )
        return self._watch.believed

    async def _prune(self, now_ms: int) -> None:
        get = self._settings.get
        retention_days = await get("retention_days")
        unstored_minutes = await self._settings.get("unstored_minutes")
        windows = Windows(retention_days, unstored_minutes, await get("snapshot_hours"))
        boot_ms = self._clock.boot_ms()
        anew = boot_ms >= self._anew_at_ms
        pruned = await self._retention.prune(windows, now_ms, anew=anew)
        if anew:
            self._anew_at_ms = boot_ms + _ANEW_EVERY_MS
        if pruned.anything:
            logger.info(
                "retention removed %d responses, %d with store=false, %d idempotency keys, %d snapshots",
                pruned.stored,
                pruned.unstored,
                pruned.keys,
                pruned.snapshots,
            )

    async def _prune_messages(self, now_ms: int) -> None:
        if not self._webhook_days:
            return
        command = PruneMessages(int(max(0.0, now_ms - self._webhook_days * _DAY_MS)), PRUNE_BATCH_MAX)
        while gone := await self._store.transact(partial(prune_messages, command=command)):
            logger.info("retention removed %d webhooks that are over", gone)

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
