"""The WAL-reset fault of SQLite below 3.51.3: the versions that have it are refused, and the one in use survives it.

The pattern that corrupts an older library within seconds: a second process makes one checkpoint after the other and is
stopped in the middle of one; meanwhile the first commits, which begins the WAL anew; then the second goes on with what
it knew before.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from random import Random

import apsw
import pytest

from retoma.errors import Refused
from retoma.store.sqlite import require_safe_library
from tests.support import processes

SECONDS = 4.0
CYCLES_MIN = 50
BYTES = 600

VERSIONS = {
    "3.7.0": False,
    "3.44.5": False,
    "3.44.6": True,
    "3.44.9": True,
    "3.45.0": False,
    "3.46.1": False,
    "3.50.6": False,
    "3.50.7": True,
    "3.51.0": False,
    "3.51.2": False,
    "3.51.3": True,
    "3.52.0": True,
    "4.0.0": True,
}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_library_with_the_fault_is_refused_and_no_other(version: str) -> None:
    if VERSIONS[version]:
        require_safe_library(version)
    else:
        with pytest.raises(Refused, match="can corrupt a database that two processes share"):
            require_safe_library(version)


def test_the_library_in_use_is_one_without_the_fault() -> None:
    require_safe_library(apsw.sqlite_lib_version())


def connect(path: Path) -> apsw.Connection:
    """As a writer would, but without syncs and automatic checkpoints: more rounds in a second."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(5_000)
    connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA wal_autocheckpoint = 0").fetchall()
    return connection


class Rows:
    """A table with an index, and how many rows it must have."""

    def __init__(self, connection: apsw.Connection, rng: Random) -> None:
        self._connection = connection
        self._rng = rng
        self.count = 0
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, b TEXT); CREATE INDEX i ON t (b)").fetchall()

    def commit(self, rows: int) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        for _ in range(rows):
            self.count += 1
            value = self._rng.randbytes(BYTES // 2).hex()
            self._connection.execute("INSERT INTO t VALUES (?, ?)", (self.count, value))
        self._connection.execute("COMMIT")

    def are_all_there(self) -> bool:
        found = self._connection.execute("SELECT count(*), max(id) FROM t").fetchall()
        return found == [(self.count, self.count)]


def pause_for(seconds: float) -> None:
    """A checkpoint of the other process takes about so long; nothing can be waited for that would tell."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


@pytest.mark.requirement("S-002")
def test_a_checkpoint_that_stands_still_while_the_wal_begins_anew_corrupts_nothing(tmp_path: Path, rng: Random) -> None:
    path = tmp_path / "t.db"
    checkpoints = processes.python("tests.support.checkpoints", str(path))
    connection = connect(path)
    rows = Rows(connection, rng)
    processes.tell(checkpoints, "go")
    assert processes.line(checkpoints) == "begun"
    cycles = resets = 0
    until = time.monotonic() + SECONDS
    try:
        while time.monotonic() < until:
            cycles += 1
            rows.commit(60)
            pause_for(0.0012 + rng.random() * 0.0004)
            os.kill(checkpoints.pid, signal.SIGSTOP)
            before = _wal_header(path)
            for _ in range(3):
                rows.commit(1)
            resets += _wal_header(path) != before
            os.kill(checkpoints.pid, signal.SIGCONT)
            pause_for(0.0004)
            assert rows.are_all_there(), f"rows are lost after {cycles} rounds"
            if cycles % 100 == 0:
                assert connection.execute("PRAGMA integrity_check(3)").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA integrity_check(3)").fetchall() == [("ok",)]
    finally:
        os.kill(checkpoints.pid, signal.SIGCONT)
        checkpoints.kill()
        checkpoints.communicate()
        connection.close()
    assert cycles >= CYCLES_MIN
    assert resets >= 10, "the WAL hardly ever began anew while the other process stood still"


def _wal_header(path: Path) -> bytes:
    """Changes with every WAL that is begun anew. The -wal file may be read; it is -shm that nobody may open."""
    with path.with_name(f"{path.name}-wal").open("rb") as wal:
        return wal.read(32)
