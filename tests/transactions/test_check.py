"""The offline checker finds nothing in a sound store, and finds each fault that is put into one."""

# ruff: noqa: S608 - the statements are put together from this file's own words

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from retoma.core.task import OnRestart, State
from retoma.store.sqlite import SqliteStore
from retoma.transactions import check as check_module
from retoma.transactions.check import Finding, check, check_tasks
from retoma.transactions.check_files import Folders, check_files
from retoma.transactions.models import RegisterModel, register_model
from retoma.transactions.rebuild import Rebuild, rebuild
from tests.support.stores import new_store
from tests.support.world import World, key_of


def lived_in(world: World) -> None:
    """Every state, every policy, retries, crashes, two owners, keys and snapshots."""
    for state in State:
        if state is not State.QUEUED:
            world.in_state(state, key=key_of(f"key of {state}"))
    world.me = "instance-2"
    for policy in OnRestart:
        for state in (State.LOADING, State.RUNNING, State.CANCELLING):
            world.recover(world.in_state(state, policy))
            claimed = world.claim()
            if claimed is not None:
                world.start(claimed)
                world.append(claimed, "again")
                world.finish(claimed, "incomplete")
    task = world.running()
    world.append(task)
    world.snapshot(task, 1)
    world.crash(task)
    world.in_state(State.QUEUED)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("sound")
    store = new_store(folder)
    lived_in(World(store))
    store.close()
    return (folder / "retoma.db").read_bytes()


@pytest.fixture
def path(tmp_path: Path, sound: bytes) -> Path:
    made = tmp_path / "retoma.db"
    made.write_bytes(sound)
    return made


def damage(path: Path, sql: str) -> None:
    """Writes past every trigger, as nothing but a faulty disk or a person could."""
    connection = apsw.Connection(str(path))
    for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute(sql)
    connection.close()


def findings(path: Path) -> list[Finding]:
    store = SqliteStore(path)
    try:
        return store.read(check)
    finally:
        store.close()


def test_a_sound_store_has_no_findings(path: Path) -> None:
    assert findings(path) == []


COMPLETED = "(SELECT id FROM tasks WHERE state = 'completed' LIMIT 1)"
RUNNING = "(SELECT id FROM tasks WHERE state = 'running' AND fencing_token = 1 LIMIT 1)"
FAULTS = {
    "an event that is missing": ("I2", f"DELETE FROM task_events WHERE seq = 2 AND task_id = {RUNNING}"),
    "a last event that is missing": ("I2", f"DELETE FROM task_events WHERE seq = 3 AND task_id = {RUNNING}"),
    "a state without its event": (
        "I2",
        f"UPDATE tasks SET state = 'failed', finished_at_ms = 1 WHERE id = {RUNNING}",
    ),
    "a wrong count of tokens": ("I2", f"UPDATE tasks SET tokens = tokens + 1 WHERE id = {COMPLETED}"),
    "a version without its event": ("I3", f"UPDATE tasks SET version = version + 1 WHERE id = {RUNNING}"),
    "an attempt without its event": ("I3", f"UPDATE tasks SET attempt = attempt + 1 WHERE id = {RUNNING}"),
    "an owner without its event": ("I3", f"UPDATE tasks SET instance_id = 'thief' WHERE id = {RUNNING}"),
    "a task without events": ("I3", "DELETE FROM task_events WHERE task_id = (SELECT min(id) FROM tasks)"),
    "events without their task": ("I3", f"DELETE FROM tasks WHERE id = {COMPLETED}"),
    "another output than the log's": (
        "I2",
        "UPDATE task_events SET body = replace(body, 'word ', 'sword ') WHERE type = 'response.completed'",
    ),
    "a missing response": ("I4", f"DELETE FROM responses WHERE id = {COMPLETED}"),
    "a changed response": ("I4", f"UPDATE responses SET status = 'failed' WHERE id = {COMPLETED}"),
    "another client's response": ("I4", f"UPDATE responses SET client_id = 'thief' WHERE id = {COMPLETED}"),
    "a response of an unfinished task": (
        "I8",
        f"INSERT INTO responses VALUES ({RUNNING}, 'cli_1', 'completed', '{{}}', 3, 0)",
    ),
    "a response of no task": ("I8", "INSERT INTO responses VALUES ('resp_gone', 'cli_1', 'completed', '{}', 3, 0)"),
    "a key of no task": (
        "I5",
        "INSERT INTO idempotency_keys VALUES ('cli_1', zeroblob(16), zeroblob(32), 'resp_gone', 0, 0)",
    ),
    "a key of another client's task": ("I5", "UPDATE idempotency_keys SET client_id = 'thief'"),
    "an operation that wrote twice": (
        "I5",
        "UPDATE task_events SET op_id = (SELECT e.op_id FROM task_events e WHERE e.task_id = task_events.task_id "
        "AND e.seq = 0) WHERE seq = 3",
    ),
    "a token that fell": ("I6", f"UPDATE tasks SET fencing_token = 0 WHERE id = {RUNNING}"),
    "a token that rose alone": ("I6", f"UPDATE tasks SET fencing_token = 9 WHERE id = {RUNNING}"),
    "a task that nobody owns": ("I6", f"UPDATE tasks SET instance_id = '' WHERE id = {RUNNING}"),
    "a snapshot of a finished task": (
        "I8",
        f"INSERT INTO snapshots VALUES ({COMPLETED}, 1, 1, 'p', 1, 'f', 0)",
    ),
    "a snapshot under a later token": (
        "I8",
        f"INSERT INTO snapshots VALUES ({RUNNING}, 9, 1, 'p', 1, 'f', 0)",
    ),
}


