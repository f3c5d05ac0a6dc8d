"""`python -m tests.support.postgres_instance URL SPACE`: another process on a PostgreSQL store, told by lines.

prepare       migrates the schema; says its version
accept KEY    accepts a task under an idempotency key; says its id
claim         claims until the queue is empty; says the ids
hold ID       holds an instance's liveness lock
"""

from __future__ import annotations

import json
import sys
from typing import Any

from retoma.store.migrate_postgres import prepare
from retoma.store.postgres import PostgresStore
from retoma.transactions.accept import accept
from tests.support.clock import ManualClock, SequentialIds
from tests.support.world import World, key_of


def obey(url: str, space: int) -> None:
    world: World | None = None
    while words := sys.stdin.readline().split():
        if words[0] == "prepare":
            say(prepare(url, 0).version)
            continue
        if world is None:
            world = World(PostgresStore(url), ManualClock(), SequentialIds(space), f"instance-{space}")
        match words:
            case ["accept", key]:
                say(world.does(accept, world.accept_command(key=key_of(key))).task_id)
            case ["claim"]:
                claimed: list[str] = []
                while (task := world.claim()) is not None:
                    claimed.append(task.id)
                say(claimed)
            case ["hold", instance_id]:
                world.store.liveness().hold(instance_id)
                say("held")
            case _:
                raise ValueError(words)
    if world is not None:
        world.store.close()


def say(value: Any) -> None:
    sys.stdout.write(f"{json.dumps(value)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    obey(sys.argv[1], int(sys.argv[2]))
