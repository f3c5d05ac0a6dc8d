"""Transactions on PostgreSQL: the handle that functions are given, and what the writer needs of a connection."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

import psycopg

from retoma.errors import RetomaError, StoreFull, StoreUnavailable
from retoma.failpoints import Failpoint
from retoma.store.contract import Row, Value
from retoma.store.dialect import POSTGRES
from retoma.store.postgres_server import Connection, Server, in_transaction, translate
from retoma.store.statements import Statement
from retoma.store.writer import CommitUnknown

_PARAMETER = re.compile(r":(\w+)")
_NOW_MS = b"SELECT CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS bigint)"
_BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"


def psycopg_text(statement: Statement) -> bytes:
    """The statement as psycopg takes it: `:name` becomes `%(name)s`."""
    return _PARAMETER.sub(r"%(\1)s", statement.render(POSTGRES).replace("%", "%%")).encode()


class PostgresTx:
    """A transaction's handle over a psycopg connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._cursor = connection.cursor()
        self._texts: dict[Statement, bytes] = {}
        self.woken: set[str] = set()
        self.points: list[Failpoint] = []

    def _run(self, text: bytes, params: Mapping[str, Value] | None = None) -> psycopg.Cursor[Row]:
        try:
            return self._cursor.execute(text, params)
        except psycopg.Error as error:
            raise translate(error, self.connection) from error

    def rows(self, statement: Statement, params: Mapping[str, Value]) -> list[Row]:
        """Every row."""
        cursor = self._run(self._text(statement), params)
        return cursor.fetchall() if cursor.description else []

    def row(self, statement: Statement, params: Mapping[str, Value]) -> Row | None:
        """The only row, or None."""
        found = self.rows(statement, params)
        assert len(found) <= 1, f"{statement.name} found {len(found)} rows"
        return found[0] if found else None

    def execute(self, statement: Statement, params: Mapping[str, Value]) -> int:
        """Rows changed."""
        return self._run(self._text(statement), params).rowcount

    def now_ms(self) -> int:
        """The server's clock, as it goes on within the transaction."""
        row = self._run(_NOW_MS).fetchone()
        assert row is not None
        return row[0]

    def wake(self, task_id: str) -> None:
        """Remembered until the commit."""
        self.woken.add(task_id)

    def after_commit(self, point: Failpoint) -> None:
        """Remembered until the commit."""
        self.points.append(point)

    def _text(self, statement: Statement) -> bytes:
        try:
            return self._texts[statement]
        except KeyError:
            return self._texts.setdefault(statement, psycopg_text(statement))


class PostgresWriteConnection:
    """A writer's connection: one function per transaction, so what is undone is always the whole transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.tx = PostgresTx(connection)

    @property
    def pid(self) -> int:
        """Of the session's process on the server."""
        return self._connection.info.backend_pid

    def _run(self, sql: bytes) -> str | None:
        try:
            return self._connection.execute(sql).statusmessage
        except psycopg.Error as error:
            raise translate(error, self._connection) from error

    def begin(self) -> None:
        """Begins a transaction; a connection that was lost meanwhile is noticed here."""
        self._run(_BEGIN)

    def savepoint(self) -> None:
        """Begins anew if an earlier try of the function has undone everything."""
        if not in_transaction(self._connection):
            self.begin()

    def release(self) -> None:
        """After a function that succeeded."""

    def rollback_to_savepoint(self) -> bool:
        """Undoes all; False when the connection is lost, so that the function has to be driven again on another one."""
        if self._connection.closed:
            return False
        self._run(b"ROLLBACK")
        return True

    def commit(self) -> None:
        """COMMIT, unless the function was refused and is undone; any error but a full disk is an unknown outcome."""
        if not in_transaction(self._connection):
            return
        try:
            status = self._run(b"COMMIT")
        except (StoreFull, CommitUnknown):
            raise
        except RetomaError as error:
            raise CommitUnknown(error.message) from error
        if status != "COMMIT":  # what PostgreSQL answers to the COMMIT of a transaction that has met an error
            raise StoreUnavailable("the store has undone the transaction; nothing was written; try again")

    def rollback(self) -> None:
        """Nothing: the connection is closed next, and its session is ended before the next one drives again."""

    def after_batch(self) -> None:
        """Nothing: the server keeps its own house."""

    def close(self) -> None:
        """Closes the connection."""
        with suppress(psycopg.Error):
            self._connection.close()


class Line:
    """One writer's line to the server. However a connection ended, its session is over before the next one begins."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._last_pid: int | None = None

    def connect(self) -> PostgresWriteConnection:
        """A new connection; waits for the server only where a transaction has to be driven again."""
        lost_pid, self._last_pid = self._last_pid, None
        connection = self._server.connect() if lost_pid is None else self._server.connect_again(lost_pid)
        made = PostgresWriteConnection(connection)
        self._last_pid = made.pid
        return made
