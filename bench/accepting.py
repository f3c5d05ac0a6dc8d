"""What accepting costs: the time to the 202 while an engine is busy, tasks a second, memory of an idle service."""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from bench.generating import PROMPT, demo_model
from bench.service import running
from retoma.clock import SystemClock
from retoma.core.events import encode_json
from retoma.core.task import OnRestart
from retoma.ids import SystemIds
from retoma.store.contract import Store
from retoma.store.migrate import prepare
from retoma.store.sqlite import SqliteStore
from retoma.transactions.accept import Accept, accept

POSTS = 100
BUSY_TOKENS = 5
SECONDS = 3.0


def latency_while_busy() -> dict[str, Any]:
    """Milliseconds from POST to 202, the engine generating all the while, beside an fsync of the same disk."""
    with running({}, demo_model()) as service:
        busy = service.create(model="bench", input=PROMPT, background=True, temperature=0, max_output_tokens=3000)
        service.create(model="bench", input=PROMPT, background=True, temperature=0, max_output_tokens=3000)
        while service.client.get(f"/v1/tasks/{busy['id']}").json()["output_tokens"] < BUSY_TOKENS:
            time.sleep(0.05)
        posts: list[float] = []
        fsyncs: list[float] = []
        for _ in range(POSTS):
            fsyncs.append(_fsync_ms(service.data_dir))
            began = time.perf_counter()
            service.create(model="bench", input=PROMPT, background=True)
            posts.append((time.perf_counter() - began) * 1000)
        state = service.client.get(f"/v1/responses/{busy['id']}").json()["task"]["state"]
        post, fsync = statistics.median(posts), statistics.median(fsyncs)
        return {
            "engine_was": state,
            "post_to_202_ms": round(post, 2),
            "fsync_ms": round(fsync, 2),
            "bound_ms": round(3 * fsync + 5, 2),
        }


def throughput() -> dict[str, Any]:
    """Accepted tasks a second at the store, against one-row commits of raw SQLite on the same disk."""
    result: dict[str, Any] = {"raw_sqlite_1_client": round(_raw())}
    for clients in (1, 16):
        with tempfile.TemporaryDirectory(prefix="retoma-bench-") as folder:
            result[f"accepted_{clients}_clients"] = round(_accepted(Path(folder) / "retoma.db", clients))
    return result


def idle_memory() -> dict[str, Any]:
    """MiB of a service that has served one request and has no engine loaded."""
    with running({"SCRIPTED": "1", "WORKERS": "0"}) as service:
        service.create(model="scripted", input="hello", background=True)
        return {"resident_mib": round(service.resident_kib() / 1024, 1)}


def _fsync_ms(folder: Path) -> float:
    """One 4 KiB append and its fdatasync."""
    fd = os.open(folder / "probe", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, b"x" * 4096)
        began = time.perf_counter()
        os.fdatasync(fd)
        return (time.perf_counter() - began) * 1000
    finally:
        os.close(fd)


def _raw() -> float:
    with tempfile.TemporaryDirectory(prefix="retoma-bench-") as folder:
        connection = apsw.Connection(f"{folder}/raw.db")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, body TEXT)")
        body, done, end = "x" * 1024, 0, time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            connection.execute("INSERT INTO t (body) VALUES (?)", (body,))
            done += 1
        connection.close()
        return done / SECONDS


def _accepted(path: Path, clients: int) -> float:
    prepare(path, SystemClock().wall_ms())
    store = SqliteStore(path)
    act = accepting(store)
    per_second = rate(clients, lambda: act)
    store.close()
    return per_second


def accepting(store: Store) -> Callable[[], object]:
    """What a client does over and over: one accept of 1 kB, to its commit."""
    clock = SystemClock()
    ids = SystemIds(clock)
    request = encode_json({"echo": {"model": "m"}, "input": "x" * 1024})

    def act() -> object:
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
        return store.transact(partial(accept, command=command))

    return act


def rate(clients: int, begin: Callable[[], Callable[[], object]]) -> float:
    """How often per second `clients` threads together do what `begin` gives each of them."""
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
