"""What is wrong with a SQLite file: what the driver's errors mean, and what the database itself finds."""

from __future__ import annotations

from pathlib import Path

import apsw

from retoma.errors import Conflict, Refused, StoreFull, StoreUnavailable


def translate(error: apsw.Error, path: Path) -> Exception:
    """The error of errors.py for a driver's error, by its code."""
    if isinstance(error, apsw.FullError):
        return StoreFull(f"the disk that holds {path} is full; free some space and try again")
    if isinstance(error, apsw.ConstraintError):
        # A CHECK, a trigger or a key has refused what the code above should never have asked for.
        return Conflict(f"the store refused the change: {error}")
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        return Refused(f"{path} is not an intact SQLite database: {error}")
    if isinstance(error, apsw.ReadOnlyError | apsw.CantOpenError | apsw.PermissionsError):
        return StoreUnavailable(f"{path} can't be opened for writing: {error}")
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreUnavailable("the store is busy with other processes; try again")
    return StoreUnavailable(f"the store reported an error: {error}")


def find_integrity_problems(connection: apsw.Connection) -> list[str]:
    """What `integrity_check` and `foreign_key_check` say, one sentence each; empty for an intact file."""
    found = [str(line) for (line,) in connection.execute("PRAGMA integrity_check") if line != "ok"]
    for table, rowid, parent, _ in connection.execute("PRAGMA foreign_key_check"):
        place = "a row" if rowid is None else f"row {rowid}"
        found.append(f"{place} of {table} refers to a row of {parent} that is not there")
    return found
