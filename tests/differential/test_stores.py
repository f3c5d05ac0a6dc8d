"""One stream of random commands for a pure oracle, SQLite and PostgreSQL: every reply and every row must be the same.

Each command is composed once and carried out on both. It goes on until for a long while no outcome of a new kind has
come up: a kind is the command, the state of the task that it met, its policy where that decides, and the answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from retoma.core.response import Ending
from retoma.core.task import OnRestart, State
from retoma.errors import RetomaError
from retoma.store.contract import Store
from retoma.store.rows import TaskRow
from retoma.store.sqlite import SqliteStore
from retoma.store.statements import Statement
from retoma.transactions import models
from retoma.transactions.accept import Accepted, accept
from retoma.transactions.append import append
from retoma.transactions.cancel import cancel
from retoma.transactions.claim import Claim, claim
from retoma.transactions.delete import Delete, delete
from retoma.transactions.finish import finish
from retoma.transactions.models import RegisterModel
from retoma.transactions.read import read_response, read_tasks
from retoma.transactions.recover import recover, recover_after_crash
from retoma.transactions.service import ChangeService, change_service, keep_service
from retoma.transactions.snapshots import register_snapshot
from retoma.transactions.start import start
from tests.conftest import SEED
from tests.differential.oracle import Oracle, Pictured
from tests.support import evidence
from tests.support.clock import ManualClock, SequentialIds
from tests.support.postgres import empty, new_postgres_store, new_schema
from tests.support.pruning import Prune, prune
from tests.support.stores import new_file
from tests.support.world import DAY_MS, World, key_of

# Enough when so many commands in a row have shown nothing new; at most so many in all.
QUIET = 200
STEPS_MAX = 4_000
WHOLE_EVERY = 40
BY_POLICY = {"recover", "crash"}
INSTANCES = ("instance-1", "instance-2", "instance-3")
CLIENTS = ("cli_1", "cli_2")
TABLES = {
    "tasks": "id",
    "task_events": "task_id, seq",
    "responses": "id",
    "idempotency_keys": "client_id, key_hash",
    "snapshots": "task_id, fencing_token, tokens",
    "models": "name",
    "service_config": "key",
}
DUMPS = {
    table: Statement(f"test.dump_{table}", "All of it.", f"SELECT * FROM {table} ORDER BY {order}")  # noqa: S608
    for table, order in TABLES.items()
}


@dataclass(frozen=True)
class Step:
    """A composed command: what it is called, whom it meets, the transaction, and the oracle's word for its outcome."""

    name: str
    task_id: str
    act: Callable[..., Any]
    expected: str | None
    may_be_repeated: bool = True


@dataclass(frozen=True)
class Reply:
    """An answer as it was given, and in one word."""

    whole: str
    word: str


def carried_out(store: Store, step: Step) -> Reply:
    try:
        answer = store.transact(step.act)
    except RetomaError as error:
        return Reply(f"{type(error).__name__}: {error.message}", type(error).__name__)
    return Reply(repr(answer), word_of(step.name, answer))


def word_of(name: str, answer: Any) -> str:
    match answer:
        case Accepted():
            return "replayed" if answer.replayed else "queued"
        case TaskRow() if name == "claim":
            return f"loading {answer.id}"
        case TaskRow():
            return str(answer.state)
        case list() if name == "prune":
            return f"pruned {len(answer)}"
        case int() if name == "append":
            return "appended"
        case None:
            return "deleted" if name == "delete" else "nothing"
        case _:
            return "done"


