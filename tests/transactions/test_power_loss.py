"""The power is cut at any moment: what was acknowledged is there, and every invariant holds.

Real transactions run once through the real writer over a file layer that records; then many disks are made that a cut
may have left behind, and each is opened, checked and asked for what clients had been told by then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from retoma import limits
from retoma.core.task import OnRestart, State
from retoma.errors import NotFound
from retoma.store.contract import Outcome, Tx
from retoma.store.sqlite import SqliteStore, SqliteWriteConnection, find_integrity_problems
from retoma.store.writer import Writer
from retoma.transactions.accept import accept
from retoma.transactions.check import check
from retoma.transactions.read import read_task
from tests.conftest import SEED
from tests.support import evidence
from tests.support.evidence import Image
from tests.support.power_vfs import MODES, Disk, RecordingVfs, Step
from tests.support.stores import new_file, plain_tx
from tests.support.world import World, key_of

IMAGES = 1_500
IMAGES_OF_A_SABOTAGE = 400
BOUND_S = 20.0
MEMORY = Path("/dev/shm")  # noqa: S108 - where a sync costs nothing; files in it have random names

Connect = Callable[[Path, str], SqliteWriteConnection]


class RecordedStore:
    """A store whose writer's files are recorded; what a client is told is written down between the calls."""

    def __init__(self, path: Path, vfs: RecordingVfs, connect: Connect, *, too_early: bool) -> None:
        self._reader = SqliteStore(path)
        self._vfs = vfs
        self._writer = Writer(lambda: connect(path, vfs.name))
        self._too_early = too_early

    def transact(self, function: Callable[[Tx], Any]) -> Any:
        outcomes: list[Outcome] = []
        done = threading.Event()

        def act(tx: Tx) -> Any:
            result = function(tx)
            if self._too_early:
                self._say(function, result)
            return result

        def settle(outcome: Outcome) -> None:
            if outcome.error is None and not self._too_early:
                self._say(function, outcome.result)
            outcomes.append(outcome)
            done.set()

        self._writer.submit(act, settle)
        assert done.wait(BOUND_S)
        if outcomes[0].error is not None:
            raise outcomes[0].error
        return outcomes[0].result

    def _say(self, function: Any, result: Any) -> None:
        if result is not None:
            self._vfs.say(promise(function, result))

    def read(self, function: Callable[[Tx], Any]) -> Any:
        return self._reader.read(function)

    def close(self) -> None:
        self._writer.close()
        self._reader.close()


def promise(function: Any, result: Any) -> tuple[str, int]:
    """The task that a client was told of, and the number of the last event that it was told of."""
    command = function.keywords["command"]
    if function.func is accept:
        return result.task_id, 1
    task_id = getattr(command, "task_id", None) or getattr(result, "id", "")
    return task_id, result if isinstance(result, int) else getattr(result, "last_seq", -1)


def workload(world: World, rng: Random) -> None:
    """Some forty tasks in all stages, mixed by the seed."""
    running: list[Any] = []
    for number in range(170):
        match rng.choices(["accept", "claim", "append", "finish", "cancel", "recover"], [4, 5, 8, 3, 1, 1])[0]:
            case "accept":
                world.accept(rng.choice(list(OnRestart)), key=key_of(f"key {number}"))
            case "claim" if (claimed := world.claim()) is not None:
                running.append(world.start(claimed))
            case "append" if running:
                world.append(rng.choice(running), "text " * rng.randint(1, 120), (number,))
            case "finish" if running:
                world.finish(running.pop(rng.randrange(len(running))))
            case "cancel" if running:
                task = running.pop()
                world.cancel(task.id)
                world.finish(task, "cancelled")
            case "recover" if running:
                moved = world.recover(running.pop(0))
                running += [moved] if moved and moved.state is State.RUNNING else []
            case _:
                pass


def record(
    folder: Path, connect: Connect = SqliteWriteConnection, *, too_early: bool = False
) -> tuple[dict[str, bytearray], list[Step]]:
    """The files before, and everything that happened to them. The WAL is moved into the file several times."""
    path = new_file(folder)
    before = {path.name: bytearray(path.read_bytes())}
    vfs = RecordingVfs()
    store = RecordedStore(path, vfs, connect, too_early=too_early)
    try:
        workload(World(store), Random(SEED))  # pyright: ignore[reportArgumentType]
        steps = list(vfs.steps)
    finally:
        store.close()
        vfs.unregister()
    return before, steps


