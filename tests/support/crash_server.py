"""`python -m tests.support.crash_server FILE|URL`: for each line `LABEL@N`, a child that works on it and dies there.

This process has one thread and no store, so it may fork: each child costs milliseconds, not an interpreter. The child
acknowledges, over a pipe, what it was told has happened. The answer is one line of JSON: the child's exit status and
its acknowledgements.

With `LABEL@N=pause` the child stands still there, which is said with the name of its sessions, and goes on with the
next line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from retoma import failpoints
from retoma.core.task import OnRestart, State
from retoma.core.webhook import Answer
from retoma.store.contract import Store
from retoma.transactions.delete import Delete, delete
from retoma.transactions.instances import Register, register
from retoma.transactions.models import RegisterModel, register_model, remove_model
from retoma.transactions.pairings import OpenPairing, UseCode, open_pairing, use_code
from tests.support.clock import ManualClock, SequentialIds
from tests.support.stores import open_store
from tests.support.world import World, key_of

Acknowledge = Callable[..., None]
LEFT_BEHIND_BY = "dead"
MODEL = RegisterModel("crash-model", "c" * 64, 1, "llama", "file", {}, 0)


def fill(store: Store) -> None:
    """What an earlier instance left behind, finished and unfinished; closes the store."""
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
    pairing(world, acknowledge)
    webhook(world, acknowledge)
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


def webhook(world: World, acknowledge: Acknowledge) -> None:
    """Sent twice: the first receiver fails, the second time it is well."""
    task = world.in_state(State.COMPLETED, priority=-1, webhook="https://example.org/")
    acknowledge("ended", task.id, task.state)
    for answer in (Answer("HTTP 500", 500), Answer("HTTP 200", 200)):
        due_ms = world.message(task.id).next_at_ms
        assert due_ms is not None
        world.clock.advance(due_ms - world.clock.wall_ms())
        (tried,) = world.claim_tries(task.id)
        acknowledge("tried", task.id, tried.number)
        world.answer(tried, answer)
        acknowledge("told", task.id, world.message(task.id).state)


def pairing(world: World, acknowledge: Acknowledge) -> None:
    now_ms = world.clock.wall_ms()
    world.does(open_pairing, OpenPairing(world.ids.new("pair"), "ABCDEFGH", "", frozenset({"admin"}), now_ms))
    client = world.does(use_code, UseCode("ABCDEFGH", world.ids.new("cli"), "phone", bytes(32), now_ms))
    assert client is not None
    acknowledge("paired", client.id)


def work(target: str, failpoint: str, pipe: int) -> None:
    """The child."""

    def acknowledge(*words: Any) -> None:
        os.write(pipe, f"{json.dumps(words)}\n".encode())

    store = open_store(target)
    acknowledge(sessions_of(store))
    failpoints.arm(failpoint)
    flow(World(store, ManualClock(), SequentialIds(2), "instance-1"), acknowledge)
    store.close()


def sessions_of(store: Store) -> str:
    """By what name PostgreSQL knows the sessions of this store."""
    server = getattr(store, "_server", None)
    return server.application_name if server else ""


def die_at(target: str, failpoint: str) -> dict[str, Any]:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work(target, failpoint, write)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - it must be seen, and the child must not go on as its parent
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(99)
    os.close(write)
    with os.fdopen(read) as pipe:
        sessions = pipe.readline()
        # What it acknowledges fits into the pipe's buffer, so that its end can be waited for first.
        _, status = os.waitpid(pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            say({"paused": json.loads(sessions)[0]})
            sys.stdin.readline()
            os.kill(pid, signal.SIGCONT)
            _, status = os.waitpid(pid, 0)
        acknowledged = [json.loads(line) for line in pipe]
    return {"status": os.waitstatus_to_exitcode(status), "acknowledged": acknowledged}


def say(answer: dict[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    while order := sys.stdin.readline():
        say(die_at(sys.argv[1], order.strip()))
