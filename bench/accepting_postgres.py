"""What accepting costs on PostgreSQL: tasks a second at the store, against bare psycopg on the same server."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg

from retoma.clock import SystemClock
from retoma.core.events import encode_json
from retoma.core.task import OnRestart
from retoma.ids import SystemIds
from retoma.store.migrate_postgres import prepare
from retoma.store.postgres import PostgresStore
from retoma.transactions.accept import Accept, accept

SECONDS = 4.0
CLIENTS = (1, 16)


def measured(url: str) -> dict[str, Any]:
    """Per second, the whole of it in one run; `url` names an empty schema."""
    prepare(url, 0)
    result: dict[str, Any] = {}
    for clients in CLIENTS:
        result[f"raw_one_row_{clients}_clients"] = round(_raw(url, clients))
        result[f"accepted_{clients}_clients"] = round(_accepted(url, clients))
    return result


def _rate(clients: int, begin: Callable[[], Callable[[], object]]) -> float:
    counts = [0] * clients
    end = time.perf_counter() + SECONDS

    def client(index: int) -> None:
        act = begin()
        while time.perf_counter() < end:
            act()
            counts[index] += 1

    threads = [threading.Thread(target=client, args=(index,)) for index in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / SECONDS


def _raw(url: str, clients: int) -> float:
    """One row of 1 kB per commit, a connection per client."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(b"CREATE TABLE IF NOT EXISTS bare (id bigserial PRIMARY KEY, body text)")

    def begin() -> Callable[[], object]:
        connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        connections.append(connection)
        return lambda: connection.execute(b"INSERT INTO bare (body) VALUES (%s)", ("x" * 1024,))

    connections: list[psycopg.Connection[Any]] = []
    rate = _rate(clients, begin)
    for connection in connections:
        connection.close()
    return rate


def _accepted(url: str, clients: int) -> float:
    clock = SystemClock()
    ids = SystemIds(clock)
    store = PostgresStore(url)
    request = encode_json({"echo": {"model": "m"}, "input": "x" * 1024})

    def act() -> None:
        command = Accept(
            task_id=ids.new("resp"),
            client_id="bench",
            model="m",
            background=True,
            stored=True,
            on_restart=OnRestart.RESUME,
            request=request,
            instance_id="bench",
            now_ms=clock.wall_ms(),
            op_id=ids.op_id(),
            queue_max=None,
        )
        store.transact(partial(accept, command=command))

    rate = _rate(clients, lambda: act)
    store.close()
    return rate


if __name__ == "__main__":
    print(measured(sys.argv[1]))