@pytest.mark.parametrize(("invariant", "sql"), FAULTS.values(), ids=FAULTS)
@pytest.mark.requirement("S-001b")
def test_each_fault_is_found_under_the_name_of_its_invariant(path: Path, invariant: str, sql: str) -> None:
    damage(path, sql)
    found = findings(path)
    assert invariant in {finding.invariant for finding in found}, found
    assert all(finding.message for finding in found)


def test_a_response_without_its_restarts_or_a_broken_body_is_found_not_stumbled_over(path: Path) -> None:
    damage(path, 'UPDATE task_events SET body = \'{"response":{"task":{}}}\' WHERE seq = 2')
    assert {finding.invariant for finding in findings(path)} >= {"I2"}


def test_the_findings_and_the_pages_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damage(path, "UPDATE tasks SET version = version + 1")
    store = SqliteStore(path)
    everything = store.read(check)
    paged: list[Finding] = []
    after: str | None = ""
    while after is not None:
        page = store.read(partial(check_tasks, after=after, limit=2))
        paged += page.findings
        after = page.next_after
    assert paged == everything
    monkeypatch.setattr(check_module, "FINDINGS_MAX", 3)
    assert store.read(check) == everything[:3]
    monkeypatch.setattr(check_module, "EVENTS_PAGE_MAX", 2)
    monkeypatch.setattr(check_module, "FINDINGS_MAX", 1_000)
    assert store.read(check) == everything
    store.close()


# Rebuild


def rebuilt(store: SqliteStore, limit: int = 2) -> tuple[list[str], list[str]]:
    differed: list[str] = []
    unreadable: list[str] = []
    after: str | None = ""
    while after is not None:
        page = store.transact(partial(rebuild, command=Rebuild(after, limit)))
        differed += page.differed
        unreadable += page.unreadable
        after = page.next_after
    return differed, unreadable


def responses(path: Path) -> list[Any]:
    connection = apsw.Connection(str(path))
    try:
        return connection.execute("SELECT * FROM responses ORDER BY id").fetchall()
    finally:
        connection.close()


@pytest.mark.requirement("S-001", "S-001c")
@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM responses",
        "UPDATE responses SET body = '{}', status = 'failed', last_seq = 0, completed_at_ms = 0, client_id = 'x'",
    ],
)
def test_responses_that_were_dropped_or_changed_are_derived_again_and_are_equal(path: Path, sql: str) -> None:
    before = responses(path)
    damage(path, sql)
    store = SqliteStore(path)
    differed, unreadable = rebuilt(store)
    assert differed == [row[0] for row in before]
    assert unreadable == []
    assert rebuilt(store) == ([], [])
    store.close()
    assert responses(path) == before
    assert findings(path) == []


@pytest.mark.requirement("S-001")
def test_a_sound_store_has_nothing_to_rebuild_and_a_broken_log_is_named_and_left_alone(path: Path) -> None:
    store = SqliteStore(path)
    assert rebuilt(store) == ([], [])
    store.close()
    before = responses(path)
    damage(path, f"DELETE FROM task_events WHERE seq = 0 AND task_id = {COMPLETED}")
    store = SqliteStore(path)
    differed, unreadable = rebuilt(store, 100)
    store.close()
    assert (differed, len(unreadable)) == ([], 1)
    assert responses(path) == before


