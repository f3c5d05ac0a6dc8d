"""Retention: all that is past its time goes, kind by kind, in batches between which others write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from retoma import limits
from retoma.blobs.snapshots import SnapshotFolder
from retoma.runtime.bridge import AsyncStore
from retoma.store.contract import Tx
from retoma.transactions.prune import (
    DropSnapshots,
    ExpiredKey,
    ForgetKeys,
    Place,
    Prune,
    Window,
    drop_snapshots,
    find_expired,
    find_expired_keys,
    find_stale_snapshots,
    forget_keys,
    prune,
)

T = TypeVar("T")
_DAY_MS = 86_400_000
_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000
# A task may be committed a little after the time of its end, and after tasks that ended later.
_SETTLED_MS = 10 * _MINUTE_MS


@dataclass(frozen=True, slots=True)
class Windows:
    """How long what is over is kept. `retention_days` and `snapshot_hours`: 0 is for ever."""

    retention_days: float
    unstored_minutes: float
    snapshot_hours: float

    def of_tasks(self, now_ms: int) -> list[Window]:
        """Of the finished tasks, one for each retention that has an end."""
        unstored = Window("unstored", _before(now_ms, self.unstored_minutes * _MINUTE_MS), now_ms)
        if not self.retention_days:
            return [unstored]
        return [Window("stored", _before(now_ms, self.retention_days * _DAY_MS), now_ms), unstored]

    def of_snapshots(self, now_ms: int) -> int | None:
        """Snapshots of unfinished tasks go if neither they nor their task have changed since; None: they stay."""
        return _before(now_ms, self.snapshot_hours * _HOUR_MS) if self.snapshot_hours else None


def _before(now_ms: int, kept_ms: float) -> int:
    """The instant so long ago; an unbounded time leads to the beginning of all times."""
    return int(max(0.0, now_ms - kept_ms))


@dataclass(slots=True)
class Pruned:
    """How much of each kind went. `looked_at` counts the rows of tasks that were gone through to find them."""

    stored: int = 0
    unstored: int = 0
    keys: int = 0
    snapshots: int = 0
    looked_at: int = 0

    @property
    def anything(self) -> bool:
        """Something went."""
        return bool(self.stored or self.unstored or self.keys or self.snapshots)


class Retention:
    """Deletes what is past its time. Interrupted anywhere it leaves nothing half deleted, and may be begun again."""

    def __init__(self, store: AsyncStore, snapshots: SnapshotFolder) -> None:
        self._store = store
        self._snapshots = snapshots
        self._places: dict[str, Place] = {}

    async def prune(self, windows: Windows, now_ms: int, *, anew: bool = True) -> Pruned:
        """One pass. Unless it is `anew`, it goes on where the last one came to.

        What was walked past then was kept by its key, and goes with it: a key that expires has its task looked at.
        """
        pruned = Pruned()
        of_tasks = windows.of_tasks(now_ms)
        await self._forget_keys(of_tasks, now_ms, pruned)
        for window in of_tasks:
            await self._prune_behind(window, pruned, anew=anew)
        before_ms = windows.of_snapshots(now_ms)
        if before_ms is not None:
            await self._drop_snapshots(before_ms, pruned)
        return pruned

    async def give_space_back(self, *, all_of_it: bool = False) -> int:
        """Step by step, until there is not much left; how many bytes the file system got."""
        given = 0
        while step := await self._in_turn(self._store.give_back(all_of_it=all_of_it)):
            given += step
        return given

    async def _forget_keys(self, of_tasks: Sequence[Window], now_ms: int, pruned: Pruned) -> None:
        after: ExpiredKey | None = ExpiredKey()
        while after is not None:
            page = await self._store.read(partial(find_expired_keys, now_ms=now_ms, after=after))
            if page.keys:
                freed = await self._write(partial(forget_keys, command=ForgetKeys(page.keys, now_ms)))
                pruned.keys += len(freed)
                for window in of_tasks:
                    await self._prune(window, freed, pruned)
            after = page.next_after

    async def _prune_behind(self, window: Window, pruned: Pruned, *, anew: bool) -> None:
        after = Place() if anew else self._places.get(window.retention, Place())
        while True:
            page = await self._store.read(partial(find_expired, window=window, after=after))
            pruned.looked_at += page.looked_at
            await self._prune(window, page.task_ids, pruned)
            if page.next_after is None:
                break
            after = page.next_after
        self._places[window.retention] = min(after, Place(window.before_ms - _SETTLED_MS))

    async def _prune(self, window: Window, task_ids: Sequence[str], pruned: Pruned) -> None:
        if not task_ids:
            return
        gone = await self._write(partial(prune, command=Prune(window, task_ids)))
        if window.retention == "stored":
            pruned.stored += len(gone)
        else:
            pruned.unstored += len(gone)
        for task_id in gone:
            await asyncio.to_thread(self._snapshots.remove_all, task_id)

    async def _drop_snapshots(self, before_ms: int, pruned: Pruned) -> None:
        after = ""
        limit = limits.PRUNE_BATCH_MAX
        look = partial(find_stale_snapshots, before_ms=before_ms, limit=limit)
        while found := await self._store.read(partial(look, after_path=after)):
            dropped = await self._write(partial(drop_snapshots, command=DropSnapshots(found, before_ms)))
            await asyncio.to_thread(self._snapshots.remove, [snapshot.path for snapshot in dropped])
            pruned.snapshots += len(dropped)
            after = found[-1].path

    async def _write(self, function: Callable[[Tx], T]) -> T:
        return await self._in_turn(self._store.transact(function))

    @staticmethod
    async def _in_turn(written: Awaitable[T]) -> T:
        """Waits for a batch, and then leaves the writer to the others for as long as it took."""
        now = asyncio.get_running_loop().time
        began = now()
        result = await written
        await asyncio.sleep(now() - began)
        return result
