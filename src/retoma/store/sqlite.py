"""The SQLite driver, on apsw. It knows databases and no task.

apsw carries its own SQLite. Two SQLite libraries in one process on one file lose committed rows silently (closing a
file drops the process's POSIX locks), so the standard library's module is banned here, also in in-process tests.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote

import apsw

from retoma import limits
from retoma.errors import Refused, RetomaError
from retoma.failpoints import Failpoint
from retoma.store.contract import Deliver, Elsewhere, OnCommit, OnWritten, Outcome, Row, Settle, T, Tx, Value, uncounted
from retoma.store.dialect import SQLITE
from retoma.store.liveness import FileLiveness, Liveness
from retoma.store.new_file import new_file
from retoma.store.poll import Poll
from retoma.store.sqlite_errors import find_integrity_problems, translate
from retoma.store.sqlite_space import INCREMENTAL, give_back_step
from retoma.store.statements import Statement
from retoma.store.writer import CommitUnknown, Writer

READERS_MAX = 4
CHECKPOINT_TRIES_MAX = 50  # about 50 ms


def require_safe_library(version: str) -> None:
    """Raises Refused for a SQLite library with the WAL-reset fault, which lets two processes corrupt a database."""
    numbers = tuple(int(part) for part in version.split("."))
    repaired = numbers >= (3, 51, 3) or (3, 50, 7) <= numbers < (3, 51) or (3, 44, 6) <= numbers < (3, 45)
    if not repaired:
        raise Refused(
            f"SQLite {version} can corrupt a database that two processes share; "
            "install apsw 3.51.3 or newer: pip install --upgrade apsw"
        )


def _wait_for_lock(tries: int) -> bool:
    """Busy handler. Evenly spaced retries (`busy_timeout`) starved whole processes, so each wait has another length."""
    jitter_us = time.perf_counter_ns() // 7 % 1200
    time.sleep((300 + jitter_us) / 1e6)
    return tries < limits.BUSY_WAIT_MS_MAX


def _wait_briefly(tries: int) -> bool:
    """Busy handler of a checkpoint: every client of this process waits behind it."""
    return tries < CHECKPOINT_TRIES_MAX and _wait_for_lock(tries)


def open_connection(
    path: Path, *, read_only: bool = False, immutable: bool = False, vfs: str | None = None
) -> apsw.Connection:
    """A connection with every setting that the guarantees rest on; raises Unavailable or Refused.

    `immutable`: reads the file alone and makes no others, so nobody may be writing to it. `vfs` names another file
    layer than the system's, for tests that record or fail its calls.
    """
    require_safe_library(apsw.sqlite_lib_version())
    mode = "ro&immutable=1" if immutable else "ro" if read_only else "rwc"
    try:
        connection = apsw.Connection(
            f"file:{quote(str(path))}?mode={mode}",
            flags=apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE,
            vfs=vfs,
        )
    except apsw.Error as error:
        raise translate(error, path) from error
    try:
        _configure(connection, read_only=read_only or immutable)
    except apsw.Error as error:
        connection.close()
        raise translate(error, path) from error
    return connection


def _configure(connection: apsw.Connection, *, read_only: bool) -> None:
    connection.set_busy_handler(_wait_for_lock)
    if not read_only:
        # Readers see one state while the writer writes, and a commit is one append.
        _enter_wal_mode(connection)
    # FULL: COMMIT returns after the fsync; NORMAL loses acknowledged tasks when power fails.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
    # Checkpoints run in `after_batch`, where their errors are seen; automatic ones swallow them.
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("PRAGMA temp_store = MEMORY")
    # A reader may make the WAL long; it is cut when it begins anew.
    connection.execute(f"PRAGMA journal_size_limit = {limits.WAL_BYTES_KEPT}")


def _enter_wal_mode(connection: apsw.Connection) -> None:
    """Waits by itself: of two processes that open a new file at once, SQLite refuses one without asking the handler.

    Both hold a shared lock by then and want it alone, so that either would wait for the other for ever.
    """
    deadline_s = time.monotonic() + limits.BUSY_WAIT_MS_MAX / 1_000
    while True:
        try:
            if not connection.pragma("page_count"):  # only a new file can be told that it will give space back
                connection.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
            connection.execute("PRAGMA journal_mode = WAL")
        except apsw.BusyError:
            if time.monotonic() > deadline_s:
                raise
            _wait_for_lock(0)
        else:
            return


class SqliteTx:
    """A transaction's handle over an apsw connection."""

    def __init__(self, connection: apsw.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._rendered: dict[str, str] = {}
        self.woken: set[str] = set()
        self.points: list[Failpoint] = []

    def rows(self, statement: Statement, params: Mapping[str, Value]) -> list[Row]:
        """Every row."""
        try:
            return self._connection.execute(self._text(statement), dict(params)).fetchall()
        except apsw.Error as error:
            raise translate(error, self._path) from error

    def row(self, statement: Statement, params: Mapping[str, Value]) -> Row | None:
        """The only row, or None."""
        found = self.rows(statement, params)
        assert len(found) <= 1, f"{statement.name} found {len(found)} rows"
        return found[0] if found else None

    def execute(self, statement: Statement, params: Mapping[str, Value]) -> int:
        """Rows changed."""
        self.rows(statement, params)
        return self._connection.changes()

    def now_ms(self) -> int:
        """The machine's boot clock: a changed wall clock does not move it."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def wake(self, task_id: str) -> None:
        """Remembered until the commit."""
        self.woken.add(task_id)

    def after_commit(self, point: Failpoint) -> None:
        """Remembered until the commit."""
        self.points.append(point)

    def _text(self, statement: Statement) -> str:
        try:
            return self._rendered[statement.name]
        except KeyError:
            return self._rendered.setdefault(statement.name, statement.render(SQLITE))


class SqliteWriteConnection:
    """The writer's connection."""

    def __init__(self, path: Path, vfs: str | None = None) -> None:
        self._path = path
        self._connection = open_connection(path, vfs=vfs)
        self._connection.set_wal_hook(self._note_wal)
        self._wal_pages = 0
        self.checkpoint_is_due = False
        self.tx = SqliteTx(self._connection, path)
        self.checkpoint_problem: str | None = None

    def _note_wal(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _run(self, sql: str) -> None:
        try:
            self._connection.execute(sql)
        except apsw.Error as error:
            raise translate(error, self._path) from error

    def begin(self) -> None:
        """Takes the write lock at once: a lock that is taken later can't be waited for without giving up the view."""
        self._run("BEGIN IMMEDIATE")

    def savepoint(self) -> None:
        """Before one function."""
        self._run("SAVEPOINT item")

    def release(self) -> None:
        """After a function that succeeded."""
        self._run("RELEASE item")

    def rollback_to_savepoint(self) -> bool:
        """After one that failed; False when the database has already rolled back all (a full disk, an I/O error)."""
        if not self._connection.in_transaction:
            return False
        self._run("ROLLBACK TO item")
        self._run("RELEASE item")
        return True

    def commit(self) -> None:
        """COMMIT; any error but a full disk means that the outcome is unknown.

        A full disk is reported by a write to the WAL that came up short. The frame that commits is the last one
        written, so it isn't whole in the file. What fails after it (fsync, the shared index) is an I/O error.
        """
        try:
            self._connection.execute("COMMIT")
        except apsw.FullError as error:
            raise translate(error, self._path) from error
        except apsw.Error as error:
            raise CommitUnknown(str(translate(error, self._path))) from error

    def rollback(self) -> None:
        """Gives up what is open."""
        with suppress(apsw.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def give_back(self, *, under_way: bool, all_of_it: bool) -> int:
        """One step of giving free space back; how many bytes."""
        try:
            return give_back_step(self._connection, under_way=under_way, all_of_it=all_of_it)
        except apsw.Error as error:
            raise translate(error, self._path) from error

    def after_batch(self) -> None:
        """Moves the WAL into the database once it is long; an error is kept for `problem` and tried again next time."""
        if self._wal_pages < limits.CHECKPOINT_PAGES and not self.checkpoint_is_due:
            return
        # A reader that never ends keeps a passive checkpoint from resetting the WAL; a long WAL is then worth a wait.
        long = self._wal_pages > 16 * limits.CHECKPOINT_PAGES
        self._connection.set_busy_handler(_wait_briefly)
        try:
            self._connection.wal_checkpoint(
                mode=apsw.SQLITE_CHECKPOINT_RESTART if long else apsw.SQLITE_CHECKPOINT_PASSIVE
            )
        except apsw.BusyError:
            pass
        except apsw.Error as error:
            self.checkpoint_problem = f"a checkpoint failed: {error}"
        else:
            self.checkpoint_problem = None
            self.checkpoint_is_due, self._wal_pages = False, 0
        finally:
            self._connection.set_busy_handler(_wait_for_lock)

    def close(self) -> None:
        """Closes the connection."""
        with suppress(apsw.Error):
            self._connection.close()


class SqliteStore:
    """The store on one SQLite file. Several processes of one host may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._write_connection: SqliteWriteConnection | None = None
        self._writer = Writer(self._connect)
        self._readers: queue.LifoQueue[SqliteTx] = queue.LifoQueue()
        self._reader_connections: list[apsw.Connection] = []
        self._watch_lock = Lock()
        self._watcher = open_connection(path, read_only=True)
        self._seen_version = self._data_version()
        self._poll: Poll | None = None
        self._giving_back = False

    def _connect(self) -> SqliteWriteConnection:
        self._write_connection = SqliteWriteConnection(self.path)
        return self._write_connection

    def submit(self, function: Callable[[Tx], Any], settle: Settle) -> None:
        """See Store.submit."""
        self._writer.submit(function, settle)

    def transact(self, function: Callable[[Tx], T]) -> T:
        """See Store.transact."""
        outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._writer.submit(function, outcomes.put)
        outcome = outcomes.get()
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    def read(self, function: Callable[[Tx], T]) -> T:
        """See Store.read."""
        tx = self._take_reader()
        try:
            return self._read_on(tx, function)
        finally:
            self._readers.put(tx)

    def _take_reader(self) -> SqliteTx:
        with suppress(queue.Empty):
            return self._readers.get_nowait()
        with self._watch_lock:
            if len(self._reader_connections) < READERS_MAX:
                connection = open_connection(self.path, read_only=True)
                self._reader_connections.append(connection)
                return SqliteTx(connection, self.path)
        return self._readers.get()

    def _read_on(self, tx: SqliteTx, function: Callable[[Tx], T]) -> T:
        connection = tx._connection  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the driver's own two classes
        try:
            connection.execute("BEGIN")
        except apsw.Error as error:
            raise translate(error, self.path) from error
        try:
            return function(tx)
        finally:
            with suppress(apsw.Error):
                connection.execute("ROLLBACK")

    def listen(self, deliver: Deliver, on_commit: OnCommit, on_written: OnWritten = uncounted) -> None:
        """See Store.listen."""
        self._writer.deliver, self._writer.on_commit, self._writer.on_written = deliver, on_commit, on_written

    def _data_version(self) -> int:
        try:
            return self._watcher.pragma("data_version")
        except apsw.Error as error:
            raise translate(error, self.path) from error

    def give_back(self, settle: Settle, *, all_of_it: bool = False) -> None:
        """See Store.give_back."""
        self._writer.submit(lambda _: self._give_back(all_of_it=all_of_it), settle)

    def _give_back(self, *, all_of_it: bool) -> int:
        write = self._write_connection
        assert write is not None, "the writer's thread has a connection"
        given = write.give_back(under_way=self._giving_back, all_of_it=all_of_it)
        write.checkpoint_is_due |= self._giving_back and not given  # which cuts the file
        self._giving_back = bool(given)
        return given

    def watch(self, on_elsewhere: Elsewhere) -> None:
        """See Store.watch."""
        self._poll = Poll(self.changed_elsewhere, lambda: self._writer.deliver(lambda: on_elsewhere(None)))

    def liveness(self) -> Liveness:
        """See Store.liveness."""
        return FileLiveness(self.path.absolute().parent / "instances")

    def changed_elsewhere(self) -> bool:
        """Compares the file's change counter; this process's own commits raise it too, which only costs a look."""
        with self._watch_lock:
            version = self._data_version()
            changed, self._seen_version = version != self._seen_version, version
            return changed

    def problem(self) -> str | None:
        """See Store.problem."""
        connection = self._write_connection
        return self._writer.problem or (connection.checkpoint_problem if connection else None)

    def statistics(self) -> dict[str, int]:
        """Commits so far and how many transactions they carried."""
        return {"commits": self._writer.commits, "transactions": self._writer.committed_items}

    def integrity_problems(self) -> list[str]:
        """What SQLite itself finds wrong with the file (I14), one sentence each; reads all of it."""
        connection = open_connection(self.path, read_only=True)
        try:
            return find_integrity_problems(connection)
        except apsw.Error as error:
            raise translate(error, self.path) from error
        finally:
            connection.close()

    def backup(self, path: Path) -> None:
        """A copy of the last committed state, durable when this returns; no writer waits. Raises as `new_file`."""
        with new_file(path) as staged, closing(open_connection(self.path, read_only=True)) as source:
            try:
                with closing(apsw.Connection(str(staged))) as copy, copy.backup("main", source, "main") as backup:
                    backup.step()  # all pages in one step: from one state, whoever writes meanwhile
            except apsw.Error as error:
                raise translate(error, path) from error

    def close(self) -> None:
        """See Store.close."""
        if self._poll is not None:
            self._poll.close()
        self._writer.close()
        for connection in [*self._reader_connections, self._watcher]:
            with suppress(apsw.Error):
                connection.close()
        # The last to leave moves the WAL into the file, which readers are not allowed to do.
        with suppress(RetomaError):
            open_connection(self.path).close()
