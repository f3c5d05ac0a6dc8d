"""`python -m tests.support.instance FILE|URL SPACE`: another process on a store, told what to do line by line.

    accept N        accepts N tasks, one transaction each
    claim           claims until the queue is empty; says the ids
    prepare         migrates the file
    lock            begins to write to the file and holds the lock until the next line, then gives up
    recover DEAD    takes over all that this instance left behind; says how many tasks were moved
    race WISHES…    `cancel:ID` or `complete:ID`, one after the other; says each outcome with its instants

Each answer is one line of JSON. Commands that race begin when all processes have said `ready` and were told `go`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from retoma.errors import IllegalTransition, LeaseLost, Unavailable
from retoma.store.migrate import prepare
from retoma.transactions.cancel import cancel
from retoma.transactions.finish import finish
from retoma.transactions.instances import read_left_behind
from retoma.transactions.recover import Recover, recover
from tests.support.clock import ManualClock, SequentialIds
from tests.support.stores import open_store
from tests.support.world import World


def outcome_of(act: Callable[[], Any]) -> str:
    try:
        return str(act().state)
    except (IllegalTransition, LeaseLost) as refused:
        return type(refused).__name__


def race(world: World, wishes: list[str]) -> list[tuple[str, str, int, int, str]]:
    pairs = [(verb, task_id) for verb, _, task_id in (wish.partition(":") for wish in wishes)]
    tasks = {task_id: world.task(task_id) for _, task_id in pairs}
    acts = [
        partial(world.does, finish, world.finish_command(tasks[task_id]))
        if verb == "complete"
        else partial(world.does, cancel, world.cancel_command(task_id))
        for verb, task_id in pairs
    ]
    say("ready")
    heard()
    found: list[tuple[str, str, int, int, str]] = []
    for (verb, task_id), act in zip(pairs, acts, strict=True):
        began = time.monotonic_ns()
        outcome = outcome_of(act)
        found.append((task_id, verb, began, time.monotonic_ns(), outcome))
    return found


def claim_all(world: World) -> list[str]:
    claimed: list[str] = []
    while (task := world.claim()) is not None:
        claimed.append(task.id)
    return claimed


def recover_all(world: World, dead: str) -> int:
    moved = 0
    while left := world.store.read(partial(read_left_behind, instance_id=dead, limit=10)):
        for task_id in left:
            command = Recover(task_id, dead, world.me, world.clock.wall_ms(), world.ids.op_id())
            moved += world.does(recover, command) is not None
    return moved


def hold_lock(path: str) -> None:
    connection = apsw.Connection(path)
    connection.execute("BEGIN IMMEDIATE")
    say("locked")
    heard()
    connection.execute("ROLLBACK")
    connection.close()


def say(value: Any) -> None:
    sys.stdout.write(f"{json.dumps(value)}\n")
    sys.stdout.flush()


def heard() -> str:
    return sys.stdin.readline().strip()


def obey(target: str, space: int) -> None:
    world: World | None = None
    while words := heard().split():
        verb, *rest = words
        if verb == "prepare":
            try:
                say(prepare(Path(target), 0).version)
            except Unavailable as error:
                say(error.message)
            continue
        if verb == "lock":
            hold_lock(target)
            say("free")
            continue
        if world is None:
            world = World(open_store(target), ManualClock(), SequentialIds(space), f"instance-{space}")
        match verb:
            case "accept":
                say([world.accept().id for _ in range(int(rest[0]))])
            case "claim":
                say(claim_all(world))
            case "recover":
                say(recover_all(world, rest[0]))
            case _:
                say(race(world, rest))
    if world is not None:
        world.store.close()


if __name__ == "__main__":
    obey(sys.argv[1], int(sys.argv[2]))
