"""Brings a SQLite file to this release's schema, or refuses it untouched.

Each migration says which releases may still read and write a store that has it (`oldest_reader`, `oldest_writer`, in
schema versions). A store with a newer schema is accepted while its oldest writer is not above ours; otherwise it is
refused before a single byte of it is changed. One process migrates at a time: the version is read again under the write
lock.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import apsw

from retoma.errors import Refused, RetomaError
from retoma.store import sqlite
from retoma.store.contract import Tx
from retoma.store.schema import COMPATIBILITY as _COMPATIBILITY
from retoma.store.schema import SCHEMA_VERSION, Migration, Schema, differences, migrations_for, refuse_newer

APPLICATION_ID = 0x52544D41  # "RTMA", so that another program's database is never taken for ours


def migrations() -> list[Migration]:
    """All of this release, in order."""
    return migrations_for("sqlite")


def read_schema(connection: apsw.Connection) -> Schema:
    """The newest migration of an open store; raises Refused for a database that is not Retoma's."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if not tables:
        return Schema(0, 0, 0)
    if connection.pragma("application_id") != APPLICATION_ID or "migrations" not in tables:
        raise Refused("this database belongs to another program; name another file with --store or --data-dir")
    row = connection.execute(
        "SELECT version, oldest_reader, oldest_writer FROM migrations ORDER BY version DESC LIMIT 1"
    ).fetchone()
    assert row is not None
    return Schema(*row)


def require_readable(schema: Schema, path: Path) -> None:
    """Raises Refused if this release can't work on the store."""
    refuse_newer(schema, path, SCHEMA_VERSION)


def prepare(path: Path, now_ms: int) -> Schema:
    """Creates or migrates the store at `path`; raises Refused or StoreUnavailable with the file unchanged."""
    if path.exists() and path.stat().st_size:
        _look(path)
    connection = sqlite.open_connection(path)
    try:
        connection.execute("BEGIN IMMEDIATE")
        schema = read_schema(connection)
        require_readable(schema, path)
        if schema.version < SCHEMA_VERSION:
            _migrate(connection, path, schema, now_ms)
        connection.execute("COMMIT")
        return read_schema(connection)
    except apsw.Error as error:
        raise sqlite.translate(error, path) from error
    finally:
        connection.close()


def _look(path: Path) -> None:
    """Reads the schema without opening the file for writing, so that a refused one keeps its bytes and its folder.

    A reader of a store in WAL mode makes a WAL where there was none. So a file without one is read as if nobody could
    write to it, and again in the usual way if what was found may come from a writer that has just appeared.
    """
    wal = path.with_name(f"{path.name}-wal")
    alone = not wal.exists()
    try:
        _look_once(path, immutable=alone)
    except RetomaError:
        if not alone or not wal.exists():
            raise
        _look_once(path, immutable=False)


def _look_once(path: Path, *, immutable: bool) -> None:
    with reading(path, immutable=immutable):
        pass


@contextmanager
def reading(path: Path, *, immutable: bool) -> Generator[Tx, None, None]:
    """A handle on a store that is not opened for writing; raises Refused if this release can't read it.

    `immutable`: no file is made beside it, so nobody may be writing to it. Each statement has its own view.
    """
    connection = sqlite.open_connection(path, read_only=True, immutable=immutable)
    try:
        require_readable(read_schema(connection), path)
        yield sqlite.SqliteTx(connection, path)
    except apsw.Error as error:
        raise sqlite.translate(error, path) from error
    finally:
        connection.close()


def _migrate(connection: apsw.Connection, path: Path, schema: Schema, now_ms: int) -> None:
    if schema.version:
        _backup(path, schema)
    else:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for migration in migrations():
        if migration.version <= schema.version:
            continue
        connection.execute(migration.sql)
        oldest_reader, oldest_writer = _COMPATIBILITY[migration.version]
        connection.execute(
            "INSERT INTO migrations (version, name, checksum, oldest_reader, oldest_writer, applied_at_ms) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (migration.version, migration.name, migration.checksum, oldest_reader, oldest_writer, now_ms),
        )


def schema_problems(path: Path) -> list[str]:
    """Where the store's tables, indexes and triggers are not those that the migrations make, one sentence each.

    A store with a newer schema is not compared: this release does not know what it should look like.
    """
    connection = sqlite.open_connection(path, read_only=True)
    fresh = apsw.Connection(":memory:")
    try:
        if read_schema(connection).version > SCHEMA_VERSION:
            return []
        for migration in migrations():
            fresh.execute(migration.sql)
        return [*differences(_objects(fresh), _objects(connection)), *_changed_migrations(connection)]
    except apsw.Error as error:
        raise sqlite.translate(error, path) from error
    finally:
        fresh.close()
        connection.close()


def _objects(connection: apsw.Connection) -> dict[str, str]:
    query = "SELECT type || ' ' || name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
    return dict(connection.execute(query))


def _changed_migrations(connection: apsw.Connection) -> list[str]:
    applied = dict(connection.execute("SELECT version, checksum FROM migrations"))
    return [
        f"migration {migration.version} was applied with another text"
        for migration in migrations()
        if applied.get(migration.version, migration.checksum) != migration.checksum
    ]


def _backup(path: Path, schema: Schema) -> None:
    """A consistent copy beside the store, through a second connection that sees the last committed state."""
    source = sqlite.open_connection(path, read_only=True)
    copy = apsw.Connection(f"{path}.before-schema-{schema.version + 1}")
    try:
        with copy.backup("main", source, "main") as backup:
            backup.step()
    finally:
        copy.close()
        source.close()
