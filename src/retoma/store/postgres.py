"""The PostgreSQL driver, on psycopg 3. It knows databases and no task.

PostgreSQL has many writers at once and groups their commits by itself, so a few writer threads commit one function per
transaction. Every transaction is READ COMMITTED: each locks the row that it is about, and what it reads afterwards, in
new statements, is what others have committed. One that met a lock for too long, a deadlock or a key that has just been
taken is run again from the start. A reading function sees one consistent view (REPEATABLE READ).

Readers are not taken from psycopg_pool: its callers wait while it tries to reconnect after longer and longer pauses; a
read should fail at once while the server is away, and succeed at once when it is back.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import psycopg

from retoma.errors import StoreUnavailable
from retoma.store.contract import Deliver, Elsewhere, OnCommit, OnWritten, Outcome, Settle, Tx, uncounted
from retoma.store.liveness import Liveness
from retoma.store.postgres_liveness import AdvisoryLiveness
from retoma.store.postgres_notify import Listener, Notifier
from retoma.store.postgres_server import ConnectionLost, Server, translate
from retoma.store.postgres_tx import Line, PostgresTx
from retoma.store.writer import Waiting, Writer

T = TypeVar("T")
WRITERS = 4
READERS_MAX = 4
_BEGIN_READING = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_INTEGRITY = b"""
SELECT 'the index ' || indexrelid::regclass || ' is not valid' FROM pg_index
WHERE NOT indisvalid AND indrelid IN (SELECT oid FROM pg_class WHERE relnamespace = current_schema()::regnamespace)
UNION ALL
SELECT 'the trigger ' || tgname || ' is switched off' FROM pg_trigger
WHERE tgenabled <> 'O' AND tgrelid IN (SELECT oid FROM pg_class WHERE relnamespace = current_schema()::regnamespace)
ORDER BY 1
"""
_SIZE = b"""
SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
"""


class PostgresStore:
    """The store on one PostgreSQL database, for instances on any machines. Raises StoreUnavailable or Refused."""

    def __init__(self, url: str) -> None:
        self._server = Server(url)
        self._url = url
        self._notifier = Notifier(self._server)
        self._listener: Listener | None = None
        self._readers: queue.LifoQueue[PostgresTx] = queue.LifoQueue()
        self._places = threading.BoundedSemaphore(READERS_MAX)
        waiting = Waiting()
        self._writers: list[Writer] = []
        try:
            for _ in range(WRITERS):
                self._writers.append(Writer(Line(self._server).connect, batch_max=1, waiting=waiting))
        except BaseException:
            self.close()
            raise
        self.listen(self._writers[0].deliver, lambda _: None)

    def submit(self, function: Callable[[Tx], Any], settle: Settle) -> None:
        """See Store.submit."""
        self._writers[0].submit(function, settle)

    def transact(self, function: Callable[[Tx], T]) -> T:
        """See Store.transact."""
        outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self.submit(function, outcomes.put)
        outcome = outcomes.get()
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    def read(self, function: Callable[[Tx], T]) -> T:
        """See Store.read; a connection that was lost meanwhile is replaced and the function is run again, once."""
        with self._places:
            try:
                return self._read_once(function)
            except ConnectionLost:
                self._close_readers()
            try:
                return self._read_once(function)
            except ConnectionLost as lost:
                raise StoreUnavailable(lost.message) from lost

    def _read_once(self, function: Callable[[Tx], T]) -> T:
        try:
            tx = self._readers.get_nowait()
        except queue.Empty:
            tx = PostgresTx(self._server.connect())
        connection = tx.connection
        try:
            connection.execute(_BEGIN_READING)
            try:
                return function(tx)
            finally:
                connection.execute(b"COMMIT")  # psycopg forgets its prepared statements at a ROLLBACK
        except psycopg.Error as error:
            raise translate(error, connection) from error
        finally:
            if not connection.closed:
                self._readers.put(tx)

    def _close_readers(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._readers.get_nowait().connection.close()

    def listen(self, deliver: Deliver, on_commit: OnCommit, on_written: OnWritten = uncounted) -> None:
        """See Store.listen."""

        def told(task_ids: frozenset[str]) -> None:
            self._notifier.add(task_ids)
            on_commit(task_ids)

        for writer in self._writers:
            writer.deliver, writer.on_commit, writer.on_written = deliver, told, on_written

    def watch(self, on_elsewhere: Elsewhere) -> None:
        """See Store.watch."""
        assert self._listener is None, "one watcher is enough"
        self._listener = Listener(self._server, self._deliver, on_elsewhere)

    def _deliver(self, thunk: Callable[[], None]) -> None:
        self._writers[0].deliver(thunk)

    def give_back(self, settle: Settle, *, all_of_it: bool = False) -> None:  # noqa: ARG002 - autovacuum does it
        """See Store.give_back."""
        self._deliver(lambda: settle(Outcome(0)))

    def liveness(self) -> Liveness:
        """See Store.liveness."""
        return AdvisoryLiveness(self._server)

    def problem(self) -> str | None:
        """What the writer that was the last to end a transaction found wrong."""
        return max(self._writers, key=lambda writer: writer.settled_ns).problem

    def statistics(self) -> dict[str, int]:
        """Commits so far and how many transactions they carried."""
        return {
            "commits": sum(writer.commits for writer in self._writers),
            "transactions": sum(writer.committed_items for writer in self._writers),
        }

    def integrity_problems(self) -> list[str]:
        """What the server's catalogue shows to be wrong, one sentence each; pages are checked by `pg_amcheck`."""
        return [str(line) for (line,) in self._look_up(_INTEGRITY)]

    def size_bytes(self) -> int:
        """Of all tables of the schema, with their indexes."""
        ((size,),) = self._look_up(_SIZE)
        return size

    def _look_up(self, query: bytes) -> list[tuple[Any, ...]]:
        connection = self._server.connect()
        try:
            return connection.execute(query).fetchall()
        except psycopg.Error as error:
            raise StoreUnavailable(str(error)) from error
        finally:
            connection.close()

    def close(self) -> None:
        """See Store.close."""
        for writer in self._writers:
            writer.begin_close()
        for writer in self._writers:
            writer.close()
        self._notifier.close()
        if self._listener is not None:
            self._listener.close()
        self._close_readers()
