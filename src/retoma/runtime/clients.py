"""Clients of this instance: who holds a token, when it was last used, and which requests end when it is revoked.

A token is looked up at every request, so a revocation counts from its commit on, whichever process has made it. What it
can't reach that way is a request that is open: a stream may go on for hours. The instance that revokes ends its own at
once; every other looks once a second, and only while it has requests of paired clients open.

The time of the last use is kept here and written at most once a minute for all clients together: a write for each
request would cost as much as accepting one.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from retoma import limits
from retoma.clock import Clock
from retoma.core.pairing import normalised, token_of
from retoma.errors import InvalidToken, RateLimited, Unavailable
from retoma.ids import Ids
from retoma.runtime.bridge import AsyncStore
from retoma.transactions.clients import (
    Client,
    ClientRow,
    note_uses,
    read_client,
    read_clients,
    read_revoked,
    revoke_client,
)
from retoma.transactions.pairings import UseCode, use_code

logger = logging.getLogger(__name__)
_LOOK_EVERY_S = 1.0
_NOTE_EVERY_S = 60.0
_LAST_NOTE_S = 2.0
_MINUTE_MS = 60_000
End = Callable[[], None]


class Clients:
    """Knows who may do what here. Used on one event loop."""

    def __init__(self, store: AsyncStore, clock: Clock, ids: Ids, local: Client, local_token: str) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._local = local
        self._local_hash = _hash_of(local_token)
        self._failures = Failures(clock, limits.PAIRING_FAILURES_PER_MINUTE_MAX)
        self._open: dict[str, list[End]] = {}
        self._any_open = asyncio.Event()
        self._used_at_ms: dict[str, int] = {}
        self._any_used = asyncio.Event()

    async def authenticate(self, token: str) -> Client | None:
        """Who holds this token; raises Unavailable."""
        token_hash = _hash_of(token)
        if hmac.compare_digest(token_hash, self._local_hash):
            return self._local
        with _no_details():
            client = await self._store.read(partial(read_client, token_hash=token_hash))
        if client is not None:
            self._used_at_ms[client.id] = self._clock.wall_ms()
            self._any_used.set()
        return client

    async def pair(self, code: str, name: str) -> tuple[str, Client]:
        """Exchanges a one-time code for a new client and its token, which nothing but this answer ever shows.

        Raises InvalidToken, in the same words whatever is wrong with the code; RateLimited before the store is asked;
        or Unavailable: the code may then be used up, for a client whose token nobody knows.
        """
        self._failures.begin()
        token = token_of(self._ids.key())
        command = UseCode(normalised(code), self._ids.new("cli"), name, _hash_of(token), self._clock.wall_ms())
        with _no_details():
            client = await self._store.transact(partial(use_code, command=command))
        if client is None:
            raise InvalidToken("this code is wrong, used up or expired; `retoma clients pair` makes a new one")
        self._failures.forgive()
        logger.info("client %s is paired", client.id)
        return token, client

    async def page(self, before: str, limit: int, *, revoked_too: bool) -> list[ClientRow]:
        """A page of clients, newest first, with what this instance knows of their last use."""
        read = partial(read_clients, before=before, limit=limit, revoked_too=revoked_too)
        return [self._with_use(row) for row in await self._store.read(read)]

    async def revoke(self, client_id: str) -> None:
        """Takes the client's token away and ends its open requests here; raises NotFound or Conflict."""
        await self._store.transact(partial(revoke_client, client_id=client_id, now_ms=self._clock.wall_ms()))
        self._end_requests_of(client_id)

    @contextmanager
    def attending(self, client_id: str, end: End) -> Generator[None]:
        """A request of a paired client, for as long as the block runs; `end` is called if it is revoked meanwhile."""
        self._open.setdefault(client_id, []).append(end)
        self._any_open.set()
        try:
            yield
        finally:
            self._open[client_id].remove(end)
            if not self._open[client_id]:
                del self._open[client_id]
            if not self._open:
                self._any_open.clear()

    async def watch(self) -> None:
        """Ends the open requests of clients that another process has revoked."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            await self._any_open.wait()
            try:
                for client_id in await self._store.read(partial(read_revoked, client_ids=list(self._open))):
                    self._end_requests_of(client_id)
            except Unavailable as error:
                logger.warning("can't look whose token was revoked: %s", error)
            except Exception:
                logger.exception("the look for revoked tokens stumbled and goes on")

    async def note_uses(self) -> None:
        """Writes last uses: the first one soon, so that a new client is seen to work, then at most once a minute."""
        while True:
            await self._any_used.wait()
            try:
                await self._write_uses()
            except Unavailable as error:
                logger.warning("can't write when clients were last seen: %s", error)
            except Exception:
                logger.exception("writing when clients were last seen stumbled and goes on")
            await asyncio.sleep(_NOTE_EVERY_S)

    async def close(self) -> None:
        """Writes what is known of last uses; a store that doesn't answer in time is left alone."""
        with suppress(TimeoutError, Unavailable):
            async with asyncio.timeout(_LAST_NOTE_S):
                await self._write_uses()

    async def _write_uses(self) -> None:
        if not (used := self._used_at_ms):
            return
        self._used_at_ms = {}
        self._any_used.clear()
        try:
            await self._store.transact(partial(note_uses, used_at_ms=used))
        except BaseException:
            self._used_at_ms = used | self._used_at_ms
            self._any_used.set()
            raise

    def _with_use(self, row: ClientRow) -> ClientRow:
        known = [at_ms for at_ms in (row.last_used_at_ms, self._used_at_ms.get(row.id)) if at_ms is not None]
        return replace(row, last_used_at_ms=max(known, default=None))

    def _end_requests_of(self, client_id: str) -> None:
        ends = self._open.get(client_id, ())
        if ends:
            logger.info("client %s is revoked; its %d open requests end", client_id, len(ends))
        for end in ends:
            end()


class Failures:
    """Lets no more than so many tries fail within a minute; a try counts as failed until it is forgiven."""

    def __init__(self, clock: Clock, per_minute_max: int) -> None:
        self._clock = clock
        self._at_ms: deque[int] = deque(maxlen=per_minute_max)

    def begin(self) -> None:
        """Counts a try; raises RateLimited when the minute is full."""
        now_ms = self._clock.boot_ms()
        if len(self._at_ms) == self._at_ms.maxlen and now_ms - self._at_ms[0] < _MINUTE_MS:
            raise RateLimited
        self._at_ms.append(now_ms)

    def forgive(self) -> None:
        """One try was none of those that fail; which one makes no difference."""
        self._at_ms.pop()


@contextmanager
def _no_details() -> Generator[None]:
    """Who has shown no token yet hears what kind of trouble the store is in, and not where the store is."""
    try:
        yield
    except Unavailable as error:
        raise type(error) from error


def _hash_of(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