class Both:
    """Both stores, the oracle, and what was seen so far."""

    def __init__(self, sqlite: Store, postgres: Store, rng: Random) -> None:
        self.stores = (sqlite, postgres)
        self.rng = rng
        self.world = World(sqlite, ManualClock(), SequentialIds())  # which composes the commands
        self.oracle = Oracle()
        self.leases: list[TaskRow] = []
        self.ids: list[str] = ["resp_none"]
        self.kinds: dict[tuple[str, ...], int] = {}
        self.taken: list[Step] = []
        self.replies: list[Reply] = []
        for store in self.stores:
            store.transact(partial(keep_service, candidate="svc", now_ms=0))

    def run(self) -> int:
        """How many commands it took."""
        last_new = step_number = 0
        while step_number - last_new < QUIET and step_number < STEPS_MAX:
            step_number += 1
            if self.take_step(step_number):
                last_new = step_number
        self.compare_everything()
        return step_number

    def take_step(self, number: int) -> bool:
        """Carries out one command; True if its outcome is of a new kind."""
        self.world.clock.advance(self.rng.choice((0, 1, 1_000)))
        met_before = {task_id: (task.state, task.policy) for task_id, task in self.oracle.tasks.items()}
        step = self.rng.choice(COMMANDS)(self)
        self.taken.append(step)
        reply = self.same_reply(step)
        self.replies.append(reply)
        if step.expected is not None:
            assert reply.word == step.expected, (number, step, reply)
        if step.may_be_repeated and self.rng.random() < 0.1:  # an unknown commit is driven again
            before = self.rows("tasks")
            self.same_reply(step)
            assert self.rows("tasks") == before, (number, step)
        self.compare_tasks(number, step)
        if number % WHOLE_EVERY == 0:
            self.compare_everything()
        met = met_before.get(step.task_id, ("", ""))
        policy = str(met[1]) if step.name in BY_POLICY else ""
        kind = (step.name, str(met[0]), policy, reply.word.partition(" ")[0])
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        return self.kinds[kind] == 1

    def story(self) -> str:
        """Every command so far and its reply; the last may have none."""
        pairs = zip_longest(self.taken, self.replies)
        return "\n".join(f"{number} {step}\n    → {reply}" for number, (step, reply) in enumerate(pairs, 1))

    def same_reply(self, step: Step) -> Reply:
        first, second = (carried_out(store, step) for store in self.stores)
        assert first == second, step
        return first

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        first, second = (store.read(lambda tx: tx.rows(DUMPS[table], {})) for store in self.stores)
        assert first == second, table
        return first

    def compare_tasks(self, number: int, step: Step) -> None:
        rows = [TaskRow.of(row) for row in self.rows("tasks")]
        held = {
            row.id: (
                row.on_restart,
                row.instance_id,
                row.state,
                row.fencing_token,
                row.attempt,
                row.tokens,
                row.version,
            )
            for row in rows
        }
        known = {
            task_id: (one.policy, one.owner, one.state, one.token, one.attempt, one.tokens, one.version)
            for task_id, one in self.oracle.tasks.items()
        }
        assert held == known, (number, step)

    def compare_everything(self) -> None:
        """Every row of every table, what clients would read, and the checker's opinion."""
        for table in TABLES:
            self.rows(table)
        for task_id in self.oracle.tasks:
            first, second = (store.read(partial(read_response, task_id=task_id)) for store in self.stores)
            assert first == second
        pages = [
            store.read(partial(read_tasks, state="", client_id=CLIENTS[0], before="", limit=50))
            for store in self.stores
        ]
        assert pages[0] == pages[1]
        assert self.world.problems() == World(self.stores[1]).problems() == []

    # Choices

    @property
    def now(self) -> int:
        return self.world.clock.wall_ms()

    def some_id(self) -> str:
        return self.rng.choice(self.ids[-12:])

    def some_lease(self) -> TaskRow:
        """Of an owner: mostly one that is in force, sometimes one that was lost long ago."""
        task = self.rng.choice(self.leases[-8:]) if self.leases else TaskRow(**NOBODY)
        known = self.oracle.tasks.get(task.id)
        if known and self.rng.random() < 0.8:
            return self.world.task(task.id)
        return task

    def some_version(self, task_id: str) -> int | None:
        known = self.oracle.tasks.get(task_id)
        return self.rng.choice((None, None, known.version if known else 1, 1))

    def keep_lease(self, task_id: str) -> None:
        if task_id in self.oracle.tasks:
            self.leases.append(self.world.task(task_id))


NOBODY: dict[str, Any] = dict.fromkeys(TaskRow.__dataclass_fields__, "") | {"id": "resp_none", "fencing_token": 0}


def an_accept(both: Both) -> Step:
    rng, world = both.rng, both.world
    policy, owner, client = rng.choice(list(OnRestart)), rng.choice(INSTANCES), rng.choice(CLIENTS)
    key, body = rng.choice(("", "A", "B", "C", "D")), rng.choice(("body", "body", "body", "other"))
    expires = both.now + rng.choice((0, DAY_MS))
    room = rng.choice((6, 6, 6, 2))
    task = Pictured(
        policy, owner, client=client, model=rng.choice("mn"), priority=rng.choice((0, 0, 1)),
        background=rng.random() < 0.8, stored=rng.random() < 0.8,
    )  # fmt: skip
    command = world.accept_command(
        policy, instance_id=owner, client_id=client, model=task.model, priority=task.priority,
        background=task.background, stored=task.stored, queue_max=room,
        key=key_of(key, body, expires) if key else None,
    )  # fmt: skip
    expected = both.oracle.accept(command.task_id, task, key, body, expires=expires, now=both.now, room=room)
    both.ids.append(command.task_id)
    # A command that was replayed or refused has left nothing to be found by its own id.
    return Step("accept", command.task_id, partial(accept, command=command), expected, expected == "queued")


