"""`python -m tests.support.checkpoints FILE`: from its first line on, makes one checkpoint after the other for ever."""

from __future__ import annotations

import contextlib
import sys

import apsw

if __name__ == "__main__":
    sys.stdin.readline()
    connection = apsw.Connection(sys.argv[1])
    connection.set_busy_timeout(5_000)
    connection.execute("PRAGMA synchronous = OFF; PRAGMA wal_autocheckpoint = 0").fetchall()
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    while True:
        with contextlib.suppress(apsw.Error):
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
