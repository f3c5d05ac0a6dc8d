"""The bridge between the store's threads and the event loop: a hop per commit and one per read, never per statement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from retoma.runtime.feed import Feed
from retoma.store.contract import Outcome, Store, Tx

T = TypeVar("T")
_READ_THREADS = 4


class AsyncStore:
    """A store, awaited. Made and used on one event loop."""

    def __init__(self, store: Store, feed: Feed) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._readers = ThreadPoolExecutor(_READ_THREADS, "retoma-read")
        store.listen(self._deliver, feed.wake)

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
        """Runs a reading function on one consistent view."""
        return await self._loop.run_in_executor(self._readers, self._store.read, function)

    def changed_elsewhere(self) -> bool:
        """See Store.changed_elsewhere."""
        return self._store.changed_elsewhere()

    def problem(self) -> str | None:
        """See Store.problem."""
        return self._store.problem()

    async def close(self) -> None:
        """Commits what is queued and closes."""
        await self._loop.run_in_executor(self._readers, self._store.close)
        self._readers.shutdown(wait=False)


def _settle(future: asyncio.Future[T], outcome: Outcome) -> None:
    if future.done():  # its caller has been cancelled
        return
    if outcome.error is not None:
        future.set_exception(outcome.error)
    else:
        future.set_result(outcome.result)
