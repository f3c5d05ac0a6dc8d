"""Recovery: finds dead instances and moves what they left behind, at start and every few seconds (P-11.2-startup).

Each task is moved in a transaction of its own, in bounded batches that run together and so share commits. It may be
done any number of times, by several instances at once, and be killed anywhere: a task that somebody else has moved is
passed over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from retoma import limits, logs
from retoma.clock import Clock
from retoma.errors import Unavailable
from retoma.ids import Ids
from retoma.runtime.bridge import AsyncStore
from retoma.runtime.membership import Membership
from retoma.runtime.observing import tell_recovered
from retoma.store.contract import Tx
from retoma.store.rows import InstanceRow
from retoma.telemetry import Telemetry
from retoma.transactions.instances import (
    declare_dead,
    leave,
    read_instances_and_owners,
    read_left_behind,
)
from retoma.transactions.recover import Recover, recover

logger = logging.getLogger(__name__)
LOOK_EVERY_S = 1.0


class Recovery:
    """Takes over from the dead."""

    def __init__(
        self,
        store: AsyncStore,
        membership: Membership,
        clock: Clock,
        ids: Ids,
        telemetry: Telemetry,
        *,
        can_work: bool,
    ) -> None:
        self._store = store
        self._telemetry = telemetry
        self._membership = membership
        self._clock = clock
        self._ids = ids
        self._can_work = can_work
        self.others_live = False
        self.on_recovered: Callable[[], None] = lambda: None

    async def run(self) -> None:
        """Looks for ever; an error of the store leaves everything for the next look."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self.look()
            except Unavailable as away:
                logger.warning("recovery waits for the store: %s", away.message)
            except Exception:
                logger.exception("recovery stumbled and goes on")

    async def look(self) -> int:
        """One look at all instances; how many tasks were moved."""
        me = self._membership.instance_id
        logs.bind(instance=me)
        # One view: an owner without a row in it is truly gone, because a row comes before any task.
        rows, owners, store_now_ms = await self._store.read(_look_around)
        instances = [row for row in rows if row.id != me]
        signs = await asyncio.gather(*(self._membership.signs_of_death(row, store_now_ms) for row in instances))
        self.others_live = None in signs
        moved = 0
        for command in filter(None, signs):
            if await self._store.transact(partial(declare_dead, command=command)):
                moved += await self._take_over(command.instance_id)
        known = {row.id for row in instances} | {me}
        for owner in owners:
            if owner not in known:  # its row is gone, by another rescuer's hand or an older fault
                moved += await self._take_over(owner)
        if moved:
            logger.info("recovered %d tasks", moved)
            self.on_recovered()
        return moved

    async def _take_over(self, dead_id: str) -> int:
        moved = 0
        while True:
            left = await self._store.read(
                partial(read_left_behind, instance_id=dead_id, limit=limits.RECOVERY_BATCH_MAX)
            )
            results = await asyncio.gather(*(self._recover(task_id, dead_id) for task_id in left))
            moved += sum(results)
            if not any(results):
                break
        if not left and await self._store.transact(partial(leave, instance_id=dead_id)):
            await self._membership.forget(dead_id)
        return moved

    async def _recover(self, task_id: str, dead_id: str) -> bool:
        command = Recover(
            task_id,
            dead_id,
            self._membership.instance_id,
            self._clock.wall_ms(),
            self._ids.op_id(),
            self._can_work,
        )
        moved = await self._store.transact(partial(recover, command=command))
        if moved is not None:
            tell_recovered(self._telemetry, moved)
        return moved is not None


def _look_around(tx: Tx) -> tuple[list[InstanceRow], list[str], int]:
    return *read_instances_and_owners(tx), tx.now_ms()