def a_claim(both: Both) -> Step:
    owner, wanted = both.rng.choice(INSTANCES), both.rng.choice((None, None, frozenset({"n"}), frozenset[str]()))
    command = Claim(owner, both.now, both.world.ids.op_id(), wanted)
    expected = both.oracle.claim(owner, wanted, both.now)
    task_id = expected.partition(" ")[2]

    def act(tx: Any) -> Any:
        return claim(tx, command)

    step = Step("claim", task_id, act, expected, bool(task_id))
    if task_id:
        lease = both.world.task(task_id)
        both.leases.append(TaskRow(**{**fields_of(lease), "fencing_token": lease.fencing_token + 1}))
    return step


def fields_of(task: TaskRow) -> dict[str, Any]:
    return {name: getattr(task, name) for name in TaskRow.__dataclass_fields__}


def a_start(both: Both) -> Step:
    lease = both.some_lease()
    command = both.world.start_command(lease)
    expected = both.oracle.start(lease.id, lease.fencing_token, both.now)
    return Step("start", lease.id, partial(start, command=command), expected, expected == "running")


def an_append(both: Both) -> Step:
    lease = both.some_lease()
    last_seq, drafts = 0, []
    if lease.id in both.oracle.tasks:
        folded = both.world.folded(lease.id)
        last_seq = folded.last_seq
        drafts = folded.output.append(both.rng.choice(("word ", "漢字", "🌊")), (7, 8), both.world.ids.new("msg"))
    after_seq = last_seq - (both.rng.random() < 0.1)
    command = both.world.append_drafts(lease, after_seq, drafts)
    expected = both.oracle.append(lease.id, lease.fencing_token, after_seq, last_seq, 2)
    return Step("append", lease.id, partial(append, command=command), expected, expected == "appended")


def a_finish(both: Both) -> Step:
    lease, status = both.some_lease(), both.rng.choice(("completed", "failed", "cancelled"))
    ending = Ending(status, [], code="internal" if status == "failed" else None)
    whole = {} if status == "completed" and lease.id in both.oracle.tasks else {"ending": ending, "fold_output": True}
    if whole and status == "completed":
        whole = {"ending": Ending("failed", []), "fold_output": True}
        status = "failed"
    world = both.world
    command = world.finish_command(lease, status, **whole) if lease.id in both.oracle.tasks else None
    expected = both.oracle.finish(lease.id, lease.fencing_token, status, both.now)
    if command is None:
        return Step("finish", lease.id, partial(cancel, command=world.cancel_command(lease.id)), "NotFound", False)
    tokens = sum(len(event.tokens) for event in command.before)
    assert not tokens
    return Step("finish", lease.id, partial(finish, command=command), expected, expected == status)


def a_cancel(both: Both) -> Step:
    task_id, client, by_client = both.some_id(), both.rng.choice(("", "", *CLIENTS)), both.rng.random() < 0.8
    version = both.some_version(task_id)
    command = both.world.cancel_command(task_id, client_id=client, version=version, by_client=by_client)
    expected = both.oracle.cancel(task_id, client, version, by_client=by_client, now=both.now)
    return Step("cancel", task_id, partial(cancel, command=command), expected)


def a_recover(both: Both) -> Step:
    task_id, dead, owner = both.some_id(), both.rng.choice(INSTANCES), both.rng.choice(INSTANCES)
    can_work = both.rng.random() < 0.8
    shape = TaskRow(**{**NOBODY, "id": task_id, "instance_id": dead})
    both.world.me = owner
    command = both.world.recover_command(shape, can_work=can_work)
    expected = both.oracle.recover(task_id, dead, owner, both.now, can_work=can_work)
    both.keep_lease(task_id)
    # Nobody recovers from itself: an instance that begins anew has a new name.
    repeated = expected != "nothing" and owner != dead
    return Step("recover", task_id, partial(recover, command=command), expected, repeated)


