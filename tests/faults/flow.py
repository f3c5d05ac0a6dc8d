"""What a process does whose disk fails: real transactions and real files, as a list of steps that can be done again.

The steps are found out once, on a sound disk, with what the store holds before each of them. Clock and ids are the
same in every run, so whatever happens, the store must hold exactly what it held before one of two neighbouring steps:
a step has happened as a whole or not at all.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw

from retoma.blobs.models import ModelFiles
from retoma.blobs.snapshots import SnapshotFolder
from retoma.core.task import OnRestart, State
from retoma.engines import snapshots
from retoma.engines.snapshots import Snapshot, SnapshotKey
from retoma.errors import ModelNotFound, NotFound
from retoma.store.contract import Store, Tx
from retoma.store.sqlite import SqliteStore, find_integrity_problems, open_connection
from retoma.transactions.accept import accept
from retoma.transactions.append import append
from retoma.transactions.cancel import cancel
from retoma.transactions.check import check
from retoma.transactions.check_files import Folders, check_files
from retoma.transactions.claim import claim
from retoma.transactions.delete import Delete, delete
from retoma.transactions.finish import finish
from retoma.transactions.instances import Register, register
from retoma.transactions.models import RegisterModel, read_models, register_model, remove_model
from retoma.transactions.read import read_states
from retoma.transactions.recover import recover, recover_after_crash
from retoma.transactions.snapshots import read_snapshot_paths, register_snapshot
from retoma.transactions.start import start
from tests.support.clock import ManualClock, SequentialIds
from tests.support.pruning import Prune, prune
from tests.support.stores import plain_tx
from tests.support.world import World, key_of

LEFT_BEHIND_BY = "dead"
KEY = SnapshotKey("print", "prompt")
MODEL_BYTES = b"GGUF" + bytes(range(256)) * 40
KEPT, REMOVED = "kept-model", "removed-model"


@dataclass(frozen=True, slots=True)
class Step:
    """A transaction, and what is done with files around it (`what`)."""

    what: str
    call: partial[Any]

    def __str__(self) -> str:
        return f"{self.what} {self.call.func.__name__}"


@dataclass(frozen=True, slots=True)
class Plan:
    """All steps, and what the store holds before each and after the last."""

    steps: list[Step]
    calls: list[int]
    """How many calls each step makes on a sound disk, with the checkpoint that may follow it."""
    contents: list[str]
    without_snapshots: list[str]
    """The contents without the table of the snapshots: a disk may refuse one, and nothing but time is lost."""


class Files:
    """The folders beside the store. The file that models are imported from lies outside of what can fail."""

    def __init__(self, data_dir: Path) -> None:
        self.source = data_dir.with_name("source.gguf")
        self.models = ModelFiles(data_dir / "models")
        self.snapshots = SnapshotFolder(data_dir / "snapshots")


def state_of(tokens: int) -> bytes:
    return sha256(str(tokens).encode()).digest() * 200


def digest() -> str:
    return sha256(MODEL_BYTES).hexdigest()


def fill(path: Path) -> None:
    """What an earlier instance left behind: one task for each thing that a recovery does."""
    store = SqliteStore(path)
    world = World(store, ids=SequentialIds(1), me=LEFT_BEHIND_BY)
    world.in_state(State.RUNNING, OnRestart.RESUME)
    world.in_state(State.RUNNING, OnRestart.FAIL)
    world.in_state(State.LOADING, OnRestart.RETRY)
    world.in_state(State.CANCELLING)
    world.accept(OnRestart.FAIL)
    store.close()


def world_of(store: Store, space: int = 2) -> World:
    return World(store, ManualClock(), SequentialIds(space), "instance-1")


def flow(world: World) -> Iterator[Step]:
    """Every kind of transaction, and every kind of file. Each step must have been done before the next is asked for."""
    yield Step("", partial(register, command=Register(world.me, "host", "boot-1", 1, 5_000, 0)))
    for task in world.unfinished_of(LEFT_BEHIND_BY):
        yield Step("", partial(recover, command=world.recover_command(task)))
    for name in (KEPT, REMOVED):
        model = RegisterModel(name, digest(), len(MODEL_BYTES), "llama", "file", {}, 0)
        yield Step("import", partial(register_model, command=model))
    yield Step("remove", partial(remove_model, name=REMOVED))
    task_id = yield from whole_life(world)
    yield from crash_then_cancel(world)
    yield Step("end", partial(delete, command=Delete(task_id, "")))
    world.clock.advance(10**9)
    now_ms = world.clock.wall_ms()
    yield Step("prune", partial(prune, command=Prune("stored", now_ms, now_ms, 100)))


def whole_life(world: World) -> Iterator[Step]:
    """Accepted, claimed, run with snapshots, completed. It is urgent: what was recovered stays in the queue."""
    wanted = world.accept_command(key=key_of("one"), priority=-1)
    yield Step("", partial(accept, command=wanted))
    yield Step("", partial(claim, command=world.claim_command()))
    task = world.task(wanted.task_id)
    yield Step("", partial(start, command=world.start_command(task)))
    for tokens in range(1, 4):
        yield Step("", partial(append, command=world.append_command(task, f"word {tokens} ")))
        size = snapshot_bytes(tokens)
        row = replace(world.snapshot_command(task, tokens), size_bytes=size)
        yield Step("snapshot", partial(register_snapshot, command=row))
    yield Step("end", partial(finish, command=world.finish_command(task)))
    return task.id


def crash_then_cancel(world: World) -> Iterator[Step]:
    """An engine dies and the text begins anew; a client cancels it; the owner confirms."""
    wanted = world.accept_command(OnRestart.RETRY, priority=-1)
    yield Step("", partial(accept, command=wanted))
    for crashes in (True, False):
        yield Step("", partial(claim, command=world.claim_command()))
        task = world.task(wanted.task_id)
        yield Step("", partial(start, command=world.start_command(task)))
        if crashes:
            yield Step("", partial(recover_after_crash, command=world.crash_command(task)))
    yield Step("", partial(cancel, command=world.cancel_command(task.id)))
    yield Step("end", partial(finish, command=world.finish_command(task, "cancelled")))


def snapshot_bytes(tokens: int) -> int:
    """How long the file is."""
    head = 8 + 4 + 4 * 32 + 8 + 8 + 32
    return head + len(state_of(tokens))


def do(step: Step, store: Store, files: Files, *, again: bool = False) -> None:  # noqa: C901 - a case a kind
    """As the service and the command line do it: files before their row, rows before their files' removal.

    A step that is done again may find that it has deleted its subject already.
    """
    command = step.call.keywords.get("command")
    try:
        match step.what:
            case "import":
                imported = files.models.import_file(files.source, lambda _done, _size: None)
                assert imported.digest == command.digest
                store.transact(step.call)
            case "remove":
                unused = store.transact(step.call)
                if unused is not None:
                    files.models.remove(unused)
            case "snapshot":
                path = files.snapshots.absolute(command.path)
                if snapshots.write(path, KEY, list(range(command.tokens)), state_of(command.tokens)) is not None:
                    files.snapshots.remove(store.transact(step.call))
            case "end":
                store.transact(step.call)
                files.snapshots.remove_all(command.task_id)
            case "prune":
                for task_id in store.transact(step.call):
                    files.snapshots.remove_all(task_id)
            case _:
                store.transact(step.call)
    except (NotFound, ModelNotFound):
        if not again:
            raise


def find_plan(data_dir: Path, calls: Callable[[], int]) -> Plan:
    """Does every step on a sound disk and writes down how. Beside the directory it leaves a copy of each state."""
    path = data_dir / "retoma.db"
    store, files = SqliteStore(path), Files(data_dir)
    plan = Plan([], [], [], [])
    counted = 0

    def note() -> None:
        nonlocal counted
        store.transact(lambda _: None)  # comes behind the checkpoint of the last step
        plan.calls.append(calls() - counted)
        counted = calls()
        plan.contents.append(content(path))
        plan.without_snapshots.append(content(path, leave_out="snapshots"))
        shutil.copytree(data_dir, state_before(data_dir, len(plan.steps)), ignore=shutil.ignore_patterns("*-shm"))

    note()
    for step in flow(world_of(store)):
        do(step, store, files)
        plan.steps.append(step)
        note()
    store.close()
    return replace(plan, calls=plan.calls[1:])


def state_before(data_dir: Path, number: int) -> Path:
    """The data directory as it is before a step, with a WAL that was not moved into the file yet."""
    return data_dir.with_name(f"before-{number}")


def content(path: Path, leave_out: str = "") -> str:
    """A digest of every row that a restart must not change. Leases are counted on a clock that nobody can hold."""
    connection = open_connection(path, read_only=True)
    try:
        return digest_of(connection, leave_out)
    finally:
        connection.close()


def digest_of(connection: apsw.Connection, leave_out: str = "") -> str:
    tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT IN ('migrations', 'instances', ?)"
    sha = sha256()
    for (table,) in connection.execute(f"{tables} ORDER BY name", (leave_out,)).fetchall():
        rows = connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()  # noqa: S608
        sha.update(repr((table, rows)).encode())
    return sha.hexdigest()


@dataclass(frozen=True, slots=True)
class Seen:
    """What somebody finds who opens a data directory after a crash."""

    content: str
    without_snapshots: str
    tasks: dict[str, tuple[str, int]]
    """By id, the state and the number of the last event."""
    problems: list[str]


def look(data_dir: Path) -> Seen:
    """Opens a directory that nobody uses: its rows, and everything that is wrong with them and with their files."""
    connection, tx = plain_tx(data_dir / "retoma.db")
    try:
        connection.execute("BEGIN")
        wrong = [f"{one.invariant} {one.task_id} {one.message}" for one in check(tx)]
        wrong += find_integrity_problems(connection) + file_problems(tx, Files(data_dir))
        tasks = {name: (state, seq) for name, state, seq in connection.execute("SELECT id, state, last_seq FROM tasks")}
        return Seen(digest_of(connection), digest_of(connection, "snapshots"), tasks, wrong)
    finally:
        connection.close()


def file_problems(tx: Tx, files: Files) -> list[str]:
    """Rows whose file is not there whole (I8), as a reader of the file finds it."""
    found: list[str] = []
    for model in read_models(tx):
        path = files.models.path(model.digest)
        if not path.is_file() or sha256(path.read_bytes()).hexdigest() != model.digest:
            found.append(f"model {model.name} has no whole file {path.name}")
    for _, relative in read_snapshot_paths(tx):
        tokens = int(relative.rpartition("-")[2].removesuffix(".snap"))
        read = snapshots.read(files.snapshots.absolute(relative), KEY, list(range(tokens + 1)))
        if not isinstance(read, Snapshot):
            found.append(f"snapshot {relative}: {read.value}")
    return found


def swept(data_dir: Path) -> list[str]:
    """Does what housekeeping does with files that nothing names, without its grace; what is left over then."""
    files = Files(data_dir)
    connection, tx = plain_tx(data_dir / "retoma.db")
    try:
        states = read_states(tx, files.snapshots.tasks())
        for task_id in files.snapshots.tasks():
            if task_id not in states or states[task_id].finished:
                files.snapshots.remove_all(task_id)
        for path in files.models.orphans({model.digest for model in read_models(tx)}, -1, time.time()):
            path.unlink()
        folders = Folders(data_dir / "models", data_dir / "snapshots")
        # A text under way keeps the files that its crash left without a row, until its own end.
        left = [one.message for one in check_files(tx, folders, time.time() + 10)]
        return [message for message in left if not any(task_id in message for task_id in files.snapshots.tasks())]
    finally:
        connection.close()
