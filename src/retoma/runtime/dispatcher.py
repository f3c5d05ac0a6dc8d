"""The dispatcher: which tasks this instance works on now.

Tasks that it owns already (recovered ones) come first, also when there are more of them than workers; then it claims
from the queue. It looks when it is poked and, beneath that, every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from retoma.core.task import State
from retoma.errors import Unavailable
from retoma.runtime.attempt import Attempt, Stopping, Tools
from retoma.runtime.feed import wait_for
from retoma.store.rows import TaskRow
from retoma.transactions.claim import Claim, claim
from retoma.transactions.instances import read_active
from retoma.transactions.read import read_queue_head, read_states, read_task

logger = logging.getLogger(__name__)
_LOOK_EVERY_S = 2.0
_ACTIVE_MAX = 1_000
_PARK_S = 5.0


class Dispatcher:
    """Runs attempts, at most `workers` at once."""

    def __init__(self, tools: Tools, workers: int) -> None:
        self._tools = tools
        self._workers = workers
        self._poked = asyncio.Event()
        self._paused = False
        self._attempts: dict[str, Attempt] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    @property
    def running(self) -> int:
        """How many attempts are under way."""
        return len(self._running)

    @property
    def paused(self) -> bool:
        """No task is begun: the ownership is not confirmed, or the instance stops."""
        return self._paused

    def poke(self) -> None:
        """Something may have become ready to work on."""
        self._poked.set()

    def cancel(self, task_id: str) -> None:
        """A cancel of this task is committed."""
        if attempt := self._attempts.get(task_id):
            attempt.stop(Stopping.CANCELLED)

    def pause(self) -> None:
        """Stops all protected work: the instance can't show that it still owns its tasks (S-006)."""
        self._paused = True
        for attempt in self._attempts.values():
            attempt.stop(Stopping.ABANDONED)

    def resume(self) -> None:
        """The ownership is confirmed, or a new one has begun."""
        self._paused = False
        self.poke()

    async def close(self, grace_s: float, hurry: asyncio.Event) -> None:
        """Claims nothing more, lets texts end for a while, parks the others; their tasks are left to recovery.

        `hurry` cuts the grace short.
        """
        self._paused = True
        if grace_s and self._running:
            hurried = asyncio.create_task(hurry.wait())
            ended = asyncio.gather(*self._running.values(), return_exceptions=True)
            await asyncio.wait([ended, hurried], timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()
        for attempt in self._attempts.values():
            attempt.park()
        if self._running:
            await asyncio.wait(list(self._running.values()), timeout=_PARK_S)
        self.pause()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def run(self) -> None:
        """For ever."""
        while True:
            await wait_for(self._poked, _LOOK_EVERY_S)
            self._poked.clear()
            try:
                await self.fill()
            except Unavailable as away:
                logger.warning("no new work: %s", away.message)
            except Exception:
                logger.exception("the dispatcher stumbled and goes on")

    async def fill(self) -> None:
        """Gives every free worker a task."""
        if self._workers:
            await self._notice()
        while len(self._running) < self._workers and not self._paused:
            task = await self._adopted() or await self._claimed()
            if task is None:
                return
            self._begin(task)

    async def _notice(self) -> None:
        """Learns of cancels that another process has committed."""
        states = await self._tools.store.read(partial(read_states, task_ids=list(self._attempts)))
        for task_id, state in states.items():
            if state is State.CANCELLING:
                self.cancel(task_id)

    async def _adopted(self) -> TaskRow | None:
        instance_id = self._tools.instance_id()
        active = await self._tools.store.read(partial(read_active, instance_id=instance_id, limit=_ACTIVE_MAX))
        for task_id, _ in active:
            if task_id not in self._running:
                return await self._tools.store.read(partial(read_task, task_id=task_id))
        return None

    async def _claimed(self) -> TaskRow | None:
        if not await self._tools.store.read(read_queue_head):
            return None  # a look costs no write lock
        command = Claim(
            self._tools.instance_id(),
            self._tools.clock.wall_ms(),
            self._tools.ids.op_id(),
            await self._tools.loadable(),
        )
        claimed = await self._tools.store.transact(partial(claim, command=command))
        if claimed is not None:
            self._tools.telemetry.metrics.events.inc()
        return claimed

    def _begin(self, task: TaskRow) -> None:
        attempt = Attempt(self._tools, task)
        self._attempts[task.id] = attempt
        running = asyncio.create_task(attempt.run(), name=f"attempt {task.id}")
        self._running[task.id] = running
        running.add_done_callback(partial(self._over, task.id))

    def _over(self, task_id: str, _: asyncio.Task[None]) -> None:
        del self._attempts[task_id], self._running[task_id]
        self.poke()
