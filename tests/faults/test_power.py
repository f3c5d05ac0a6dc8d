"""The power is cut at any moment, and the database and the files beside it are looked at together.

Everything that one process does with its data directory is recorded by the shim: the database, the snapshots and the
model files, in one log with what somebody was told in between. Then many directories are made that a cut may have left
behind. Each must hold what was told, each step as a whole or not at all, and for every row a whole file (I8).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.disk import FolderDisk, files_in
from tests.faults.flow import look
from tests.faults.images import wrong_with
from tests.support import evidence
from tests.support.evidence import Image
from tests.support.power_vfs import MODES
from tests.support.shim import Call, read_log

if TYPE_CHECKING:
    from tests.faults.conftest import Faults

pytestmark = pytest.mark.timeout(300)

IMAGES = 1_200
FIRST_CUTS = 30
SECOND_CUTS = 6

Told = list[list[Any]]
Cut = tuple[str, dict[str, bytes], Told]
"""Where in the recording the power was cut and how, the files, and what had been told by then."""


def recorded(faults: Faults, verb: str) -> list[Call]:
    """What the child does, from the directory as it is now."""
    log = faults.folder / "log"
    answer = faults.ask(verb, str(log))
    assert answer["status"] == 0
    return list(read_log(log, faults.data_dir))


def cuts(before: dict[str, bytes], calls: list[Call], count: int, rng: Random) -> Iterator[Cut]:
    """Disks after `count` calls of the recording, in every mode."""
    moments = set(rng.sample(range(len(calls)), min(count, len(calls))))
    disk = FolderDisk(before)
    told: Told = []
    for number, call in enumerate(calls):
        disk.take(call)
        if call.kind == "said":
            told.append(json.loads(call.data))
        if number in moments:
            for mode in MODES:
                yield f"call {number} ({call.kind} {call.path}), {mode}", disk.image(rng, mode), list(told)


def trace(faults: Faults) -> tuple[dict[str, bytes], list[Call]]:
    faults.put_back(0)
    return files_in(faults.data_dir), recorded(faults, "trace")


@pytest.mark.requirement("P-11.1-files", "P-11.2-persist", "S-005", "S-007", "S-005c", "S-007a")
def test_files_and_rows_agree_on_every_disk_that_a_power_cut_leaves_behind(faults: Faults, rng: Random) -> None:
    before, calls = trace(faults)
    kinds = {(call.kind, call.path.partition("/")[0].partition("-")[0]) for call in calls}
    assert kinds >= {
        (kind, place) for kind in ("create", "write", "sync", "mkdir") for place in ("models", "snapshots")
    }
    assert ("sync", "") in kinds, "the data directory itself was never synced"
    looked = 0
    for where, files, told in cuts(before, calls, IMAGES // len(MODES), rng):
        looked += 1
        done = sum(words[0] == "done" for words in told)
        image = Image(where, files, {"contents": faults.plan.contents[done : done + 2]})
        found = wrong_with(image, faults.folder / "image")
        assert found == []
    assert looked >= IMAGES * 0.9


def without(kind: str, under: str) -> Callable[[Call], bool]:
    """Leaves out one kind of call on one kind of file: what a process records that forgets it."""
    return lambda call: not (call.kind == kind and call.path.startswith(under))


FORGOTTEN = {
    "the sync of snapshot files and folders": without("sync", "snapshots"),
    "the sync of model files and folders": without("sync", "models"),
    "the sync of the WAL": without("sync", "retoma.db-wal"),
}


@pytest.mark.parametrize("forgotten", FORGOTTEN)
def test_a_sync_that_is_forgotten_is_noticed(faults: Faults, rng: Random, forgotten: str) -> None:
    before, calls = trace(faults)
    kept = [call for call in calls if FORGOTTEN[forgotten](call)]
    assert len(kept) < len(calls)
    for where, files, told in cuts(before, kept, IMAGES // len(MODES), rng):
        done = sum(words[0] == "done" for words in told)
        image = Image(where, files, {"contents": faults.plan.contents[done : done + 2]})
        if wrong_with(image, faults.folder / "image"):
            return
    pytest.fail("nothing was wrong on any disk")


@pytest.mark.requirement("P-11.2-startup", "S-005", "S-007b")
def test_a_second_cut_in_the_middle_of_the_recovery_from_the_first_loses_nothing_either(
    faults: Faults, rng: Random
) -> None:
    before, calls = trace(faults)
    first = rng.sample(list(cuts(before, calls, 60, rng)), FIRST_CUTS)
    looked = moved = finished = 0
    for where, files, _ in first:
        folder = Image(where, files, {}).put_into(faults.folder / "first")
        held = look(Image(where, files, {}).put_into(faults.folder / "image")).tasks
        faults.put(folder)
        again = recorded(faults, "rescue")
        for second, broken, told in cuts(files_in(folder), again, SECOND_CUTS, rng):
            looked += 1
            moved += bool(told)
            promised = {task_id: seq for task_id, (_, seq) in held.items()} | {words[1]: words[2] for words in told}
            image = Image(f"{where}; then {second}", broken, {"promised": promised})
            found = wrong_with(image, faults.folder / "image")
            assert found == []
        # The third start is left alone, and comes to the same end as the second would have.
        evidence.keep("after-the-first-cut", folder)
        whole = faults.seen()
        faults.put(faults.folder / "image")
        assert faults.ask("rescue", str(faults.folder / "log"))["status"] == 0
        assert faults.seen().tasks == whole.tasks, where
        finished += 1
    assert looked > FIRST_CUTS * SECOND_CUTS
    assert moved > looked / 10, "the second cut was hardly ever in the middle of a recovery"
    assert finished == FIRST_CUTS
