"""Membership: how an instance shows that it lives, and how it learns that the others think it dead.

It holds a lock on a file, which the system frees at the very moment the process ends, and a lease in the store, which
it renews. The lock makes a take-over quick, the lease makes one possible when a process is only paused. Neither decides
whether a write is right: that is the fencing token's work. An instance that can't confirm a renewal in time, counted on
its own clock from before it was sent, pauses its protected work by itself; silence is never taken for ownership
(S-006).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path

from retoma.clock import Clock
from retoma.core import lease
from retoma.core.lease import decide_dead, decide_stop
from retoma.errors import Unavailable
from retoma.ids import Ids
from retoma.runtime.bridge import AsyncStore
from retoma.store.rows import InstanceRow
from retoma.transactions.instances import Register, register, renew

logger = logging.getLogger(__name__)
_RENEW_TIMEOUT_S = 3.0


class LockFile:
    """An exclusive lock for the life of the process. Children do not inherit it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """Frees the lock and removes the file."""
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.close(self._fd)


def is_free(path: Path) -> bool:
    """True if no living process holds this lock."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(fd)


class Membership:
    """This process's place among the instances."""

    def __init__(self, store: AsyncStore, clock: Clock, ids: Ids, folder: Path) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._folder = folder
        self._lock: LockFile | None = None
        self._confirmed_from_ms = 0
        self.instance_id = ""
        self.on_fenced: Callable[[], None] = lambda: None
        self.on_confirmed: Callable[[], None] = lambda: None
        self._fenced = False

    def lock_path(self, instance_id: str) -> Path:
        """Where an instance's lock lies."""
        return self._folder / f"{instance_id}.lock"

    async def join(self) -> None:
        """Takes a new name, its lock, then its row; raises Unavailable."""
        instance_id = self._ids.new("inst")
        lock = LockFile(self.lock_path(instance_id))
        sent_at = self._clock.boot_ms()
        command = Register(
            instance_id,
            platform.node(),
            self._clock.boot_id(),
            os.getpid(),
            sent_at + lease.LEASE_MS,
            self._clock.wall_ms(),
        )
        await self._store.transact(partial(register, command=command))
        old, self._lock = self._lock, lock
        if old is not None:
            old.release()
        self.instance_id, self._confirmed_from_ms = instance_id, sent_at

    async def run(self) -> None:
        """Renews for ever."""
        while True:
            await asyncio.sleep(lease.RENEW_EVERY_MS / 1000)
            try:
                await self.renew()
            except Exception:
                logger.exception("the renewal of the lease stumbled and goes on")

    async def renew(self) -> None:
        """One renewal. Pauses the instance when it can't be confirmed, lets it go on when it is."""
        sent_at = self._clock.boot_ms()
        until = sent_at + lease.LEASE_MS
        try:
            async with asyncio.timeout(_RENEW_TIMEOUT_S):
                alive = await self._store.transact(
                    partial(renew, instance_id=self.instance_id, lease_until_boot_ms=until)
                )
        except (TimeoutError, Unavailable) as error:
            logger.warning("the lease was not renewed: %s", error or "no answer in time")
            if decide_stop(confirmed_from_ms=self._confirmed_from_ms, now_ms=self._clock.boot_ms()):
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

    def is_dead(self, other: InstanceRow) -> bool:
        """Whether another instance's tasks may be taken over."""
        if other.state == "dead":
            return True
        same_host = other.host == platform.node()
        return decide_dead(
            same_boot=other.boot_id == self._clock.boot_id(),
            lock_is_free=same_host and is_free(self.lock_path(other.id)),
            lease_until_boot_ms=other.lease_until_boot_ms,
            now_boot_ms=self._clock.boot_ms(),
        )

    def leave(self) -> None:
        """Frees the lock: the others may take over at once."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
