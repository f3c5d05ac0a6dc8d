"""Membership: how an instance shows that it lives, and how it learns that the others think it dead.

It holds a lock (store/liveness.py), which the system frees at the very moment the process ends, and a lease in the
store, counted by the store's time, which it renews. The lock makes a take-over quick, the lease makes one possible when
a process is only paused. Neither decides whether a write is right: that is the fencing token's work. An instance that
can't confirm a renewal in time, counted on its own clock from before it was sent, pauses its protected work by itself;
silence is never taken for ownership (S-006).
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from collections.abc import Callable
from functools import partial

from retoma import logs
from retoma.clock import Clock
from retoma.core.lease import Lease, decide_dead, decide_stop
from retoma.errors import Unavailable
from retoma.ids import Ids
from retoma.runtime.bridge import AsyncStore
from retoma.store.rows import InstanceRow
from retoma.transactions.instances import DeclareDead, Register, register, renew

logger = logging.getLogger(__name__)


class Membership:
    """This process's place among the instances."""

    def __init__(self, store: AsyncStore, clock: Clock, ids: Ids, lease: Lease) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._lease = lease
        self._liveness = store.liveness()
        self._confirmed_from_ms = 0
        self.instance_id = ""
        self.on_fenced: Callable[[], None] = lambda: None
        self.on_confirmed: Callable[[], None] = lambda: None
        self._fenced = False

    @property
    def fenced(self) -> bool:
        """Nothing protected is done until a renewal is confirmed."""
        return self._fenced

    async def join(self) -> None:
        """Takes a new name, its lock, then its row; raises Unavailable."""
        instance_id = self._ids.new("inst")
        await asyncio.to_thread(self._liveness.hold, instance_id)
        sent_at = self._clock.boot_ms()
        command = Register(
            instance_id,
            platform.node(),
            self._clock.boot_id(),
            os.getpid(),
            self._lease.lease_ms,
            self._clock.wall_ms(),
        )
        await self._store.transact(partial(register, command=command))
        self.instance_id, self._confirmed_from_ms = instance_id, sent_at
        logs.bind(instance=instance_id)

    async def run(self) -> None:
        """Renews for ever."""
        while True:
            await asyncio.sleep(self._lease.renew_every_ms / 1000)
            try:
                await self.renew()
            except Exception:
                logger.exception("the renewal of the lease stumbled and goes on")

    async def renew(self) -> None:
        """One renewal. Pauses the instance when it can't be confirmed, lets it go on when it is."""
        sent_at = self._clock.boot_ms()
        try:
            async with asyncio.timeout(self._lease.renew_timeout_ms / 1000):
                # A lock that can't be held any more is no renewal either: the others may see it free.
                await asyncio.to_thread(self._liveness.hold, self.instance_id)
                alive = await self._store.transact(
                    partial(renew, instance_id=self.instance_id, lease_ms=self._lease.lease_ms)
                )
        except (TimeoutError, Unavailable) as error:
            logger.warning("the lease was not renewed: %s", str(error) or "no answer in time")
            if decide_stop(self._lease, confirmed_from_ms=self._confirmed_from_ms, now_ms=self._clock.boot_ms()):
                self._fence("its lease can't be renewed")
            return
        if not alive:
            self._fence("others have declared it dead")
            await self.join()
        self._confirmed_from_ms = max(self._confirmed_from_ms, sent_at)
        if self._fenced:
            self._fenced = False
            logger.warning("instance %s goes on", self.instance_id)
            self.on_confirmed()

    def _fence(self, why: str) -> None:
        if not self._fenced:
            logger.warning("instance %s pauses its work: %s", self.instance_id, why)
            self._fenced = True
            self.on_fenced()

    async def signs_of_death(self, other: InstanceRow, store_now_ms: int) -> DeclareDead | None:
        """What speaks for an instance's death, for `declare_dead` to judge by its row once more; None: it lives.

        `store_now_ms` is the store's time.
        """
        signs = DeclareDead(
            other.id,
            lock_is_free=other.state == "dead" or await asyncio.to_thread(self._liveness.is_free, other.id),
            boot_id=self._clock.boot_id() if self._liveness.one_machine else None,
        )
        dead = decide_dead(
            same_boot=signs.boot_id in {None, other.boot_id},
            lock_is_free=signs.lock_is_free,
            lease_until_ms=other.lease_until_ms,
            now_ms=store_now_ms,
        )
        return signs if dead else None

    async def forget(self, dead_id: str) -> None:
        """Removes what is left of a dead instance's lock."""
        await asyncio.to_thread(self._liveness.forget, dead_id)

    def leave(self) -> None:
        """Frees the lock: the others may take over at once."""
        self._liveness.release()
