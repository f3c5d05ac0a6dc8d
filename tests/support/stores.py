"""Stores for tests: a migrated file is made once and copied."""

from __future__ import annotations

import atexit
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import apsw

from retoma.store.contract import Store, Tx
from retoma.store.migrate import prepare, schema_problems
from retoma.store.sqlite import SqliteStore, SqliteTx, find_integrity_problems
from retoma.transactions.check import check


@cache
def template() -> Path:
    """A file with the present schema and no rows."""
    folder = Path(mkdtemp(prefix="retoma-template-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "retoma.db"
    prepare(path, 0)
    return path


def new_file(folder: Path) -> Path:
    """A fresh store's file in this folder."""
    return Path(shutil.copy(template(), folder / "retoma.db"))


def new_store(folder: Path) -> SqliteStore:
    """A fresh store in this folder; the caller closes it."""
    return SqliteStore(new_file(folder))


def open_store(target: str) -> Store:
    """The store in this file, or at this URL."""
    if not target.startswith("postgresql://"):
        return SqliteStore(Path(target))
    from retoma.store.postgres import PostgresStore  # only where it is needed: other processes of tests start quicker

    return PostgresStore(target)


def plain_tx(path: Path) -> tuple[apsw.Connection, Tx]:
    """A handle outside of any writer, with no fsync: for looking at a file that no process uses."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA synchronous = OFF")
    return connection, SqliteTx(connection, path)


def problems(path: Path) -> list[str]:
    """Everything that the offline checker finds in a file that no process uses."""
    connection, tx = plain_tx(path)
    try:
        found = [f"{one.invariant} {one.task_id} {one.seq} {one.message}" for one in check(tx)]
        return [*found, *find_integrity_problems(connection), *schema_problems(path)]
    finally:
        connection.close()
