"""Writes tests/versions/schema_<n>.db: a store as a release with this schema leaves it, and what it must show.

The file is made by real transactions with a fixed clock and fixed ids. Once a release with its schema is out it is
never written again: it stands for the stores that people have, and every later release must read it and go on with it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from retoma.core.task import UNFINISHED, OnRestart, State
from retoma.store.contract import Tx
from retoma.store.migrate import prepare
from retoma.store.schema import SCHEMA_VERSION
from retoma.store.sqlite import SqliteStore
from retoma.transactions.clients import Client, add_client
from retoma.transactions.models import RegisterModel, register_model
from retoma.transactions.read import count_states, read_log, read_response, read_tasks
from retoma.transactions.service import keep_identity
from tests.support.clock import SequentialIds
from tests.support.world import World, key_of
from tools.tree import ROOT

FOLDER = ROOT / "tests" / "versions"
_FAR_MS = 4_000_000_000_000
_MODEL = RegisterModel("corpus-model", "c" * 64, 4_096, "llama", "corpus.gguf", {"parameters": 7}, 1_700_000_000_000)


def corpus() -> list[Path]:
    """The stores of all schemas so far."""
    return sorted(FOLDER.glob("schema_*.db"))


def write_store(path: Path) -> None:
    """A store with every kind of row, and a task for every cell of the restart table."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name) / "work.db"
        prepare(work, 1_700_000_000_000)
        store = SqliteStore(work)
        _fill(World(store, ids=SequentialIds(SCHEMA_VERSION), me="inst_of_the_past"))
        store.close()
        connection = apsw.Connection(str(work))
        connection.execute("VACUUM INTO ?", (str(path),))
        connection.close()


def _fill(world: World) -> None:
    store = world.store
    store.transact(partial(keep_identity, candidate="svc_corpus", now_ms=world.clock.wall_ms()))
    client = Client("cli_1", "the first client", frozenset({"responses:write", "responses:read"}))
    store.transact(partial(add_client, client=client, token_hash=b"t" * 32, now_ms=world.clock.wall_ms()))
    store.transact(partial(register_model, command=_MODEL))
    for policy in OnRestart:
        for state in State:
            if state is State.QUEUED:
                continue  # last, so that they stay in the queue
            task = world.in_state(state, policy, key=key_of(f"{state} {policy}", expires_at_ms=_FAR_MS))
            if state is State.RUNNING:
                world.append(task, "äußerst 漢字 🌊\n", (7, 8))
                world.snapshot(task, 2)
    for policy in OnRestart:
        world.accept(policy, key=key_of(f"queued {policy}", expires_at_ms=_FAR_MS))
    assert {State(state) for state in store.read(count_states)} >= set(UNFINISHED)


def shown(store: SqliteStore) -> list[dict[str, Any]]:
    """What every later release must show of such a store, byte for byte: each task's state, log and response."""
    return store.read(_shown)


def _shown(tx: Tx) -> list[dict[str, Any]]:
    return [
        {
            "id": task.id,
            "state": task.state,
            "on_restart": task.on_restart,
            "last_seq": task.last_seq,
            "events": _digest([text for _, _, text in read_log(tx, task.id, -1, 1_000).events]),
            "output": read_response(tx, task.id).body["output"],
        }
        for task in reversed(read_tasks(tx, state="", client_id="", before="", limit=100))
    ]


def _digest(texts: list[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--replace", action="store_true", help="write the file again; only before its schema is released"
    )
    replace: bool = parser.parse_args().replace
    path = FOLDER / f"schema_{SCHEMA_VERSION}.db"
    if path.exists() and not replace:
        print(f"{path} is there; it stands for the stores that people have", file=sys.stderr)
        raise SystemExit(1)
    path.unlink(missing_ok=True)
    write_store(path)
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "retoma.db"
        copy.write_bytes(path.read_bytes())
        store = SqliteStore(copy)
        path.with_suffix(".json").write_text(json.dumps(shown(store), indent=1, ensure_ascii=False) + "\n")
        store.close()
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
