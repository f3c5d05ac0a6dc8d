"""The writer: one thread that commits everything that waits, in one transaction.

What it protects. SQLite has one writer at a time, and a commit costs an fsync. A thread that takes all that is queued,
gives each function a savepoint of its own and commits once turns the cost per client into the cost per batch (peers.md:
6,002 against 822 accepted tasks a second with 16 clients). Nobody hears of a result before the commit has returned.

An error from COMMIT does not mean that nothing was written: 14 of 21 such commits were there after a restart. So the
connection is thrown away, a new one is opened and the same functions are driven again; each finds its own effect by its
operation id, or writes it. An error before COMMIT is a definite no, but on the first drive only: an outcome that is
unknown stays unknown, whatever else fails.

Gathering. A writer that commits as soon as one item waits splits its clients into two halves that alternate. So it
waits about 200 µs, but only when the last batch had company and the queue is now shorter than that batch was; a lone
client never waits. Rejected: a fixed window (costs a lone client its latency), one transaction per client (an fsync
each).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, Protocol

from retoma import limits
from retoma.errors import RetomaError, ShuttingDown, StoreUnavailable
from retoma.failpoints import Failpoint, FailpointError, passing
from retoma.store.contract import Deliver, OnCommit, OnWritten, Outcome, Settle, T, Tx, uncounted
from retoma.tracing import Commit

logger = logging.getLogger(__name__)
_UNKNOWN = (
    "the store did not confirm the write and its outcome is unknown; "
    "send the request again with the same Idempotency-Key"
)


class CommitUnknown(RetomaError):
    """COMMIT reported an error; the transaction may or may not be there."""


class Raced(RetomaError):
    """Another transaction was in the way and this one is undone; run again it finds what the other did."""

    def __init__(self, otherwise: RetomaError) -> None:
        super().__init__(otherwise.message)
        self.otherwise = otherwise
        """What to answer when it happens every time."""


class WriteConnection(Protocol):
    """What the writer needs of a driver. Every method raises Unavailable for an operating error."""

    @property
    def tx(self) -> WriterTx:
        """The handle that functions are given."""
        ...

    def begin(self) -> None:
        """Begins a writing transaction; an error is a definite no."""
        ...

    def savepoint(self) -> None:
        """Marks the place to return to if the next function fails."""
        ...

    def release(self) -> None:
        """Keeps what was done since the savepoint."""
        ...

    def rollback_to_savepoint(self) -> bool:
        """Undoes what was done since the savepoint; False when the database has given up the whole transaction."""
        ...

    def commit(self) -> None:
        """Commits; raises CommitUnknown for any error, unless the driver knows it for a definite no (StoreFull)."""
        ...

    def rollback(self) -> None:
        """Gives the transaction up; never raises."""
        ...

    def after_batch(self) -> None:
        """House-keeping between transactions (checkpoints); never raises."""
        ...

    def close(self) -> None:
        """Closes; never raises."""
        ...


class WriterTx(Tx, Protocol):
    """A transaction's handle, with what it collected for after the commit."""

    woken: set[str]
    points: list[Failpoint]


@dataclass(slots=True)
class _Item:
    function: Callable[[Tx], Any]
    settle: Settle
    outcome: Outcome = field(default_factory=Outcome)
    woken: frozenset[str] = frozenset()
    points: tuple[Failpoint, ...] = ()
    submitted_ns: int = field(default_factory=time.monotonic_ns)
    ran_ns: int = 0
    context: Context = field(default_factory=copy_context)


def _run_here(thunk: Callable[[], None]) -> None:
    thunk()


def _ignore(_: frozenset[str]) -> None:
    pass


def _call(listener: Callable[[T], object], argument: T) -> None:
    try:
        listener(argument)
    except Exception:
        logger.exception("a listener of the store failed")


class Waiting:
    """The functions that wait to be written; several writers may share them."""

    def __init__(self) -> None:
        self.items: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()