def a_crash(both: Both) -> Step:
    lease = both.some_lease()
    both.world.me = owner = both.rng.choice(INSTANCES)
    command = both.world.crash_command(lease)
    expected = both.oracle.crash(lease.id, lease.fencing_token, owner, both.now)
    return Step("crash", lease.id, partial(recover_after_crash, command=command), expected)


def a_delete(both: Both) -> Step:
    task_id, client = both.some_id(), both.rng.choice(("", "", *CLIENTS))
    version = both.some_version(task_id)
    expected = both.oracle.delete(task_id, client, version)
    return Step("delete", task_id, partial(delete, command=Delete(task_id, client, version)), expected, False)


def a_prune(both: Both) -> Step:
    retention = both.rng.choice(("stored", "unstored"))
    before, now = both.now + both.rng.choice((-2_000, 1)), both.now + both.rng.choice((0, 2 * DAY_MS))
    limit = both.rng.choice((1, 3))
    expected = both.oracle.prune(retention, before, now, limit)
    return Step("prune", "", partial(prune, command=Prune(retention, before, now, limit)), expected, False)


def a_snapshot(both: Both) -> Step:
    """Only the two stores are compared here: the oracle knows no files."""
    lease = both.some_lease()
    command = both.world.snapshot_command(lease, both.rng.choice((1, 2, 3)))
    return Step("snapshot", lease.id, partial(register_snapshot, command=command), None, False)


def a_change_of_a_model(both: Both) -> Step:
    name, digest = both.rng.choice("mn"), both.rng.choice("ab") * 64
    state = both.rng.choice(("available", "corrupt"))
    act: Callable[..., Any] = both.rng.choice(
        (
            partial(models.register_model, command=RegisterModel(name, digest, 1, "llama", "f", {"é": [1]}, both.now)),
            partial(models.remove_model, name=name, version=both.rng.choice((None, 1, 2))),
            partial(models.set_model_state, name=name, state=state),
            partial(models.add_model_facts, name=name, facts={"n": both.rng.randrange(3)}),
        )
    )
    return Step(f"model.{act.func.__name__}", "", act, None, False)


def a_change_of_the_service(both: Both) -> Step:
    changes = both.rng.choice(({"queue_max": 3}, {"name": "漢"}, {"name": None}, {"retention_days": 0.1}, {"bad": 1}))
    command = ChangeService(changes, both.rng.choice((None, 1, 2, 3)), both.now, both.world.ids.op_id())
    return Step("service", "", partial(change_service, command=command), None)


COMMANDS: list[Callable[[Both], Step]] = [
    *[an_accept] * 3, *[a_claim] * 3, *[a_start] * 4, *[an_append] * 3, *[a_finish] * 2, *[a_cancel] * 2,
    *[a_recover] * 3, *[a_crash] * 2, a_delete, a_prune, a_snapshot, a_change_of_a_model, a_change_of_the_service,
]  # fmt: skip


@contextmanager
def both_stores(url: str) -> Iterator[tuple[SqliteStore, Any]]:
    memory = Path("/dev/shm")  # noqa: S108 - where a sync costs nothing
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        sqlite, postgres = SqliteStore(new_file(Path(folder))), new_postgres_store(new_schema(url))
        try:
            empty(postgres)
            yield sqlite, postgres
        finally:
            sqlite.close()
            postgres.close()


@pytest.mark.requirement("S-002", "S-003", "P-11.2-cancel")
def test_sqlite_postgresql_and_the_oracle_agree_on_every_reply_and_every_row(postgres: str, rng: Random) -> None:
    with both_stores(postgres) as (sqlite, away):
        both = Both(sqlite, away, rng)
        evidence.keep("commands.txt", both.story)
        steps = both.run()
    sys.stdout.write(f"seed {SEED}: {steps} commands, {len(both.kinds)} kinds of outcome\n")
    assert steps < STEPS_MAX, "there was still something new to see"
    states = {kind[1] for kind in both.kinds}
    assert states >= set(State), "some state was never met"
    words = {kind[3] for kind in both.kinds}
    assert words >= {
        *("queued", "replayed", "IdempotencyConflict", "QueueFull", "nothing", "loading", "running", "appended"),
        *("completed", "failed", "cancelled", "cancelling", "LeaseLost", "IllegalTransition", "NotFound"),
        *("StaleVersion", "RequestError", "TaskUnfinished", "deleted", "pruned", "Conflict", "ModelNotFound"),
    }
