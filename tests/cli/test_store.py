"""`retoma store`: figures, checks, copies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import apsw
import pytest

from retoma.store.schema import SCHEMA_VERSION
from tests.support.command import Ended, Running, run_retoma
from tests.support.service import RunningService, start_service


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with two finished responses."""
    data_dir = tmp_path_factory.mktemp("filled") / "data"
    with start_service(data_dir, env={"RETOMA_SCRIPTED_TOKENS": "20"}) as service:
        for prompt in ("one", "two"):
            ended = run_retoma("ask", prompt, "--url", service.url, "--data-dir", data_dir)
            assert ended.status == 0, ended.err
    return data_dir


@pytest.fixture
def copy(filled: Path, tmp_path: Path) -> Path:
    return shutil.copytree(filled, tmp_path / "copy")


def damage(data_dir: Path, sql: str) -> None:
    """Changes rows behind the guards' back."""
    connection = apsw.Connection(str(data_dir / "retoma.db"))
    triggers = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for (name,) in triggers:
        connection.execute(f'DROP TRIGGER "{name}"')
    connection.execute(sql)
    connection.close()


def check(data_dir: Path) -> Ended:
    return run_retoma("store", "check", "--json", "--data-dir", data_dir)


def test_info_counts_tasks_and_bytes(filled: Path) -> None:
    shown = json.loads(run_retoma("store", "info", "--json", "--data-dir", filled).out)
    assert shown["tasks"] == {"completed": 2}
    assert shown["schema_version"] == SCHEMA_VERSION
    assert shown["bytes"]["database"] > 0
    assert "completed" in run_retoma("store", "info", "--data-dir", filled).out


def test_a_sound_store_passes_the_check(filled: Path) -> None:
    ended = check(filled)
    assert (ended.status, json.loads(ended.out)) == (0, [])


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("UPDATE responses SET body = replace(body, 'completed', 'completes')", "not what the log adds up to"),
        ("UPDATE tasks SET tokens = tokens + 1", "tokens"),
        ("DELETE FROM task_events WHERE seq = 5", "event"),
    ],
)
def test_a_damaged_store_does_not(copy: Path, sql: str, message: str) -> None:
    damage(copy, sql)
    ended = check(copy)
    assert ended.status == 1
    assert any(message in finding["message"] for finding in json.loads(ended.out)), ended.out
    assert run_retoma("store", "check", "--data-dir", copy).status == 1


def test_a_lost_model_file_is_a_finding(copy: Path, gguf: Path) -> None:
    run_retoma("models", "add", gguf, "--data-dir", copy)
    assert check(copy).status == 0
    shutil.rmtree(copy / "models")
    ended = check(copy)
    assert (ended.status, len(json.loads(ended.out))) == (1, 1)


def test_a_rebuild_derives_the_responses_again(copy: Path) -> None:
    before = apsw.Connection(str(copy / "retoma.db")).execute("SELECT id, body FROM responses ORDER BY id").fetchall()
    damage(copy, "UPDATE responses SET body = '{}'")
    first = json.loads(run_retoma("store", "rebuild", "--json", "--data-dir", copy).out)
    assert len(first["replaced"]) == 2
    second = json.loads(run_retoma("store", "rebuild", "--json", "--data-dir", copy).out)
    assert second == {"replaced": [], "unreadable": []}
    after = apsw.Connection(str(copy / "retoma.db")).execute("SELECT id, body FROM responses ORDER BY id").fetchall()
    assert after == before


def test_migrate_names_the_schema(copy: Path) -> None:
    assert f"schema {SCHEMA_VERSION}" in run_retoma("store", "migrate", "--data-dir", copy).out


def test_a_backup_is_a_whole_store(filled: Path, tmp_path: Path) -> None:
    target = tmp_path / "restored"
    target.mkdir()
    assert run_retoma("store", "backup", target / "retoma.db", "--data-dir", filled).status == 0
    assert [path.name for path in target.iterdir()] == ["retoma.db"]
    assert json.loads(run_retoma("store", "info", "--json", "--data-dir", target).out)["tasks"] == {"completed": 2}
    assert check(target).status == 0


def test_a_backup_never_replaces_a_file(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    ended = run_retoma("store", "backup", tmp_path / "mine", "--data-dir", filled)
    assert (ended.status, (tmp_path / "mine").read_text()) == (3, "precious")
    assert "is there already" in ended.err


def test_a_backup_into_nowhere_is_a_failure(filled: Path, tmp_path: Path) -> None:
    ended = run_retoma("store", "backup", tmp_path / "no" / "where", "--data-dir", filled)
    assert (ended.status, "there is no folder" in ended.err) == (1, True)


def test_a_backup_of_a_busy_service_is_consistent(tmp_path: Path) -> None:
    busy = {"RETOMA_SCRIPTED_TOKEN_MS": "5", "RETOMA_SCRIPTED_TOKENS": "400"}
    with start_service(tmp_path / "data", env=busy) as service, _asking(service, tmp_path) as asking:
        asking.wait_for_out(50)
        for number in range(3):
            target = tmp_path / f"backup{number}"
            target.mkdir()
            ended = run_retoma("store", "backup", target / "retoma.db", "--data-dir", service.data_dir)
            assert ended.status == 0, ended.err
            found = check(target)
            assert found.status == 0, found.out
        assert asking.wait().status == 0


def _asking(service: RunningService, folder: Path) -> Running:
    return Running(folder / "ask", "ask", "go on", "--url", service.url, "--data-dir", service.data_dir)
