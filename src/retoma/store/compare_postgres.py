"""Compares a PostgreSQL schema with one that this release would make now: the second half of `retoma store check`.

The fresh one is made in a schema of its own, within a transaction that is undone, so nobody else ever sees it.
"""

from __future__ import annotations

import logging

import psycopg
from psycopg import sql

from retoma.errors import StoreUnavailable
from retoma.store import schema
from retoma.store.migrate_postgres import changed_migrations, migrations, read_schema
from retoma.store.postgres_server import Connection, Server
from retoma.store.schema import differences

logger = logging.getLogger(__name__)

# Name and text of everything that belongs to a table of the first schema in the search path, and of its functions. The
# pretty forms leave the schema's name out. Other programs' tables may stand beside ours, so each has its table's name.
_OBJECTS = b"""
WITH ours AS (SELECT oid, relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r')
SELECT relname, 'column ' || relname || '.' || attname, concat_ws(
    ' ', format_type(atttypid, atttypmod), CASE WHEN attnotnull THEN 'NOT NULL' END, collname,
    pg_get_expr(adbin, adrelid), attidentity, attgenerated
)
FROM ours
INNER JOIN pg_attribute ON attrelid = ours.oid AND attnum > 0 AND NOT attisdropped
LEFT JOIN pg_collation AS c ON c.oid = attcollation
LEFT JOIN pg_attrdef ON adrelid = ours.oid AND adnum = attnum
UNION ALL
SELECT relname, 'constraint ' || conname || ' of ' || relname, pg_get_constraintdef(pg_constraint.oid, true)
FROM ours INNER JOIN pg_constraint ON conrelid = ours.oid AND contype <> 'n'
UNION ALL
SELECT ours.relname, 'index ' || i.relname, pg_get_indexdef(indexrelid, 0, true)
FROM ours INNER JOIN pg_index ON indrelid = ours.oid INNER JOIN pg_class AS i ON i.oid = indexrelid
UNION ALL
SELECT relname, 'trigger ' || tgname, pg_get_triggerdef(pg_trigger.oid, true)
FROM ours INNER JOIN pg_trigger ON tgrelid = ours.oid AND NOT tgisinternal
UNION ALL
SELECT '', 'function ' || proname, concat_ws(' ', prosrc, CASE WHEN proconfig IS NULL THEN '' ELSE 'search_path' END)
FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
ORDER BY 1, 2
"""
FRESH = "retoma_check_"


def schema_problems(url: str) -> list[str]:
    """Where tables, columns, constraints, indexes, triggers and functions are not those that the migrations make.

    A store with a newer schema is not compared: this release does not know what it should look like. Nor is one whose
    user may not create a schema; the log says so then.
    """
    server = Server(url)
    connection = server.connect()
    try:
        if read_schema(connection).version > schema.SCHEMA_VERSION:
            return []
        return [*_compare(connection, FRESH + server.tag), *changed_migrations(url)]
    except psycopg.Error as error:
        raise StoreUnavailable(f"the store's tables could not be looked at: {error.diag.message_primary}") from error
    finally:
        connection.close()


def _compare(connection: Connection, fresh: str) -> list[str]:
    found = _objects(connection)
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(fresh)))
            connection.execute(sql.SQL("SET LOCAL search_path = {}").format(sql.Identifier(fresh)))
            for migration in migrations():
                connection.execute(migration.sql.encode(), prepare=False)
            expected = _objects(connection)
    except psycopg.errors.InsufficientPrivilege:
        logger.warning("the tables were not compared with fresh ones: the store's user may not create a schema")
        return []
    ours = {table for table, _ in expected}
    return differences(
        {name: text for (_, name), text in expected.items()},
        {name: text for (table, name), text in found.items() if (table, name) in expected or (table and table in ours)},
    )


def _objects(connection: Connection) -> dict[tuple[str, str], str]:
    return {(table, name): text for table, name, text in connection.execute(_OBJECTS, prepare=False)}
