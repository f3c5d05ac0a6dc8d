"""Liveness on PostgreSQL: a session's advisory lock, which the server frees when it loses the session.

A session may also end while its process lives: the server was restarted, a backend was ended, a line was cut. So a
thread stands by its connection and takes the lock again on a new one, at once. For the time in between, a free lock
does not count yet: it counts when it is still free half a second later, and only on a server that has been up for a
while. What else could go wrong, a whole instance declared dead while it lives, costs its work in progress and nothing
else: its next renewal is refused, and so is every write under an old fencing token.
"""

from __future__ import annotations

import hashlib
import threading
import time
from contextlib import suppress

import psycopg

from retoma.errors import StoreUnavailable
from retoma.store.postgres_server import Connection, Server

CONFIRM_S = 0.5
# After a start of the server every living instance is given this long to take its lock again.
SERVER_GRACE_S = 5
_LOOK_EVERY_S = 0.2
_FREE = b"""
SELECT clock_timestamp() - pg_postmaster_start_time() > %s * interval '1 second'
    AND NOT EXISTS (
        SELECT 1 FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 1 AND granted
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND (CAST(classid AS bigint) << 32) + CAST(objid AS bigint) = %s
    )
"""


def key_of(instance_id: str) -> int:
    """The lock's number: 64 bits, signed, of the instance's hash."""
    return int.from_bytes(hashlib.sha256(instance_id.encode()).digest()[:8], signed=True)


class AdvisoryLiveness:
    """Holds one lock on a connection of its own."""

    one_machine = False

    def __init__(self, server: Server) -> None:
        self._server = server
        self._mutex = threading.Lock()
        self._instance_id = ""
        self._connection: Connection | None = None
        self._lost_pid: int | None = None
        self._ended = threading.Event()
        self._keeper: threading.Thread | None = None
        self._probing = threading.Lock()
        self._probe: Connection | None = None

    def hold(self, instance_id: str) -> None:
        """See Liveness.hold."""
        with self._mutex:
            if instance_id != self._instance_id:
                self._instance_id = instance_id
                self._drop()
            self._take()
            if self._keeper is None:
                self._keeper = threading.Thread(target=self._keep, name="retoma-liveness", daemon=True)
                self._keeper.start()

    def is_free(self, instance_id: str) -> bool:
        """See Liveness.is_free."""
        key = key_of(instance_id)
        if not self._looks_free(key):
            return False
        time.sleep(CONFIRM_S)
        return self._looks_free(key)

    def forget(self, instance_id: str) -> None:
        """See Liveness.forget; nothing is left of it here."""

    def release(self) -> None:
        """See Liveness.release."""
        self._ended.set()
        if self._keeper is not None:
            self._keeper.join()
        with self._mutex:
            self._drop()
        with self._probing:
            self._drop_probe()

    def _looks_free(self, key: int) -> bool:
        with self._probing:
            try:
                if self._probe is None:
                    self._probe = self._server.connect()
                row = self._probe.execute(_FREE, (SERVER_GRACE_S, key)).fetchone()
            except psycopg.Error as error:
                self._drop_probe()
                raise StoreUnavailable(f"the store did not say who lives: {error}") from error
        assert row is not None
        return row[0]

    def _drop_probe(self) -> None:
        probe, self._probe = self._probe, None
        if probe is not None:
            probe.close()

    def _take(self) -> None:
        """Makes sure that the lock is held, on a new connection if need be; raises StoreUnavailable."""
        if self._connection is not None and self._answers(self._connection):
            return
        self._drop()
        connection = self._server.connect()
        try:
            if self._lost_pid is not None:
                self._server.end_session(connection, self._lost_pid)
            row = connection.execute(b"SELECT pg_try_advisory_lock(%s)", (key_of(self._instance_id),)).fetchone()
        except psycopg.Error as error:
            connection.close()
            raise StoreUnavailable(f"the store did not give the instance its lock: {error}") from error
        if row != (True,):
            connection.close()
            raise StoreUnavailable("another session holds this instance's lock")
        self._connection, self._lost_pid = connection, connection.info.backend_pid

    @staticmethod
    def _answers(connection: Connection) -> bool:
        try:
            connection.execute(b"SELECT 1")
        except psycopg.Error:
            return False
        return True

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):  # else the lock is free only once the server has seen that the line is closed
                connection.execute(b"SELECT pg_advisory_unlock_all()")
            connection.close()

    def _keep(self) -> None:
        """Looks every now and then, and takes the lock again where it was lost; `hold` tells those who must know."""
        while not self._ended.wait(_LOOK_EVERY_S):
            with self._mutex, suppress(StoreUnavailable):
                self._take()