@pytest.mark.requirement("S-001")
def test_a_finished_row_whose_log_has_no_end_is_not_given_a_response(path: Path) -> None:
    damage(path, f"UPDATE tasks SET state = 'failed', finished_at_ms = 1 WHERE id = {RUNNING}")
    store = SqliteStore(path)
    differed, unreadable = rebuilt(store)
    store.close()
    assert (differed, len(unreadable)) == ([], 1)


# Files

MODEL = RegisterModel("m", "ab" + "c" * 62, 5, "llama", "file", {}, 0)


@pytest.fixture
def folders(tmp_path: Path, world: World) -> Folders:
    """One model and one snapshot, as they should be."""
    made = Folders(tmp_path / "models", tmp_path / "snapshots")
    world.does(register_model, MODEL)
    task = world.running()
    world.append(task)
    world.snapshot(task, 1)
    put(made.models / "sha256" / "ab" / MODEL.digest, 5)
    put(made.snapshots / world.snapshot_command(task, 1).path, 100)
    return made


def put(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, (1_000, 1_000))


def model_file(folders: Folders) -> Path:
    return folders.models / "sha256" / "ab" / MODEL.digest


def snapshot_file(folders: Folders) -> Path:
    return next(folders.snapshots.glob("*/*"))


FILE_FAULTS: list[tuple[str, Callable[[Folders], object], str | None]] = [
    ("as it should be", lambda folders: None, None),
    ("a model's file is missing", lambda folders: model_file(folders).unlink(), "is missing"),
    ("a model's file is short", lambda folders: put(model_file(folders), 4), "has 4 bytes, not 5"),
    ("no row names a model's file", lambda folders: put(folders.models / "sha256/de/adbeef", 1), "no row names"),
    ("a staged import", lambda folders: put(folders.models / "incoming/1.part", 1), None),
    ("a snapshot has vanished", lambda folders: snapshot_file(folders).unlink(), None),
    ("a snapshot is short", lambda folders: put(snapshot_file(folders), 99), "has 99 bytes, not 100"),
    ("no row names a snapshot", lambda folders: put(folders.snapshots / "resp_gone/1-1.snap", 1), "no row names"),
]


@pytest.mark.requirement("P-11.1-files", "S-007", "S-007c")
@pytest.mark.parametrize(("change", "expected"), [case[1:] for case in FILE_FAULTS], ids=[c[0] for c in FILE_FAULTS])
def test_files_and_rows_are_held_against_each_other(
    world: World, folders: Folders, change: Callable[[Folders], object], expected: str | None
) -> None:
    change(folders)
    found = world.store.read(partial(check_files, folders=folders, settled_before_s=2_000))
    assert [finding.invariant for finding in found] == ([] if expected is None else ["I8"])
    assert expected is None or expected in found[0].message


def test_where_other_hosts_use_the_same_store_a_models_file_may_lie_there_only(world: World, folders: Folders) -> None:
    model_file(folders).unlink()
    look = partial(check_files, settled_before_s=2_000)
    assert len(world.store.read(partial(look, folders=folders))) == 1
    assert world.store.read(partial(look, folders=replace(folders, complete=False))) == []


def test_a_file_that_has_just_been_written_may_still_get_its_row(world: World, folders: Folders) -> None:
    put(folders.snapshots / "resp_new/1-1.snap", 1)
    look = partial(check_files, folders=folders)
    assert world.store.read(partial(look, settled_before_s=1_000)) == []
    assert len(world.store.read(partial(look, settled_before_s=1_001))) == 1


def test_a_file_that_vanishes_while_it_is_looked_at_is_no_finding(world: World, folders: Folders) -> None:
    (folders.snapshots / "resp_gone").mkdir()
    (folders.snapshots / "resp_gone" / "1-1.snap").symlink_to("nowhere")
    assert world.store.read(partial(check_files, folders=folders, settled_before_s=2_000)) == []


def test_a_finding_can_be_printed_as_json(path: Path) -> None:
    damage(path, "DELETE FROM responses")
    finding = findings(path)[0]
    assert json.loads(json.dumps([finding.invariant, finding.task_id, finding.seq, finding.message]))
