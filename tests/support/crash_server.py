"""`python -m tests.support.crash_server TEMPLATE FILE`: for each line `LABEL@N`, a child that dies there.

This process has one thread and no store, so it may fork: each child costs milliseconds, not an interpreter. The child
works on a copy of the template and acknowledges, over a pipe, what it was told has happened. The answer is one line of
JSON: the child's exit status and its acknowledgements.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retoma import failpoints
from retoma.core.task import OnRestart, State
from retoma.store.sqlite import SqliteStore
from retoma.transactions.delete import Delete, delete
from retoma.transactions.instances import Register, register
from retoma.transactions.models import RegisterModel, register_model, remove_model
from tests.support.clock import ManualClock, SequentialIds
from tests.support.world import World, key_of

Acknowledge = Callable[..., None]
LEFT_BEHIND_BY = "dead"
MODEL = RegisterModel("crash-model", "c" * 64, 1, "llama", "file", {}, 0)


def fill_template(path: Path) -> None:
    """What an earlier instance left behind, finished and unfinished."""
    store = SqliteStore(path)
    world = World(store, ids=SequentialIds(1), me=LEFT_BEHIND_BY)
    for policy in OnRestart:
        for state in (State.LOADING, State.RUNNING, State.CANCELLING):
            world.in_state(state, policy)
    world.in_state(State.COMPLETED)
    for policy in OnRestart:
        world.accept(policy)
    store.close()


def flow(world: World, acknowledge: Acknowledge) -> None:
    """Passes every failpoint of the transactions; says after each commit what a client or an owner was told."""
    world.does(register, Register(world.me, "host", "boot-1", os.getpid(), 5_000, 0))
    for task in world.unfinished_of(LEFT_BEHIND_BY):
        moved = world.recover(task)
        assert moved is not None
        acknowledge("moved", moved.id, moved.fencing_token)
    finished = [whole_life(world, acknowledge) for _ in range(2)]
    engine_crash(world, acknowledge)
    cancels(world, acknowledge)
    world.does(register_model, MODEL)
    acknowledge("model", MODEL.name, True)
    world.store.transact(lambda tx: remove_model(tx, MODEL.name))
    acknowledge("model", MODEL.name, False)
    world.does(delete, Delete(finished[0], ""))
    acknowledge("gone", finished[0])
    world.clock.advance(10**9)
    for task_id in world.prune():
        acknowledge("gone", task_id)


def whole_life(world: World, acknowledge: Acknowledge) -> str:
    """Accepted, claimed, run with snapshots, completed. It is urgent, so that what was recovered stays in the queue."""
    task = world.accept(key=key_of(world.ids.op_id()), priority=-1)
    acknowledge("accepted", task.id)
    claimed = world.claim()
    assert claimed is not None
    assert claimed.id == task.id
    acknowledge("moved", task.id, claimed.fencing_token)
    running = world.start(claimed)
    acknowledge("events", task.id, running.last_seq)
    for tokens in range(1, 5):
        acknowledge("events", task.id, world.append(running, f"word {tokens} "))
        world.snapshot(running, tokens)
    done = world.finish(running)
    acknowledge("ended", task.id, done.state)
    return task.id


def engine_crash(world: World, acknowledge: Acknowledge) -> None:
    for policy in OnRestart:
        task = world.in_state(State.RUNNING, policy, priority=-1)
        moved = world.crash(task)
        acknowledge("moved", moved.id, moved.fencing_token)
        if moved.state is State.QUEUED:
            world.cancel(moved.id)


def cancels(world: World, acknowledge: Acknowledge) -> None:
    queued = world.accept(priority=-1)
    acknowledge("ended", queued.id, world.cancel(queued.id).state)
    running = world.in_state(State.RUNNING, priority=-1)
    cancelling = world.cancel(running.id)
    acknowledge("events", running.id, cancelling.last_seq)
    acknowledge("ended", running.id, world.finish(running, "cancelled").state)


def work(path: Path, failpoint: str, pipe: int) -> None:
    """The child: never returns."""

    def acknowledge(*words: Any) -> None:
        os.write(pipe, f"{json.dumps(words)}\n".encode())

    failpoints.arm(failpoint)
    store = SqliteStore(path)
    flow(World(store, ManualClock(), SequentialIds(2), "instance-1"), acknowledge)
    store.close()


def die_at(template: Path, path: Path, failpoint: str) -> dict[str, Any]:
    for old in path.parent.glob(f"{path.name}*"):
        old.unlink()
    shutil.copy(template, path)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work(path, failpoint, write)
            os._exit(0)
        finally:
            os._exit(99)
    os.close(write)
    with os.fdopen(read) as pipe:
        acknowledged = [json.loads(line) for line in pipe]
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"status": status, "acknowledged": acknowledged}


if __name__ == "__main__":
    for line in sys.stdin:
        answer = die_at(Path(sys.argv[1]), Path(sys.argv[2]), line.strip())
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()
