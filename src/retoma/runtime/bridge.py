"""The bridge between the store's threads and the event loop: a hop per commit and one per read, never per statement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from retoma.errors import ShuttingDown
from retoma.runtime.feed import Feed
from retoma.store.contract import Elsewhere, OnWritten, Outcome, Store, Tx, uncounted
from retoma.store.liveness import Liveness

T = TypeVar("T")
_READ_THREADS = 4


class AsyncStore:
    """A store, awaited. Made and used on one event loop."""

    def __init__(self, store: Store, feed: Feed, on_written: OnWritten = uncounted) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._readers = ThreadPoolExecutor(_READ_THREADS, "retoma-read")
        store.listen(self._deliver, feed.wake, on_written)

    def _deliver(self, thunk: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(thunk)
        except RuntimeError:  # the loop has closed: there is nobody left to tell
            return

    async def transact(self, function: Callable[[Tx], T]) -> T:
        """Runs a writing transaction and returns after its commit; a cancelled caller does not undo it.

        Raises what the function raises, StoreUnavailable, StoreFull or ShuttingDown.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        self._store.submit(function, partial(_settle, future))
        return await future

    async def read(self, function: Callable[[Tx], T]) -> T:
        """Runs a reading function on one consistent view; raises ShuttingDown once the store is being closed."""
        if self._closed:
            raise ShuttingDown
        return await self._loop.run_in_executor(self._readers, self._store.read, function)

    async def give_back(self, *, all_of_it: bool = False) -> int:
        """See Store.give_back."""
        future: asyncio.Future[int] = self._loop.create_future()
        self._store.give_back(partial(_settle, future), all_of_it=all_of_it)
        return await future

    def watch(self, on_elsewhere: Elsewhere) -> None:
        """See Store.watch; told on the event loop."""
        self._store.watch(on_elsewhere)

    def liveness(self) -> Liveness:
        """See Store.liveness; its methods block."""
        return self._store.liveness()

    def problem(self) -> str | None:
        """See Store.problem."""
        return self._store.problem()

    async def close(self) -> None:
        """Lets the reads under way end, commits what is queued and closes."""
        self._closed = True
        await self._loop.run_in_executor(None, self._readers.shutdown)
        await self._loop.run_in_executor(None, self._store.close)


def _settle(future: asyncio.Future[T], outcome: Outcome) -> None:
    if future.done():  # its caller has been cancelled
        return
    if outcome.error is not None:
        future.set_exception(outcome.error)
    else:
        future.set_result(outcome.result)
