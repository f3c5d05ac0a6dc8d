"""How a store reaches its PostgreSQL server: settings of every connection, errors by their codes, lost sessions.

A connection that is lost in the middle of a transaction leaves a session behind that may still commit, or hold its
rows' locks, for as long as the server takes to notice. So whoever drives the same transaction again first ends that
session on the server, by its process id: then the outcome is settled, and looking for the operation id tells it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumper

from retoma.errors import Conflict, InvalidRequest, Refused, RetomaError, StoreFull, StoreUnavailable
from retoma.store.writer import CommitUnknown, Raced

Connection = psycopg.Connection[tuple[Any, ...]]

LOCK_TIMEOUT_MS = 2_000
STATEMENT_TIMEOUT_MS = 30_000
# A process that is stopped in mid-transaction holds rows that others wait for: shorter than a lease (core/lease.py).
IDLE_IN_TRANSACTION_MS = 5_000
RECONNECT_S = 5.0
RECONNECT_EVERY_S = 0.05
# Whoever asks right after a failed try gets its error, so that a long queue is not a long row of time-outs.
FAIL_FAST_S = 0.25
_END_SESSION_MS = 2_000

_CLIENT = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 3,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 6_000,
    "target_session_attrs": "read-write",
}
# The server notices as quickly that a client's machine is gone, and frees its locks.
_SESSION = {
    "lock_timeout": LOCK_TIMEOUT_MS,
    "statement_timeout": STATEMENT_TIMEOUT_MS,
    "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_MS,
    "tcp_keepalives_idle": 5,
    "tcp_keepalives_interval": 2,
    "tcp_keepalives_count": 3,
    "tcp_user_timeout": 6_000,
}
_SESSION_ENDED = re.compile(r"08...|57P0[1-5]|25P0[34]")
_PORTS = re.compile(r"[\d,]*", re.ASCII)
_IN_EACH_OTHERS_WAY = {"40001", "40P01", "55P03"}


class ConnectionLost(CommitUnknown):
    """The connection to the store was lost."""


def translate(error: psycopg.Error, connection: Connection) -> Exception:
    """The error of errors.py, or of the writer, for a driver's error: by its SQLSTATE."""
    state = error.sqlstate or ""
    said = error.diag.message_primary or type(error).__name__
    if _SESSION_ENDED.fullmatch(state) or connection.closed:
        return ConnectionLost(f"the connection to the store was lost: {said}")
    if state == "53100":
        return StoreFull("the disk of the PostgreSQL server is full; free some space and try again")
    if state in _IN_EACH_OTHERS_WAY:
        return Raced(StoreUnavailable("the store is busy with other writers; try again"))
    if state == "23505":
        return Raced(Conflict(f"the store refused the change: {said}"))
    if state.startswith("23"):
        # A CHECK, a trigger or a key has refused what the code above should never have asked for.
        return Conflict(f"the store refused the change: {said}")
    if isinstance(error, psycopg.DataError):
        return InvalidRequest("a text or a number of the request can't be stored; NUL characters can't, for example")
    return StoreUnavailable(f"the store reported an error: {said}")


class Server:
    """One database of a PostgreSQL server; `tag` names this process's use of it. Raises Refused for a broken URL."""

    def __init__(self, url: str) -> None:
        try:
            given = conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            raise Refused("the store's URL can't be read; write postgresql://USER@HOST:PORT/DATABASE") from error
        _refuse_torn(given)
        self.tag = os.urandom(8).hex()
        self.place = f"PostgreSQL at {given.get('host') or 'the local socket'}, database {given.get('dbname') or ''}"
        self.application_name = f"retoma {self.tag}"
        options = " ".join(f"-c {name}={value}" for name, value in _SESSION.items())
        settings = _CLIENT | given
        settings["options"] = f"{options} {given.get('options') or ''}".strip()
        settings["application_name"] = self.application_name
        self._conninfo = make_conninfo("", **settings)
        self._failed: tuple[float, RetomaError] | None = None

    def connect(self) -> Connection:
        """A connection that commits each statement by itself until told otherwise; raises StoreUnavailable."""
        failed = self._failed
        if failed is not None and time.monotonic() - failed[0] < FAIL_FAST_S:
            raise failed[1]
        try:
            connection = psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=0)
            _configure(connection)
        except psycopg.Error as error:
            said = "; ".join(str(error).strip().splitlines())
            away = StoreUnavailable(f"{self.place} can't be reached: {said}")
            self._failed = time.monotonic(), away
            raise away from error
        self._failed = None
        return connection

    def connect_again(self, lost_pid: int) -> Connection:
        """A connection in the place of a lost one, whose session is ended; waits a few seconds for the server."""
        until = time.monotonic() + RECONNECT_S
        while True:
            try:
                connection = self.connect()
                self.end_session(connection, lost_pid)
            except (StoreUnavailable, psycopg.Error) as error:
                if time.monotonic() > until:
                    raise StoreUnavailable(f"{self.place} has not come back: {error}") from error
                time.sleep(RECONNECT_EVERY_S)
            else:
                return connection

    def end_session(self, connection: Connection, pid: int) -> None:
        """Returns once the session is over: what it has not committed by then it never will."""
        connection.execute(
            "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE pid = %s AND application_name = %s",
            (_END_SESSION_MS, pid, self.application_name),
        )


def _refuse_torn(given: Mapping[str, Any]) -> None:
    """A password with an unescaped `@` or `/` tears the URL apart, and error messages would show its pieces."""
    host, port = str(given.get("host") or ""), str(given.get("port") or "")
    if "@" in host.lstrip("@") or not _PORTS.fullmatch(port):
        raise Refused("the store's URL can't be read; write @ : / ? # in its password as %40 %3A %2F %3F %23")


def _configure(connection: Connection) -> None:
    # One type per Python type, whatever the value: one prepared plan per statement, and columns that are compared as
    # what they are.
    connection.adapters.register_dumper(int, Int8Dumper)
    connection.adapters.register_dumper(str, StrDumper)
    row = connection.execute("SHOW synchronous_commit").fetchone()
    if row == ("off",):
        connection.execute("SET synchronous_commit = on")  # a COMMIT that has returned must be durable


def in_transaction(connection: Connection) -> bool:
    """True from BEGIN to COMMIT or ROLLBACK, also after an error."""
    return connection.info.transaction_status in {pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR}
