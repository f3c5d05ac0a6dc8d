"""Wake-ups between instances on PostgreSQL.

NOTIFY inside a writing transaction takes a lock that all commits of the database wait for (peers.md: 6,783 commits/s
become 803), so it is sent after the commits, on a connection of its own, once for all that have come together in ten
milliseconds. It names the changed tasks and the store that sends it, so that nobody is woken by itself. A wake-up that
is lost costs latency only: whoever follows a task also looks by itself every few seconds.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from contextlib import suppress
from functools import partial

import psycopg
from psycopg import sql

from retoma.errors import StoreUnavailable
from retoma.store.contract import Deliver, Elsewhere
from retoma.store.postgres_server import Connection, Server

logger = logging.getLogger(__name__)
NOTIFY_EVERY_S = 0.01
PAYLOAD_BYTES_MAX = 7_999
_ANY = "*"
_RETRY_S = 0.5
# How long a listening thread takes to notice that it should end.
_LOOK_EVERY_S = 0.2


def payload_of(tag: str, task_ids: frozenset[str]) -> str:
    """The sender and the changed tasks, or a star for too many to be named."""
    text = " ".join([tag, *sorted(task_ids)])
    return text if len(text.encode()) <= PAYLOAD_BYTES_MAX else f"{tag} {_ANY}"


def read_payload(payload: str) -> tuple[str, frozenset[str] | None]:
    """The sender, and the tasks; None: any task may have changed."""
    tag, _, rest = payload.partition(" ")
    return tag, None if rest == _ANY else frozenset(rest.split())


def _channel(connection: Connection) -> str:
    """One per schema: several stores may share a database."""
    row = connection.execute(b"SELECT current_schema()").fetchone()
    return f"retoma_{hashlib.sha256(str(row).encode()).hexdigest()[:16]}"


class Notifier:
    """Tells the other instances, a moment after the commits, on a thread that begins with the first."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._task_ids: set[str] = set()
        self._wanted = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._channel_name = ""

    def add(self, task_ids: frozenset[str]) -> None:
        """These tasks have changed; returns at once."""
        with self._lock:
            self._task_ids |= task_ids
            if self._thread is None and not self._ended.is_set():
                self._thread = threading.Thread(target=self._run, name="retoma-notify", daemon=True)
                self._thread.start()
        self._wanted.set()

    def close(self) -> None:
        """Sends what is left and ends."""
        self._ended.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()
        self._drop()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._wanted.wait()
            self._wanted.clear()
            self._send()
            self._ended.wait(NOTIFY_EVERY_S)
        self._send()

    def _send(self) -> None:
        with self._lock:
            task_ids, self._task_ids = frozenset(self._task_ids), set()
        if not task_ids:
            return
        payload = payload_of(self._server.tag, task_ids)
        if self._connection is not None:
            try:
                self._notify(self._connection, payload)
            except psycopg.Error:  # it may have been lost long ago, unnoticed
                self._drop()
            else:
                return
        try:
            self._connection = self._open()
            self._notify(self._connection, payload)
        except (psycopg.Error, StoreUnavailable) as error:
            logger.warning("the other instances were not told of a change: %s", error)
            self._drop()

    def _notify(self, connection: Connection, payload: str) -> None:
        connection.execute(b"SELECT pg_notify(%s, %s)", (self._channel_name, payload))

    def _open(self) -> Connection:
        connection = self._server.connect()
        connection.execute(b"SET synchronous_commit = off")  # a wake-up needs no fsync
        self._channel_name = _channel(connection)
        return connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()


class Listener:
    """Hears what the other instances have changed, on a thread of its own."""

    def __init__(self, server: Server, deliver: Deliver, on_elsewhere: Elsewhere) -> None:
        self._server = server
        self._deliver = deliver
        self._on_elsewhere = on_elsewhere
        self._ended = threading.Event()
        self.listening = threading.Event()
        """Set while a connection listens."""
        self._thread = threading.Thread(target=self._run, name="retoma-listen", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        told = False
        while not self._ended.is_set():
            try:
                self._listen()
            except (psycopg.Error, StoreUnavailable) as error:
                if self.listening.is_set() or not told:  # once for each time that the store is away
                    logger.warning("wake-ups from other instances are late until the store is back: %s", error)
                    told = True
            self.listening.clear()
            self._ended.wait(_RETRY_S)

    def _listen(self) -> None:
        with self._server.connect() as connection:
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(_channel(connection))))
            self.listening.set()
            self._tell(None)  # whatever was committed while nobody listened
            while not self._ended.is_set():
                for notification in connection.notifies(timeout=_LOOK_EVERY_S):
                    tag, task_ids = read_payload(notification.payload)
                    if tag != self._server.tag:
                        self._tell(task_ids)

    def _tell(self, task_ids: frozenset[str] | None) -> None:
        try:
            self._deliver(partial(self._on_elsewhere, task_ids))
        except Exception:
            logger.exception("a listener of the store failed")
