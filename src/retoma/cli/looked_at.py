"""The data directory's store, only looked at: it is not opened for writing, and not one byte of it changes."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from retoma.cli.failures import OperationFailed
from retoma.errors import RetomaError
from retoma.settings import Settings
from retoma.store.contract import Tx

T = TypeVar("T")
Read = Callable[[Callable[[Tx], Any]], Any]
"""Runs one reading function; each has its own view of a store that may be in use."""


def look_at(settings: Settings, function: Callable[[Read], T]) -> T:
    """What `function` makes of the store, which may be in use; raises OperationFailed when there is none.

    A reader of a SQLite file in WAL mode leaves a WAL and its index behind where there were none. So a file without
    them, which nobody uses, is read as if nobody could write to it, and again in the usual way if somebody then does.
    """
    if settings.on_postgres:
        with _server(settings) as read:
            return function(read)
    path = settings.database
    if not path.exists():
        raise OperationFailed(f"there is no store at {path}; `retoma serve` makes one, --data-dir names another place")
    wal = path.with_name(f"{path.name}-wal")
    alone = not wal.exists()
    try:
        with _file(path, alone=alone) as read:
            found = function(read)
    except RetomaError:
        if not alone or not wal.exists():
            raise
    else:
        if not alone or not wal.exists():
            return found
    with _file(path, alone=False) as read:
        return function(read)


@contextmanager
def _file(path: Path, *, alone: bool) -> Generator[Read, None, None]:
    from retoma.store import migrate  # noqa: PLC0415 - brings apsw with it

    with migrate.reading(path, immutable=alone) as tx:
        yield lambda function: function(tx)


@contextmanager
def _server(settings: Settings) -> Generator[Read, None, None]:
    from retoma import bootstrap  # noqa: PLC0415 - brings the database's driver with it

    store = bootstrap.connect_server(settings)
    try:
        yield store.read
    finally:
        store.close()
