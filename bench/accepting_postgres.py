"""What accepting costs on PostgreSQL: tasks a second at the store, against bare psycopg on the same server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import psycopg

from bench.accepting import accepting, rate
from retoma.store.migrate_postgres import prepare
from retoma.store.postgres import PostgresStore

CLIENTS = (1, 16)


def measured(url: str) -> dict[str, Any]:
    """Per second, the whole of it in one run; `url` names an empty schema."""
    prepare(url, 0)
    result: dict[str, Any] = {}
    for clients in CLIENTS:
        result[f"raw_one_row_{clients}_clients"] = round(_raw(url, clients))
        result[f"accepted_{clients}_clients"] = round(_accepted(url, clients))
    return result


def _raw(url: str, clients: int) -> float:
    """One row of 1 kB per commit, a connection per client."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(b"CREATE TABLE IF NOT EXISTS bare (id bigserial PRIMARY KEY, body text)")

    def begin() -> Callable[[], object]:
        connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        connections.append(connection)
        return lambda: connection.execute(b"INSERT INTO bare (body) VALUES (%s)", ("x" * 1024,))

    connections: list[psycopg.Connection[Any]] = []
    per_second = rate(clients, begin)
    for connection in connections:
        connection.close()
    return per_second


def _accepted(url: str, clients: int) -> float:
    store = PostgresStore(url)
    act = accepting(store)
    per_second = rate(clients, lambda: act)
    store.close()
    return per_second


if __name__ == "__main__":
    print(measured(sys.argv[1]))
