"""`retoma store prune` and `retoma store compact`: what would go, what went, and the space; killed anywhere."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw
import pytest

from retoma.clock import SystemClock
from retoma.core.events import encode_json
from retoma.core.task import UNFINISHED, State
from retoma.errors import StoreFull
from retoma.store import sqlite_space
from retoma.store.migrate import prepare
from retoma.store.sqlite import SqliteStore
from retoma.transactions.service import ChangeService, change_service, keep_service
from tests.support.api import Api
from tests.support.audit import assert_store_is_sound
from tests.support.clock import ManualClock
from tests.support.command import Ended, run_retoma
from tests.support.places import place_on
from tests.support.postgres import administer, new_postgres_store
from tests.support.service import environment, launch_service, start_service
from tests.support.stores import new_store, problems
from tests.support.waiting import wait_for
from tests.support.world import DAY_MS, REQUEST, World, key_of

if TYPE_CHECKING:
    from retoma.store.contract import Store

HOUR_MS = 3_600_000
SHORT = {"RETOMA_SCRIPTED_TOKENS": "3"}
TABLES = ("tasks", "task_events", "responses", "idempotency_keys", "snapshots", "service_config")


class Filled(NamedTuple):
    """A data directory, and the ids of what lies in its store."""

    data_dir: Path
    old: str
    young: str
    unstored: str
    unfinished: list[str]


def fill(store: Store, data_dir: Path) -> Filled:
    """One of each kind past its time by the default settings, what is not, and a snapshot of a text that waits."""
    now_ms = SystemClock().wall_ms()
    world = World(store, ManualClock(now_ms - 40 * DAY_MS))
    old = world.in_state(State.COMPLETED, key=key_of("old", expires_at_ms=world.clock.wall_ms() + DAY_MS)).id
    unfinished = [world.in_state(state).id for state in UNFINISHED[1:]]
    running = world.task(unfinished[1])
    world.snapshot(running, 1)
    file = data_dir / "snapshots" / running.id / f"{running.fencing_token}-1.snap"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x" * 100)
    world.clock.advance(40 * DAY_MS - 2 * HOUR_MS)
    unstored = world.in_state(State.FAILED, stored=False).id
    world.clock.advance(HOUR_MS)
    expired = key_of("young", expires_at_ms=world.clock.wall_ms())
    young = world.in_state(State.COMPLETED, key=expired).id
    world.in_state(State.CANCELLED, stored=False, key=key_of("kept", expires_at_ms=now_ms + DAY_MS))
    unfinished.append(world.accept().id)
    return Filled(data_dir, old, young, unstored, unfinished)


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    with closing(new_store(data_dir)) as store:
        return fill(store, data_dir)


@pytest.fixture
def filled_postgres(postgres_url: str, tmp_path: Path) -> Filled:
    data_dir = place_on(postgres_url, tmp_path / "data")
    with closing(new_postgres_store(postgres_url)) as store:
        return fill(store, data_dir)


def prune(data_dir: Path, *options: str, **env: str) -> Ended:
    return run_retoma("store", "prune", *options, "--data-dir", data_dir, env=env)


def counted(ended: Ended) -> dict[str, int]:
    assert ended.status == 0, ended.err
    return {kind: one["count"] for kind, one in json.loads(ended.out)["kinds"].items()}


def bytes_below(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".db-shm"
    }


ALL_KINDS = {"stored": 1, "unstored": 1, "keys": 2, "snapshots": 0}


# Looking


@pytest.mark.requirement("P-11.2-retain", "P-11.2-never")
def test_a_dry_run_says_what_would_go_and_changes_not_one_byte(filled: Filled) -> None:
    before = bytes_below(filled.data_dir)
    ended = prune(filled.data_dir, "--dry-run", "--json", "--snapshot-hours", "1")
    assert bytes_below(filled.data_dir) == before
    assert counted(ended) == {**ALL_KINDS, "snapshots": 1}
    kinds = json.loads(ended.out)["kinds"]
    assert (kinds["stored"]["oldest"], kinds["stored"]["newest"]) == (filled.old, filled.old)
    assert kinds["unstored"]["oldest"] == filled.unstored
    assert (kinds["unstored"]["kept_by_key"], kinds["stored"]["events"] > 4, kinds["stored"]["bytes"] > 500) == (
        1,
        True,
        True,
    )
    assert kinds["snapshots"] == {
        **kinds["snapshots"],
        "bytes": 100,
        "files": 1,
        "oldest": filled.unfinished[1],
    }
    shown = prune(filled.data_dir, "--dry-run")
    assert filled.old in shown.out
    assert "1 more are past their time" in shown.err


def test_a_dry_run_of_a_store_that_was_left_by_a_killed_service_changes_not_one_byte(tmp_path: Path) -> None:
    with start_service(tmp_path / "data", env={"RETOMA_SCRIPTED_TOKENS": "5"}) as service:
        api = Api(service)
        task = api.create(store=False)
        api.wait_finished(task)
        service.kill()
    before = bytes_below(tmp_path / "data")
    assert before.keys() >= {"retoma.db", "retoma.db-wal"}
    ended = prune(tmp_path / "data", "--dry-run", "--json", "--unstored-minutes", "0")
    assert (counted(ended)["unstored"], bytes_below(tmp_path / "data")) == (1, before)


def test_a_dry_run_on_postgresql_touches_no_row(filled_postgres: Filled, postgres_url: str) -> None:
    def versions() -> list[Any]:
        return [
            administer(postgres_url, f"SELECT xmin::text, ctid::text FROM {table} ORDER BY 1, 2")  # noqa: S608
            for table in TABLES
        ]

    before = versions()
    assert counted(prune(filled_postgres.data_dir, "--dry-run", "--json")) == ALL_KINDS
    assert versions() == before


def test_there_is_no_dry_run_of_a_store_that_is_not_there(tmp_path: Path) -> None:
    ended = prune(tmp_path / "none", "--dry-run")
    assert (ended.status, "there is no store" in ended.err, (tmp_path / "none").exists()) == (1, True, False)


# Deleting


def assert_pruned(filled: Filled, ended: Ended) -> None:
    assert counted(ended) == {**ALL_KINDS, "snapshots": 1}
    listed = run_retoma("store", "info", "--json", "--data-dir", filled.data_dir)
    assert json.loads(listed.out)["tasks"] == {
        "completed": 1,
        "cancelled": 1,
        **dict.fromkeys(UNFINISHED, 1),
    }
    assert not list(filled.data_dir.glob("snapshots/*/*"))
    assert counted(prune(filled.data_dir, "--json", "--snapshot-hours", "1")) == dict.fromkeys(ALL_KINDS, 0)
    assert_store_is_sound(filled.data_dir)


@pytest.mark.requirement("P-11.2-retain", "P-11.2-never")
def test_what_a_dry_run_foresees_goes_and_nothing_else(filled: Filled) -> None:
    assert_pruned(filled, prune(filled.data_dir, "--json", "--snapshot-hours", "1"))


@pytest.mark.requirement("P-11.2-retain", "P-11.2-never")
def test_the_same_goes_on_postgresql(filled_postgres: Filled) -> None:
    assert_pruned(filled_postgres, prune(filled_postgres.data_dir, "--json", "--snapshot-hours", "1"))
    assert "autovacuum" in prune(filled_postgres.data_dir).err


@pytest.mark.requirement("S-005", "P-11.2-never")
@pytest.mark.parametrize("point", ["prune.written", "prune.committed"])
@pytest.mark.parametrize("passing", [1, 2, 3])
def test_a_prune_that_is_killed_leaves_nothing_half_gone_and_can_be_repeated(
    filled: Filled, point: str, passing: int
) -> None:
    killed = prune(filled.data_dir, RETOMA_FAILPOINT=f"{point}@{passing}")
    assert killed.status == -signal.SIGKILL
    assert_store_is_sound(filled.data_dir)
    assert prune(filled.data_dir, "--snapshot-hours", "1").status == 0
    assert counted(prune(filled.data_dir, "--dry-run", "--json")) == dict.fromkeys(ALL_KINDS, 0)
    assert_store_is_sound(filled.data_dir)


def test_another_window_counts_for_one_run_and_goes_before_what_is_stored(filled: Filled) -> None:
    with closing(SqliteStore(filled.data_dir / "retoma.db")) as store:
        store.transact(lambda tx: keep_service(tx, "svc_1", 0))
        world = World(store)
        world.does(change_service, ChangeService({"retention_days": 50, "unstored_minutes": 180}, None, 0, "op"))
    look = ("--dry-run", "--json")
    assert counted(prune(filled.data_dir, *look)) == {"stored": 0, "unstored": 0, "keys": 2, "snapshots": 0}
    assert counted(prune(filled.data_dir, *look, "--retention-days", "39"))["stored"] == 1
    assert counted(prune(filled.data_dir, *look, "--retention-days", "0.001"))["stored"] == 2
    assert counted(prune(filled.data_dir, *look, "--retention-days", "0", RETOMA_RETENTION_DAYS="1"))["stored"] == 0
    assert counted(prune(filled.data_dir, *look, "--unstored-minutes", "1"))["unstored"] == 1


@pytest.mark.requirement("P-11.2-retain")
def test_beside_a_running_service_what_goes_is_gone_for_its_clients_at_once(tmp_path: Path) -> None:
    slow = {"RETOMA_SCRIPTED_TOKENS": "400", "RETOMA_SCRIPTED_TOKEN_MS": "5"}
    with start_service(tmp_path / "data", env=slow) as service:
        api = Api(service)
        finished, running = api.create("a", store=False, max_output_tokens=3), api.create("b", store=False)
        api.wait_finished(finished)
        api.wait_tokens(running, 1)
        assert counted(prune(service.data_dir, "--json", "--unstored-minutes", "0"))["unstored"] == 1
        assert api.http.get(f"/v1/responses/{finished}").status_code == 404
        assert api.wait_finished(running)["status"] == "completed"
    assert_store_is_sound(tmp_path / "data")


@pytest.mark.parametrize("options", [("--retention-days", "-1"), ("--unstored-minutes", "x"), ("--snapshot-hours", "")])
def test_a_window_that_is_none_is_bad_usage(options: tuple[str, str], tmp_path: Path) -> None:
    ended = prune(tmp_path, *options)
    assert (ended.status, options[0] in ended.err, "Traceback" in ended.err) == (2, True, False)


@pytest.mark.parametrize("days", ["nan", "inf", "1e308"])
def test_a_window_without_a_bound_keeps_everything(days: str, filled: Filled) -> None:
    assert counted(prune(filled.data_dir, "--json", "--retention-days", days))["stored"] == 0


# A clock that may be wrong


@pytest.fixture
def old_store(tmp_path: Path) -> Path:
    """A store in which nothing is younger than forty days."""
    (tmp_path / "data").mkdir()
    with closing(new_store(tmp_path / "data")) as store:
        World(store, ManualClock(SystemClock().wall_ms() - 40 * DAY_MS)).in_state(State.COMPLETED)
    return tmp_path / "data"


@pytest.mark.requirement("P-11.2-retain")
def test_a_clock_that_is_far_ahead_of_the_store_must_be_vouched_for(old_store: Path) -> None:
    foreseen = prune(old_store, "--dry-run")
    assert (foreseen.status, "nothing would be deleted" in foreseen.err) == (0, True)
    refused = prune(old_store)
    assert (refused.status, "--trust-clock" in refused.err) == (3, True)
    assert counted(prune(old_store, "--dry-run", "--json"))["stored"] == 1
    assert counted(prune(old_store, "--json", "--trust-clock"))["stored"] == 1


# Space


def large_store(data_dir: Path, *, incremental: bool, tasks: int = 6) -> None:
    """A file, as an older release makes it unless it is `incremental`, of which most is past its time."""
    data_dir.mkdir()
    path = data_dir / "retoma.db"
    prepare(path, 0)
    if not incremental:
        with closing(apsw.Connection(str(path))) as connection:
            connection.execute("PRAGMA journal_mode = DELETE; PRAGMA auto_vacuum = NONE; VACUUM").fetchall()
    request = encode_json({**REQUEST, "input": "x" * 4_000_000})
    with closing(SqliteStore(path)) as store:
        world = World(store, ManualClock(SystemClock().wall_ms() - 2 * HOUR_MS))
        for number in range(tasks):
            world.in_state(State.CANCELLED, stored=number % 3 == 0, request=request)


def digest_of(path: Path) -> str:
    sha = hashlib.sha256()
    with closing(apsw.Connection(str(path))) as connection:
        for table in TABLES:
            columns = [name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]
            for row in connection.execute(f"SELECT {','.join(columns)} FROM {table} ORDER BY 1, 2"):  # noqa: S608
                sha.update(repr(row).encode())
    return sha.hexdigest()


def auto_vacuum(path: Path) -> int:
    with closing(apsw.Connection(str(path))) as connection:
        return connection.pragma("auto_vacuum")


def test_a_prune_gives_all_free_space_back(tmp_path: Path) -> None:
    large_store(tmp_path / "data", incremental=True)
    path = tmp_path / "data" / "retoma.db"
    before = path.stat().st_size
    ended = prune(tmp_path / "data", "--json")
    assert counted(ended)["unstored"] == 4
    shown = json.loads(ended.out)["bytes"]
    assert (shown["free"], shown["given_back"]) == (0, before - path.stat().st_size)
    assert shown["given_back"] > 15_000_000
    assert problems(path) == []


def test_a_file_of_an_older_release_is_compacted_once_and_gives_space_back_from_then_on(tmp_path: Path) -> None:
    large_store(tmp_path / "data", incremental=False)
    path = tmp_path / "data" / "retoma.db"
    pruned = prune(tmp_path / "data")
    assert (pruned.status, "retoma store compact" in pruned.err) == (0, True)
    before, content = path.stat().st_size, digest_of(path)
    ended = run_retoma("store", "compact", "--json", "--data-dir", tmp_path / "data")
    assert ended.status == 0, ended.err
    done = json.loads(ended.out)
    assert (done["before_bytes"], done["after_bytes"]) == (before, path.stat().st_size)
    assert (before - path.stat().st_size > 15_000_000, auto_vacuum(path), digest_of(path)) == (True, 2, content)
    assert {one.name for one in (tmp_path / "data").iterdir()} == {"retoma.db"}
    assert problems(path) == []
    assert counted(prune(tmp_path / "data", "--json", "--retention-days", "0.01"))["stored"] == 2
    assert path.stat().st_size < 1_000_000


@pytest.mark.requirement("S-002", "S-002d")
def test_a_store_that_is_in_use_is_not_compacted(tmp_path: Path) -> None:
    with start_service(tmp_path / "data", env=SHORT) as service:
        ended = run_retoma("store", "compact", "--data-dir", service.data_dir)
        assert (ended.status, "another process has the store open" in ended.err) == (3, True)
        api = Api(service)
        assert api.wait_finished(api.create())["status"] == "completed"
    assert run_retoma("store", "compact", "--data-dir", tmp_path / "data").status == 0


def test_a_service_that_starts_during_a_compaction_waits_and_loses_nothing(tmp_path: Path) -> None:
    large_store(tmp_path / "data", incremental=False, tasks=12)
    folder = tmp_path / "data"
    command = [sys.executable, "-P", "-m", "retoma", "store", "compact", "--data-dir", str(folder)]
    with subprocess.Popen(command, env=environment()) as compacting:
        wait_for(lambda: any(link.endswith("(deleted)") for link in opened_in(folder, compacting.pid)), "it to begin")
        compacting.send_signal(signal.SIGSTOP)
        with launch_service(folder, env=SHORT) as service:
            wait_for(lambda: opened_in(folder, service.pid), "the service to open the store")
            compacting.send_signal(signal.SIGCONT)
            assert compacting.wait(30) == 0
            api = Api(service.wait_ready())
            assert len(api.http.get("/v1/tasks").json()["data"]) >= 4
            assert api.wait_finished(api.create())["status"] == "completed"
    assert_store_is_sound(folder)


def opened_in(folder: Path, pid: int) -> list[str]:
    """Which files of this folder a process has open; SQLite's temporary ones have no name any more."""
    try:
        links = [str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []
    return [link for link in links if link.startswith(f"{folder}/")]


@pytest.fixture(scope="module")
def half_empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file without incremental vacuum, half of it free, and half of it used."""
    data_dir = tmp_path_factory.mktemp("half") / "data"
    large_store(data_dir, incremental=False, tasks=18)
    assert prune(data_dir).status == 0
    return data_dir


@pytest.mark.requirement("S-005", "S-005a")
@pytest.mark.parametrize("turn", range(12))
def test_a_compaction_that_is_killed_at_any_moment_leaves_the_store_whole(
    half_empty: Path, tmp_path: Path, rng: Random, turn: int
) -> None:
    data_dir = Path(shutil.copytree(half_empty, tmp_path / "data"))
    content = digest_of(data_dir / "retoma.db")
    moment = Random(rng.random() + turn).uniform(0, 60_000_000)
    command = [sys.executable, "-P", "-m", "retoma", "store", "compact", "--data-dir", str(data_dir)]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL) as compacting:
        wait_for(lambda: compacting.poll() is not None or _written(compacting.pid) > moment, "its death", 60)
        compacting.kill()
    assert digest_of(data_dir / "retoma.db") == content
    assert problems(data_dir / "retoma.db") == []
    ended = run_retoma("store", "compact", "--data-dir", data_dir)
    assert ended.status == 0, ended.err
    assert {one.name for one in data_dir.iterdir()} == {"retoma.db"}
    assert (digest_of(data_dir / "retoma.db"), auto_vacuum(data_dir / "retoma.db")) == (content, 2)


def _written(pid: int) -> int:
    """Bytes that a process has given to the system to write; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/io").read_text().split("wchar: ")[1].split()[0])
    except (OSError, IndexError):
        return 0


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(sqlite_space.shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    return


@pytest.mark.usefixtures("little_room")
def test_without_the_room_for_it_nothing_is_compacted_and_the_room_is_named(half_empty: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(half_empty, tmp_path / "data")) / "retoma.db"
    before = path.read_bytes()
    with pytest.raises(StoreFull, match=r"takes 5\d\.\d MB of the disk .* it has 1\.0 MB"):
        sqlite_space.compact(path)
    assert path.read_bytes() == before


def test_a_store_in_postgresql_is_not_compacted_but_the_tool_that_does_it_is_named(
    postgres_url: str, tmp_path: Path
) -> None:
    ended = run_retoma("store", "compact", "--data-dir", place_on(postgres_url, tmp_path / "data"))
    assert (ended.status, "VACUUM FULL" in ended.err) == (3, True)