class Writer:
    """Group commit over one connection.

    On a database that has many writers at once and groups their commits by itself, use several, with one `waiting`
    between them and `batch_max` 1: rows of several tasks that are locked in one transaction can be deadlocked.
    """

    def __init__(
        self,
        connect: Callable[[], WriteConnection],
        *,
        batch_max: int | None = None,
        waiting: Waiting | None = None,
    ) -> None:
        self._connect = connect
        self._batch_max = batch_max
        self._queue = (waiting or Waiting()).items
        self._closing = False
        self._lock = threading.Lock()
        self._last_batch = 0
        self._connection: WriteConnection | None = connect()
        self.deliver: Deliver = _run_here
        self.on_commit: OnCommit = _ignore
        self.on_written: OnWritten = uncounted
        self.problem: str | None = None
        self.settled_ns = 0
        """When the last batch came to its end, on a clock that only rises."""
        self.commits = 0
        self.committed_items = 0
        self._thread = threading.Thread(target=self._run, name="retoma-writer", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[Tx], Any], settle: Settle) -> None:
        """Queues a function; see Store.submit."""
        error: RetomaError | None = None
        with self._lock:  # so that nothing is queued behind the end mark of `close`
            if self._closing:
                error = ShuttingDown()
            elif self._queue.qsize() >= limits.WRITER_QUEUE_MAX:
                error = StoreUnavailable("too many writes are waiting for the store; try again")
            else:
                self._queue.put(_Item(function, settle))
        if error is not None:
            settle(Outcome(error=error))

    def begin_close(self) -> None:
        """Takes nothing more and ends after what is queued; of writers that share it, all begin before one closes."""
        with self._lock:
            if not self._closing:
                self._closing = True
                self._queue.put(None)

    def close(self) -> None:
        """Commits what is queued and ends the thread."""
        self.begin_close()
        self._thread.join()

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._write(batch)
            self.settled_ns = time.monotonic_ns()
            self._announce(batch)
            self._measure(batch)
            if self._connection is not None:
                self._connection.after_batch()
        if self._connection is not None:
            self._connection.close()

    def _next_batch(self) -> list[_Item] | None:
        first = self._queue.get()
        if first is None:
            return None
        if self._last_batch > 1 and self._queue.qsize() + 1 < self._last_batch:
            time.sleep(limits.WRITER_GATHER_US / 1e6)
        batch = [first]
        while len(batch) < (self._batch_max or limits.WRITER_BATCH_MAX):
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            if item is None:  # the end mark: commit what is here, then see it again
                self._queue.put(None)
                break
            batch.append(item)
        self._last_batch = len(batch)
        return batch

    def _write(self, batch: list[_Item]) -> None:
        """Fills in every item's outcome; never raises."""
        error: BaseException | None = None
        for _ in range(limits.COMMIT_TRIES_MAX):
            try:
                self._attempt(batch)
            except CommitUnknown as unknown:
                error = StoreUnavailable(_UNKNOWN)
                self.problem = unknown.message
                self._drop_connection()
            except BaseException as failure:  # noqa: BLE001 - an operating error, or a bug: the clients must hear of it
                error = error or failure
                self.problem = str(failure)
                self._drop_connection()
                break
            else:
                self.problem = None
                self.commits += 1
                self.committed_items += len(batch)
                return
        for item in batch:
            item.outcome, item.woken, item.points = Outcome(error=error), frozenset(), ()

    def _attempt(self, batch: list[_Item]) -> None:
        if self._connection is None:
            self._connection = self._connect()
        connection = self._connection
        connection.begin()
        for item in batch:
            self._run_item(connection, item)
        connection.commit()

    @staticmethod
    def _run_item(connection: WriteConnection, item: _Item) -> None:
        for _ in range(limits.RACED_TRIES_MAX):
            if not isinstance(Writer._try_item(connection, item), Raced):
                return
        raced = item.outcome.error
        assert isinstance(raced, Raced)
        item.outcome = Outcome(error=raced.otherwise)

    @staticmethod
    def _try_item(connection: WriteConnection, item: _Item) -> BaseException | None:
        tx = connection.tx
        tx.woken, tx.points = set(), []
        connection.savepoint()
        try:
            item.outcome = Outcome(item.function(tx))
        except Exception as error:
            if not connection.rollback_to_savepoint():
                raise
            item.outcome, item.woken, item.points = Outcome(error=error), frozenset(), ()
        else:
            connection.release()
            item.woken, item.points = frozenset(tx.woken), tuple(tx.points)
            item.ran_ns = time.monotonic_ns()
        return item.outcome.error

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.rollback()
            connection.close()

    def _measure(self, batch: list[_Item]) -> None:
        """Tells how long the commit took, once nobody waits for it any more; refused functions are not counted."""
        written = [item for item in batch if item.outcome.error is None]
        if self.problem is None and written:
            submitted = [item.submitted_ns for item in written]
            contexts = [item.context for item in written]
            now_ns = time.monotonic_ns()
            _call(self.on_written, Commit(submitted, contexts, written[-1].ran_ns, self.settled_ns, now_ns))

    def _announce(self, batch: list[_Item]) -> None:
        """Tells everybody; a listener that fails is logged, because the others and the writer must live on."""
        for item in batch:
            try:
                for point in item.points:
                    passing(point)
            except FailpointError:  # the answer is lost after the commit, as on a broken line
                item.outcome = Outcome(error=StoreUnavailable(_UNKNOWN))
        woken = frozenset[str]().union(*(item.woken for item in batch))

        def announce() -> None:
            for item in batch:
                _call(item.settle, item.outcome)
            if woken:
                _call(self.on_commit, woken)

        _call(self.deliver, announce)