def wrong_with(image: Image, folder: Path) -> list[str]:
    """Where the power was cut and what is wrong with this disk, opened as after a restart; nothing if it is sound."""
    found = problems_after_a_cut(image.put_into(folder), image.facts["told"])
    if found:
        evidence.keep_image(image)
    return [image.where, *found] if found else []


def problems_after_a_cut(folder: Path, told: dict[str, int]) -> list[str]:
    connection, tx = plain_tx(folder / "retoma.db")
    try:
        connection.execute("BEGIN")
        found = find_integrity_problems(connection) + [f"{one.invariant} {one.message}" for one in check(tx)]
        return found + [
            f"{task_id} was acknowledged to event {seq}" for task_id, seq in told.items() if not _has(tx, task_id, seq)
        ]
    finally:
        connection.close()


def _has(tx: Tx, task_id: str, seq: int) -> bool:
    try:
        return read_task(tx, task_id).last_seq >= seq
    except NotFound:
        return False


def cut_often(before: dict[str, bytearray], steps: list[Step], count: int, rng: Random) -> tuple[int, list[str]]:
    """Cuts the power `count` times all over the recording, in every mode.

    Returns how many disks were looked at, and what was wrong with the first that was wrong.
    """
    per_cut = len(MODES)
    moments = sorted(rng.sample(range(len(steps)), min(count // per_cut, len(steps))))
    disk = Disk({name: bytearray(data) for name, data in before.items()})
    told: dict[str, int] = {}
    looked = 0
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        for number, step in enumerate(steps):
            disk.take(step)
            if step.kind == "said":
                task_id, seq = step.said
                told[task_id] = max(seq, told.get(task_id, -1))
            while moments and moments[0] == number:
                moments.pop(0)
                for mode in MODES:
                    looked += 1
                    image = Image(f"step {number}, {mode}", disk.image(rng, mode), {"told": told})
                    found = wrong_with(image, Path(folder) / "image")
                    if found:
                        return looked, found
    return looked, []


@pytest.fixture
def short_wal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_PAGES", 60)


@pytest.mark.requirement("P-11.2-persist", "P-11.2-seq", "S-005")
@pytest.mark.usefixtures("short_wal")
def test_whatever_a_power_cut_leaves_behind_holds_what_was_acknowledged(tmp_path: Path, rng: Random) -> None:
    before, steps = record(tmp_path)
    kinds = {step.kind for step in steps}
    assert kinds >= {"write", "sync", "said"}
    checkpoints = sum(step.kind == "sync" and step.file == "retoma.db" for step in steps)
    assert checkpoints >= 3, "the file itself was hardly ever written"
    looked, found = cut_often(before, steps, IMAGES, rng)
    assert found == []
    assert looked >= IMAGES * 0.9


class _Synchronous(SqliteWriteConnection):
    level = "FULL"

    def __init__(self, path: Path, vfs: str) -> None:
        super().__init__(path, vfs)
        self._connection.execute(f"PRAGMA synchronous = {self.level}")


class Normal(_Synchronous):
    """Syncs only before a checkpoint."""

    level = "NORMAL"


class Off(_Synchronous):
    """Never syncs."""

    level = "OFF"


SABOTAGES: dict[str, dict[str, Any]] = {
    "synchronous = NORMAL": {"connect": Normal},
    "synchronous = OFF": {"connect": Off},
    "answers before the commit": {"too_early": True},
}


@pytest.mark.usefixtures("short_wal")
@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_a_store_that_promises_too_much_is_found_out(tmp_path: Path, rng: Random, sabotage: str) -> None:
    before, steps = record(tmp_path, **SABOTAGES[sabotage])
    _, found = cut_often(before, steps, IMAGES_OF_A_SABOTAGE, rng)
    assert found, f"{sabotage} went unnoticed"


def test_the_same_workload_is_sound_when_nothing_is_lost(tmp_path: Path) -> None:
    before, steps = record(tmp_path)
    disk = Disk(before)
    for step in steps:
        disk.take(step)
    told = dict(sorted(step.said for step in steps if step.kind == "said"))
    image = Image("nothing lost", disk.image(Random(SEED), "keep"), {"told": told})
    assert wrong_with(image, tmp_path / "image") == []
    assert len(told) > 15


def test_a_command_can_be_told_from_its_promise() -> None:
    command = partial(accept, command=None)
    assert promise(command, type("Result", (), {"task_id": "t"})) == ("t", 1)
