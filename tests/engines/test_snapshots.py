from __future__ import annotations

import errno
import os
import stat
import struct
from pathlib import Path

import pytest

from retoma import failpoints
from retoma.core.snapshot_rule import WriteCost, decide_snapshot
from retoma.engines import snapshots
from retoma.engines.snapshots import Misfit, Snapshot, SnapshotKey
from retoma.failpoints import Failpoint
from retoma.limits import SNAPSHOT_BYTES_MAX, SNAPSHOT_GAIN_MIN

KEY = SnapshotKey("fingerprint", "prompt")
STATE = bytes(range(256)) * 4
TOKENS = [5, 6, 7]


def written(path: Path, tokens: list[int] = TOKENS, state: bytes = STATE) -> Path:
    assert snapshots.write(path, KEY, tokens, state) == path.stat().st_size
    return path


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    path = written(tmp_path / "task" / "1-3.snap")
    assert snapshots.read(path, KEY, [*TOKENS, 8]) == Snapshot(3, STATE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [child.name for child in path.parent.iterdir()] == ["1-3.snap"]


def test_a_snapshot_of_the_prompt_alone_is_usable_once_a_token_is_committed(tmp_path: Path) -> None:
    path = written(tmp_path / "0.snap", tokens=[])
    assert snapshots.read(path, KEY, []) is Misfit.TOO_NEW
    assert snapshots.read(path, KEY, [5]) == Snapshot(0, STATE)


@pytest.mark.parametrize(
    ("key", "committed", "misfit"),
    [
        (SnapshotKey("other", "prompt"), [5, 6, 7, 8], Misfit.FINGERPRINT),
        (SnapshotKey("fingerprint", "other"), [5, 6, 7, 8], Misfit.PROMPT),
        (KEY, [5, 6, 7], Misfit.TOO_NEW),
        (KEY, [], Misfit.TOO_NEW),
        (KEY, [5, 6, 9, 8], Misfit.TOKENS),
    ],
)
def test_a_snapshot_of_something_else_is_refused(
    tmp_path: Path, key: SnapshotKey, committed: list[int], misfit: Misfit
) -> None:
    assert snapshots.read(written(tmp_path / "s"), key, committed) is misfit


@pytest.mark.requirement("S-005")
def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path / "s", state=b"state of the engine")
    whole = path.read_bytes()
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert isinstance(snapshots.read(path, KEY, [*TOKENS, 8]), Misfit), bit


@pytest.mark.requirement("S-005")
def test_every_truncation_and_whatever_follows_the_end_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path / "s", state=b"state of the engine")
    whole = path.read_bytes()
    for damaged in [whole[:length] for length in range(len(whole))] + [whole + b"\0", bytes(len(whole))]:
        path.write_bytes(damaged)
        assert isinstance(snapshots.read(path, KEY, [*TOKENS, 8]), Misfit), len(damaged)


def test_what_is_no_snapshot_is_refused_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("Dear diary, this is certainly not the state of any engine. " * 9)
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    found = {name: snapshots.read(tmp_path / name, KEY, [5]) for name in ("text", "directory", "pipe", "absent")}
    assert found["text"] is found["pipe"] is Misfit.FOREIGN
    assert found["absent"] is Misfit.ABSENT
    assert isinstance(found["directory"], Misfit)


@pytest.mark.requirement("S-004", "S-004b")
def test_a_later_format_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(snapshots, "FORMAT", 2)
        path = written(tmp_path / "s")
    assert snapshots.read(path, KEY, [*TOKENS, 8]) is Misfit.FORMAT


@pytest.mark.requirement("S-004", "S-004a")
def test_format_1_is_what_it_was(tmp_path: Path) -> None:
    head = written(tmp_path / "s").read_bytes()[:12]
    assert head == b"RETOMA\x00S" + struct.pack("<I", 1)


POINTS = [Failpoint.SNAPSHOT_WRITTEN, Failpoint.SNAPSHOT_RENAMED, Failpoint.SNAPSHOT_SYNCED]


@pytest.mark.requirement("S-005", "S-005a", "S-007a")
@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.label)
def test_a_disk_error_after_any_step_means_no_snapshot_and_no_temporary_file(tmp_path: Path, point: Failpoint) -> None:
    failpoints.arm(f"{point.label}=error")
    try:
        assert snapshots.write(tmp_path / "s", KEY, TOKENS, STATE) is None
    finally:
        failpoints.arm(None)
    assert not list(tmp_path.glob(f"*{snapshots.TEMPORARY_SUFFIX}"))
    assert snapshots.read(tmp_path / "s", KEY, [*TOKENS, 8]) in (Misfit.ABSENT, Snapshot(3, STATE))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_disk_that_refuses_the_file_means_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(snapshots.os, "fsync", refuse)
    assert snapshots.write(tmp_path / "s", KEY, TOKENS, STATE) is None
    assert not list(tmp_path.iterdir())


@pytest.mark.requirement("S-005")
def test_the_name_appears_only_after_the_content_is_synced_and_the_directory_is_synced_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, bool]] = []
    sync = os.fsync

    def watch(descriptor: int) -> None:
        seen.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), (tmp_path / "task" / "s").exists()))
        sync(descriptor)

    monkeypatch.setattr(snapshots.os, "fsync", watch)
    written(tmp_path / "task" / "s")
    assert seen == [(True, False), (False, False), (True, True)]


RULE = {"state_bytes": 1000, "write_ms": 10.0, "unsaved_ms": 1000.0, "spent_ms": 0.0, "elapsed_ms": 1000.0}


@pytest.mark.parametrize(
    ("change", "takes"),
    [
        ({}, True),
        ({"unsaved_ms": SNAPSHOT_GAIN_MIN * 10 - 0.1}, False),
        ({"unsaved_ms": SNAPSHOT_GAIN_MIN * 10}, True),
        ({"spent_ms": 10.1}, False),
        ({"elapsed_ms": 499.0}, False),
        ({"state_bytes": SNAPSHOT_BYTES_MAX + 1}, False),
    ],
)
def test_a_snapshot_is_taken_when_it_pays_and_is_affordable(change: dict[str, float], takes: bool) -> None:
    assert decide_snapshot(**(RULE | change)) is takes


def test_the_cost_of_a_write_follows_the_last_one_and_grows_with_the_state() -> None:
    cost = WriteCost(last_ms=8.0, last_bytes=100)
    assert [cost.expected_ms(size) for size in (10, 100, 200)] == [8.0, 8.0, 16.0]
    assert 0 < WriteCost().expected_ms(0) < WriteCost().expected_ms(10**9)
