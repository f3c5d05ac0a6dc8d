"""Brings a PostgreSQL schema to this release's tables, or refuses it untouched; the rules are those of `migrate`.

Everything happens in the first schema of the connection's search path: `public`, unless the URL says otherwise
(`?options=-csearch_path%3Dretoma`). One process migrates at a time, under an advisory lock that ends with its
transaction; all steps are one transaction, so that one which fails leaves nothing behind.
"""

from __future__ import annotations

import psycopg

from retoma.errors import Refused, RetomaError, StoreUnavailable
from retoma.store import schema
from retoma.store.postgres_server import Connection, Server, translate
from retoma.store.schema import COMPATIBILITY, Migration, Schema, migrations_for, refuse_newer
from retoma.store.writer import Raced

_LOCK_KEY = 0x52544D41  # "RTMA"
# Another process may be in the middle of a long step; readers and writers of the old schema must not wait behind ours.
_MIGRATION_LOCK_MS = 60_000
_TABLE_LOCK_MS = 5_000
# Those of schema 1, which every store of ours has; `outbox` may well be another program's.
_OURS = ("migrations", "service_config", "clients", "models", "instances", "tasks", "task_events", "responses")


def migrations() -> list[Migration]:
    """All of this release, in order."""
    return migrations_for("postgres")


def read_schema(connection: Connection) -> Schema:
    """The newest migration of the store; raises Refused for a database that is not Retoma's."""
    row = connection.execute(b"SELECT current_schema()").fetchone()
    if row is None or row[0] is None:
        raise Refused("the schema that the store's URL names isn't there; create it with CREATE SCHEMA and try again")
    columns = connection.execute(
        b"SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema()"
    ).fetchall()
    if not {table for table, _ in columns} & set(_OURS):
        return Schema(0, 0, 0)
    if ("migrations", "oldest_writer") not in columns:
        raise Refused("this database schema belongs to another program; name another database or schema with --store")
    found = connection.execute(
        b"SELECT version, oldest_reader, oldest_writer FROM migrations ORDER BY version DESC LIMIT 1"
    ).fetchone()
    return Schema(*found) if found else Schema(0, 0, 0)


def prepare(url: str, now_ms: int) -> Schema:
    """Creates or migrates the store at `url`; raises Refused or StoreUnavailable with the database unchanged."""
    server = Server(url)
    connection = server.connect()
    try:
        found = read_schema(connection)
        refuse_newer(found, server.place, schema.SCHEMA_VERSION)
        if found.version < schema.SCHEMA_VERSION:
            _migrate(connection, server, now_ms)
        return read_schema(connection)
    except psycopg.Error as error:
        raise _answer(translate(error, connection)) from error
    finally:
        connection.close()


def _migrate(connection: Connection, server: Server, now_ms: int) -> None:
    with connection.transaction():
        connection.execute(b"SET LOCAL statement_timeout = 0")
        _set_lock_timeout(connection, _MIGRATION_LOCK_MS)
        connection.execute(
            b"SELECT pg_advisory_xact_lock(CAST(%s AS integer), hashtext(current_schema()))", (_LOCK_KEY,)
        )
        _set_lock_timeout(connection, _TABLE_LOCK_MS)
        found = read_schema(connection)  # again: another process may have been first
        refuse_newer(found, server.place, schema.SCHEMA_VERSION)
        for migration in migrations():
            if migration.version > found.version:
                _apply(connection, migration, now_ms)


def _set_lock_timeout(connection: Connection, milliseconds: int) -> None:
    connection.execute(b"SELECT set_config('lock_timeout', %s, true)", (str(milliseconds),))


def _apply(connection: Connection, migration: Migration, now_ms: int) -> None:
    connection.execute(migration.sql.encode(), prepare=False)  # several commands can't be prepared
    oldest_reader, oldest_writer = COMPATIBILITY[migration.version]
    connection.execute(
        b"INSERT INTO migrations (version, name, checksum, oldest_reader, oldest_writer, applied_at_ms) "
        b"VALUES (%s, %s, %s, %s, %s, %s)",
        (migration.version, migration.name, migration.checksum, oldest_reader, oldest_writer, now_ms),
    )


def changed_migrations(url: str) -> list[str]:
    """Which migrations were applied with another text than this release has, one sentence each."""
    connection = Server(url).connect()
    try:
        rows = connection.execute(b"SELECT version, checksum FROM migrations").fetchall()
    except psycopg.Error as error:
        raise _answer(translate(error, connection)) from error
    finally:
        connection.close()
    applied: dict[int, str] = dict(rows)
    return [
        f"migration {migration.version} was applied with another text"
        for migration in migrations()
        if applied.get(migration.version, migration.checksum) != migration.checksum
    ]


def _answer(error: Exception) -> Exception:
    if isinstance(error, Raced):
        error = error.otherwise
    return error if isinstance(error, Refused) or not isinstance(error, RetomaError) else StoreUnavailable(str(error))
