"""A store full of texts by strangers who would like to run a script in the operator's browser."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from retoma.core.events import encode_json
from retoma.core.task import OnRestart
from retoma.transactions.clients import Client, add_client
from retoma.transactions.models import RegisterModel, register_model
from tests.support.clock import ManualClock
from tests.support.stores import new_store
from tests.support.world import World

IMAGE = "<img src=x onerror=\"document.title='owned';alert(1)\">"
SCRIPT = "</script></pre></textarea><script>document.title='owned';alert(2)</script>"
BREAKOUT = "\" autofocus onfocus='alert(3)' x=`'&amp;{{7*7}}{% raw %}"
LONG = "w" * 150
EVIL = f"{IMAGE}{SCRIPT}{BREAKOUT}"
MODEL, CLIENT = f"model-{IMAGE}{LONG}"[:200], f"client-{EVIL}"


@dataclass(frozen=True)
class Tasks:
    """Ids, by what became of the task."""

    running: str
    foreground: str
    queued: str
    completed: str
    failed: str


def request_of(**changes: Any) -> str:
    """A request as it is stored, with strangers' words wherever there are words."""
    echo = {"model": MODEL, "background": True, "instructions": EVIL, "metadata": {f"key-{IMAGE}"[:64]: EVIL}}
    return encode_json(
        {
            "echo": echo | {"previous_response_id": None},
            "input": [],
            "messages": [{"role": "system", "content": EVIL}, {"role": "user", "content": f"{SCRIPT}{LONG}"}],
            "generation": {
                "max_output_tokens": None,
                "temperature": 1.0,
                "top_p": 1.0,
                "seed": 7,
                "stop": [IMAGE],
                "truncation": "disabled",
                "format": None,
            },
        }
        | changes
    )


def write_store(data_dir: Path) -> Tasks:
    """Makes the data directory. Its running tasks stay so under a service without workers, which must leave them."""
    data_dir.mkdir(parents=True)
    store = new_store(data_dir)
    now_ms = time.time_ns() // 1_000_000
    world = World(store, clock=ManualClock(now_ms - 60_000))
    client = Client("cli_" + "0" * 31 + "1", CLIENT, frozenset({"responses:write"}))
    digest = hashlib.sha256(b"token").digest()
    store.transact(partial(add_client, client=client, token_hash=digest, now_ms=now_ms - 90_000))
    facts: dict[str, object] = {
        "architecture": EVIL,
        "context_length": 8192,
        "description": {"model": f"llama {IMAGE}"},
    }
    model = RegisterModel(MODEL, "ab" * 32, 135_000_000, "llama", "somewhere", facts, now_ms)
    store.transact(partial(register_model, command=model))

    def begin(policy: OnRestart = OnRestart.RESUME, **changes: Any) -> Any:
        fields = {"model": MODEL, "client_id": client.id, "request": request_of(), **changes}
        world.accept(policy, **fields)
        world.clock.advance(700)
        claimed = world.claim()
        assert claimed is not None
        world.clock.advance(1_500)
        running = world.start(claimed)
        for text in ("\nfirst line ", EVIL, LONG):
            world.clock.advance(400)
            world.append(running, text)
        return running

    running = begin()
    foreground = begin(background=False)
    completed = world.finish(begin())
    failed = begin()
    command = world.finish_command(failed, "failed")
    ending = type(command.ending)("failed", [], code="model_unavailable", message=f"no such model: {EVIL}")
    world.finish(failed, "failed", ending=ending, fold_output=True)
    queued = world.accept(OnRestart.RETRY, model=MODEL, client_id=client.id, request=request_of())
    store.close()
    return Tasks(running.id, foreground.id, queued.id, completed.id, failed.id)
