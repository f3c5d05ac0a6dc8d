"""The shim and the disks made from its recordings, before anything is concluded from them."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from retoma.blobs.models import ModelFiles
from retoma.blobs.snapshots import SnapshotFolder
from tests.conftest import SEED
from tests.faults.disk import FolderDisk, files_in
from tests.support import shim
from tests.support.shim import Action, Call, Fault, read_log

if TYPE_CHECKING:
    from tests.faults.conftest import Faults


def test_without_a_fault_every_step_is_done_and_every_call_counted(faults: Faults) -> None:
    faults.put_back(0)
    answer = faults.drive(0, len(faults.plan.steps))
    assert (answer["status"], answer["fired"]) == (0, 0)
    assert [words for words in answer["said"] if words[0] != "done"] == [["problem", None]]
    assert len(answer["said"]) == len(faults.plan.steps) + 1
    assert answer["calls"] >= sum(faults.plan.calls) > 400
    assert faults.seen().content == faults.plan.contents[-1]


def test_a_fault_that_never_comes_is_told(faults: Faults) -> None:
    faults.put_back(0)
    answer = faults.drive(0, 2, Fault(Action.KILL_BEFORE, 10**6))
    assert (answer["status"], answer["fired"], answer["where"]) == (0, 0, " ")


def test_every_step_leaves_another_content(faults: Faults) -> None:
    """Else a step that was lost would look like one that was done."""
    changing = [
        number
        for number, step in enumerate(faults.plan.steps)
        if faults.plan.contents[number] == faults.plan.contents[number + 1]
    ]
    assert [str(faults.plan.steps[number]) for number in changing] == [" register"], "leases are not compared"


def test_a_recording_played_to_its_end_gives_the_very_same_files(faults: Faults) -> None:
    faults.put_back(0)
    disk = FolderDisk(files_in(faults.data_dir))
    log = faults.folder / "log"
    assert faults.ask("trace", str(log))["status"] == 0
    for call in read_log(log, faults.data_dir):
        disk.take(call)
    assert disk.image(Random(SEED), "keep") == files_in(faults.data_dir)


@pytest.mark.parametrize("ci", [True, False])
def test_a_machine_without_a_compiler_skips_these_tests_and_ci_fails_them(
    monkeypatch: pytest.MonkeyPatch, ci: bool
) -> None:
    monkeypatch.setattr(shim.shutil, "which", lambda _: None)
    monkeypatch.setenv("CI", "true") if ci else monkeypatch.delenv("CI", raising=False)
    with pytest.raises((pytest.skip.Exception, pytest.fail.Exception), match="no C compiler") as ended:
        shim.built.__wrapped__()
    assert isinstance(ended.value, pytest.fail.Exception) == ci


# The model of a disk with folders


def played(*calls: tuple[str, str] | tuple[str, str, bytes]) -> FolderDisk:
    disk = FolderDisk({"a": b"old"})
    for kind, path, *data in calls:
        disk.take(Call(kind, path, 0, data[0] if data else b""))
    return disk


STAGED = (("create", "f.tmp"), ("write", "f.tmp", b"new"))
PUBLISHED = (*STAGED, ("sync", "f.tmp"), ("rename", "f.tmp", b"f"))


@pytest.mark.parametrize(
    ("calls", "dropped"),
    [
        (STAGED, {"a": b"old"}),
        ((*STAGED, ("sync", "f.tmp")), {"a": b"old"}),
        ((*STAGED, ("sync", "")), {"a": b"old", "f.tmp": b""}),
        (PUBLISHED, {"a": b"old"}),
        ((*PUBLISHED, ("sync", "")), {"a": b"old", "f": b"new"}),
        ((("unlink", "a"),), {"a": b"old"}),
        ((("unlink", "a"), ("sync", "")), {}),
        ((("truncate", "a"),), {"a": b"old"}),
        ((("truncate", "a"), ("sync", "a")), {"a": b""}),
        ((("mkdir", "d"), ("create", "d/f"), ("write", "d/f", b"x"), ("sync", "d/f"), ("sync", "d")), {"a": b"old"}),
        ((("mkdir", "d"), ("create", "d/f"), ("sync", "d"), ("sync", "")), {"a": b"old", "d/f": b""}),
    ],
)
def test_what_was_not_synced_is_gone_when_a_cut_drops_everything(calls, dropped: dict[str, bytes]) -> None:
    assert played(*calls).image(Random(SEED), "drop") == dropped


def test_a_cut_may_leave_either_name_of_a_renamed_file_both_or_none() -> None:
    disk = played(*STAGED, ("sync", "f.tmp"), ("sync", ""), ("rename", "f.tmp", b"f"))
    rng = Random(SEED)
    found = {tuple(sorted(disk.image(rng, "subset"))) for _ in range(100)}
    assert found == {("a",), ("a", "f"), ("a", "f.tmp"), ("a", "f", "f.tmp")}


# Files that can't be removed


def test_a_file_that_can_not_be_removed_costs_room_and_nothing_else(tmp_path: Path) -> None:
    """Its row is gone by then: an error here must not become that of a text that goes on well."""
    (tmp_path / "snapshots" / "task" / "1-2.snap").mkdir(parents=True)
    SnapshotFolder(tmp_path / "snapshots").remove(["task/1-2.snap", "task/gone.snap"])
    models = ModelFiles(tmp_path / "models")
    models.path("a" * 64).mkdir(parents=True)
    models.remove("a" * 64)
    shutil.rmtree(tmp_path)
