"""One running instance: everything of the runtime put together. Implements `Service` for the HTTP layer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from retoma import limits
from retoma.blobs.models import ModelFiles
from retoma.blobs.snapshots import SnapshotFolder
from retoma.clock import Clock
from retoma.core.lease import Lease
from retoma.core.task import State
from retoma.errors import ShuttingDown, Unavailable
from retoma.ids import Ids
from retoma.runtime.attempt import Tools
from retoma.runtime.bridge import AsyncStore
from retoma.runtime.catalog import Catalog
from retoma.runtime.clients import Clients
from retoma.runtime.dispatcher import Dispatcher
from retoma.runtime.engines import Bounds, Engine, EnginePool
from retoma.runtime.feed import Feed, wait_for
from retoma.runtime.housekeeping import Housekeeping
from retoma.runtime.measuring import Measuring
from retoma.runtime.membership import Membership
from retoma.runtime.observing import cancel_once, tell_accepted, tell_cancelled
from retoma.runtime.recovery import Recovery
from retoma.runtime.service import RECOVERING, STOPPING, ModelInfo, ServiceInfo, Workers
from retoma.runtime.stored_settings import StoredSettings
from retoma.runtime.webhooks import Webhooks
from retoma.settings import Settings
from retoma.store.contract import Store, Tx
from retoma.telemetry import Telemetry
from retoma.transactions.accept import Accept, Accepted, accept
from retoma.transactions.cancel import Cancel
from retoma.transactions.clients import LOCAL_CLIENT
from retoma.transactions.delete import Delete, delete
from retoma.transactions.log import queue_length
from retoma.transactions.read import SeenResponse, read_log, read_response, read_states
from retoma.transactions.service import ChangeService, StoredService, change_service, keep_service, read_service

logger = logging.getLogger(__name__)
T = TypeVar("T")


class PooledEngines:
    """The pool as an attempt sees it: by model name."""

    def __init__(self, pool: EnginePool, catalog: Catalog) -> None:
        self._pool = pool
        self._catalog = catalog

    async def acquire(self, model: str) -> Engine:
        """See attempt.Engines."""
        return await self._pool.acquire(await self._catalog.load_frame(model))

    def release(self, model: str) -> None:
        """See attempt.Engines."""
        self._pool.release(model)


class AsyncSnapshotFolder:
    """The snapshot folder as an attempt sees it: removing does not hold up the event loop."""

    def __init__(self, folder: SnapshotFolder, *, enabled: bool) -> None:
        self._folder = folder
        self.enabled = enabled
        self.pattern = folder.pattern
        self.absolute = folder.absolute
        self.relative = folder.relative

    async def remove(self, paths: list[str]) -> None:
        """See attempt.SnapshotFiles."""
        if paths:
            await asyncio.to_thread(self._folder.remove, paths)

    async def remove_all(self, task_id: str) -> None:
        """See attempt.SnapshotFiles."""
        await asyncio.to_thread(self._folder.remove_all, task_id)


class Instance:
    """Accepts, works, recovers. Made on a running event loop."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        clock: Clock,
        ids: Ids,
        admin_token: str,
        *,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.clock, self.ids = clock, ids
        self._settings = settings
        self._feed = Feed()
        self.telemetry = telemetry or Telemetry()
        self._store = AsyncStore(store, self._feed, self.telemetry.committed)
        models = ModelFiles(settings.data_dir / "models")
        snapshots = SnapshotFolder(settings.data_dir / "snapshots")
        self._catalog = Catalog(self._store, models, settings)
        bounds = Bounds(settings.load_timeout_s, settings.stall_timeout_s)
        metrics = self.telemetry.metrics
        crashes = metrics.engine_crashes
        self._pool = EnginePool(
            bounds, settings.models_loaded, self._catalog.loaded, lambda code: crashes.labels(code).inc()
        )
        self._membership = Membership(self._store, clock, ids, Lease(int(settings.lease_s * 1000)))
        tools = Tools(
            self._store,
            PooledEngines(self._pool, self._catalog),
            AsyncSnapshotFolder(snapshots, enabled=settings.snapshots),
            clock,
            ids,
            lambda: self._membership.instance_id,
            self._catalog.loadable,
            self.telemetry,
        )
        self._dispatcher = Dispatcher(tools, settings.workers)
        self._recovery = Recovery(
            self._store, self._membership, clock, ids, self.telemetry, can_work=settings.workers > 0
        )
        self._stored = StoredSettings(self._store, clock, settings)
        self._housekeeping = Housekeeping(
            self._store, snapshots, models, clock, self._stored, webhook_days=settings.webhook_days
        )
        self.webhooks = Webhooks(self._store, self._feed, clock, settings)
        self._measuring = Measuring(self._store, clock, settings, metrics)
        metrics.workers.set(settings.workers)
        metrics.attempts_running.set_function(lambda: self._dispatcher.running)
        metrics.engines_loaded.set_function(lambda: len(self._pool.pids()))
        metrics.paused.set_function(lambda: self._membership.fenced)
        self.clients = Clients(self._store, clock, ids, LOCAL_CLIENT, admin_token)
        self._loops: list[asyncio.Task[None]] = []
        self._started = self._stopping = False
        self._hurry = asyncio.Event()
        self._unchecked = 0
        self._queue_max: int = 0

    @property
    def instance_id(self) -> str:
        """This instance's present name."""
        return self._membership.instance_id

    async def start(self) -> None:
        """Joins, recovers what was left behind, then begins to work; raises Unavailable."""
        keep = partial(keep_service, candidate=self.ids.new("svc"), now_ms=self.clock.wall_ms())
        await self._store.transact(keep)
        await self.webhooks.begin(self.ids.key())
        await self._membership.join()
        self._membership.on_fenced = self._dispatcher.pause
        self._membership.on_confirmed = self._dispatcher.resume
        self._recovery.on_recovered = self._dispatcher.poke
        self._spawn(self._membership.run())
        await self._catalog.mark_dangling()
        await self._recovery.look()
        self._dispatcher.poke()
        for loop in (self._dispatcher.run, self._recovery.run, self._housekeeping.run, self.webhooks.run):
            self._spawn(loop())
        self._spawn(self.clients.watch())
        self._spawn(self.clients.note_uses())
        self._spawn(self._catalog.find_back())
        self._store.watch(self._changed_elsewhere)
        self._started = True

    def begin_stop(self) -> None:
        """From now on nothing is accepted. A second call ends the grace that running texts have."""
        if self._stopping:
            self._hurry.set()
        self._stopping = True

    async def drain(self) -> None:
        """Lets running texts end for the time that the settings give them, parks the others, then ends open streams."""
        self.begin_stop()
        await self._dispatcher.close(self._settings.grace_s, self._hurry)
        self._feed.close()

    async def stop(self) -> None:
        """Ends everything; unfinished tasks are left to recovery, by the next start or another instance."""
        if not self._feed.closed:
            await self.drain()
        await self.webhooks.close()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self._pool.close()
        await self.clients.close()
        await self._store.close()
        self._membership.leave()

    async def accept(self, command: Accept) -> Accepted:
        """See Service.accept."""
        with self.telemetry.tracing.span("accept") as span:
            accepted = await self._accept(command)
            tell_accepted(self.telemetry, accepted, span)
        return accepted

    async def _accept(self, command: Accept) -> Accepted:
        if self._stopping:
            raise ShuttingDown
        if not self._started:
            raise Unavailable(RECOVERING)
        command = replace(command, queue_max=await self._room())
        accepted = await self._store.transact(partial(accept, command=command))
        self._dispatcher.poke()
        return accepted

    async def cancel(self, command: Cancel) -> SeenResponse:
        """See Service.cancel."""
        task, changed = await self._store.transact(partial(cancel_once, command=command))
        if changed:
            tell_cancelled(self.telemetry, task)
        if task.state is State.CANCELLING:
            self._dispatcher.cancel(task.id)
            await self._ended_within(task.id, self._settings.cancel_wait_s)
        return await self._store.read(partial(read_response, task_id=task.id))

    async def delete(self, command: Delete) -> None:
        """See Service.delete."""
        await self._store.transact(partial(delete, command=command))

    async def read(self, function: Callable[[Tx], T]) -> T:
        """See Service.read."""
        return await self._store.read(function)

    async def follow(self, task_id: str, after: int) -> AsyncIterator[list[tuple[int, str, str]]]:
        """See Service.follow."""
        with self._feed.follow(task_id) as changed:
            while not self._feed.closed:
                changed.clear()
                page = await self._store.read(
                    partial(read_log, task_id=task_id, after=after, limit=limits.EVENTS_PAGE_MAX)
                )
                if page.events:
                    after = page.events[-1][0]
                    yield page.events
                if page.complete:
                    return
                if len(page.events) < limits.EVENTS_PAGE_MAX:
                    await wait_for(changed)

    async def finished(self, task_id: str) -> SeenResponse:
        """See Service.finished; raises ShuttingDown when the service stops first."""
        with self._feed.follow(task_id) as changed:
            while True:
                changed.clear()
                states = await self._store.read(partial(read_states, task_ids=[task_id]))
                if task_id not in states or states[task_id].finished:
                    return await self._store.read(partial(read_response, task_id=task_id))
                if self._feed.closed:
                    raise ShuttingDown(f"the service is stopping; {task_id} goes on after its restart policy")
                await wait_for(changed)

    async def models(self) -> list[ModelInfo]:
        """See Service.models."""
        return await self._catalog.list()

    async def resolve_model(self, name: str | None) -> ModelInfo:
        """See Service.resolve_model."""
        return await self._catalog.find(name)

    async def register_model(self, file: str, name: str) -> ModelInfo:
        """See Service.register_model."""
        return await self._catalog.register(file, name, self.clock.wall_ms())

    async def remove_model(self, name: str, version: int | None) -> None:
        """See Service.remove_model."""
        await self._catalog.remove(name, version)

    async def describe(self) -> ServiceInfo:
        """See Service.describe."""
        if not self._started:
            raise Unavailable(RECOVERING)
        return self._info(await self._store.read(read_service))

    async def change(self, command: ChangeService) -> ServiceInfo:
        """See Service.change."""
        if not self._started:
            raise Unavailable(RECOVERING)
        changed = await self._store.transact(partial(change_service, command=command))
        self._stored.forget()
        return self._info(changed)

    def _info(self, stored: StoredService) -> ServiceInfo:
        return ServiceInfo(stored.id, stored.version, stored.values, self._stored.in_force(stored))

    async def workers(self) -> Workers:
        """See Service.workers."""
        return Workers(self._settings.workers, self._dispatcher.paused, await self._catalog.loadable())

    async def measure(self) -> bytes:
        """See Service.measure."""
        await self._measuring.look()
        return self.telemetry.metrics.render()

    def not_ready(self) -> str | None:
        """See Service.not_ready."""
        if self._stopping:
            return STOPPING
        if not self._started:
            return RECOVERING
        return self._store.problem()

    async def housekeep(self) -> None:
        """One pass of housekeeping now, instead of within the next minute."""
        await self._housekeeping.once()

    def pause(self) -> None:
        """Stops all protected work until `resume`; what is accepted waits."""
        self._dispatcher.pause()

    def resume(self) -> None:
        """Goes on where `pause` stopped."""
        self._dispatcher.resume()

    def engine_pids(self) -> dict[str, int | None]:
        """Process ids of the loaded engines."""
        return self._pool.pids()

    async def _room(self) -> int | None:
        """None while the queue is far from full, as counted some requests ago; else the bound, to be counted exactly.

        Counting costs as much as the queue is long, so it is done once for every half of the room that was left. Other
        instances may fill the other half meanwhile; the bound is a protection, not a promise.
        """
        queue_max: int = await self._stored.get("queue_max")
        if self._unchecked <= 0 or queue_max != self._queue_max:
            waiting = await self._store.read(partial(queue_length, limit=queue_max))
            self._queue_max, self._unchecked = queue_max, (queue_max - waiting) // 2
        self._unchecked -= 1
        return None if self._unchecked >= 0 else queue_max

    async def _ended_within(self, task_id: str, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.finished(task_id)
        except (TimeoutError, ShuttingDown):
            return

    def _changed_elsewhere(self, task_ids: frozenset[str] | None) -> None:
        """Another process has committed; without names, which SQLite can't give, perhaps only this one has."""
        if task_ids is not None:
            self._feed.wake(task_ids)
        elif self._recovery.others_live:
            self._feed.wake_all()
        else:
            return
        self._dispatcher.poke()

    def _spawn(self, loop: Coroutine[Any, Any, None]) -> None:
        self._loops.append(asyncio.create_task(loop))
