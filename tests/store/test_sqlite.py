"""The SQLite driver on real files: opening, refusing, waiting, checkpoints, a full disk, two processes at once."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw
import pytest

from retoma import limits
from retoma.errors import Conflict, Refused, RetomaError, ShuttingDown, StoreFull, StoreUnavailable
from retoma.store import migrate, sqlite
from retoma.store.migrate import APPLICATION_ID, SCHEMA_VERSION, Schema, prepare, schema_problems
from retoma.store.sqlite import SqliteStore, SqliteWriteConnection, require_safe_library
from retoma.store.statements import Statement, statement
from retoma.store.writer import CommitUnknown, Writer
from tests.support import processes
from tests.support.faulty_vfs import FaultyVfs
from tests.support.stores import new_file, new_store, problems
from tests.support.world import World

BOUND_S = 20.0
READ = statement("service_config.read")
ALL_TASKS = Statement("all tasks", "Every id.", "SELECT id FROM tasks")


def bytes_of(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


# Opening


@pytest.mark.requirement("P-11.1-sqlite", "P-11.1-tables")
def test_a_new_file_gets_the_schema_once_and_the_tables_of_the_specification(tmp_path: Path) -> None:
    path = tmp_path / "retoma.db"
    assert prepare(path, 7) == prepare(path, 8) == Schema(SCHEMA_VERSION, 1, 1)
    connection = apsw.Connection(str(path))
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    applied = connection.execute("SELECT version, applied_at_ms FROM migrations").fetchall()
    connection.close()
    specified = {"service_config", "clients", "models", "responses", "tasks", "task_events", "idempotency_keys"}
    assert specified <= tables
    assert applied == [(version, 7) for version in range(1, SCHEMA_VERSION + 1)]
    assert schema_problems(path) == []


@pytest.mark.requirement("P-11.1-sqlite")
def test_a_connection_has_every_setting_that_the_guarantees_rest_on(tmp_path: Path) -> None:
    connection = sqlite.open_connection(new_file(tmp_path))
    expected = {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "trusted_schema": 0,
        "wal_autocheckpoint": 0,
    }
    assert {name: connection.pragma(name) for name in expected} == expected
    connection.close()


@pytest.fixture
def half_open(tmp_path: Path) -> Iterator[apsw.Connection]:
    """Another connection that reads a file which is not in WAL mode yet."""
    other = apsw.Connection(str(tmp_path / "retoma.db"))
    other.execute("CREATE TABLE t (x); BEGIN; SELECT x FROM t")
    yield other
    other.close()


def test_opening_waits_while_another_has_the_new_file_open(
    tmp_path: Path, half_open: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def let_go(_: int) -> bool:
        if half_open.in_transaction:
            half_open.execute("COMMIT")
        return False

    monkeypatch.setattr(sqlite, "_wait_for_lock", let_go)
    connection = sqlite.open_connection(tmp_path / "retoma.db")
    assert connection.pragma("journal_mode") == "wal"
    connection.close()


def test_opening_does_not_wait_for_ever(
    tmp_path: Path, half_open: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BUSY_WAIT_MS_MAX", 1)
    with pytest.raises(StoreUnavailable, match="busy"):
        sqlite.open_connection(tmp_path / "retoma.db")
    assert half_open.in_transaction


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ("3.54.1", True),
        ("3.51.3", True),
        ("3.51.2", False),
        ("3.50.7", True),
        ("3.50.6", False),
        ("3.44.6", True),
        ("3.44.5", False),
        ("3.46.1", False),
    ],
)
def test_a_library_that_can_corrupt_a_shared_file_is_refused(version: str, safe: bool) -> None:
    if safe:
        require_safe_library(version)
    else:
        with pytest.raises(Refused, match="install apsw"):
            require_safe_library(version)


def foreign_database(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE notes (text); INSERT INTO notes VALUES ('mine')")
    connection.close()


def half_foreign_database(path: Path) -> None:
    foreign_database(path)
    connection = apsw.Connection(str(path))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.close()


def newer_schema(path: Path) -> None:
    prepare(path, 0)
    connection = apsw.Connection(str(path))
    connection.execute("INSERT INTO migrations VALUES (9, 'far', 'x', 8, 8, 0)")
    connection.close()


UNOPENABLE: dict[str, Callable[[Path], object]] = {
    "another program's database": foreign_database,
    "another program's database with our number": half_foreign_database,
    "garbage": lambda path: path.write_bytes(b"This is a letter to my aunt. " * 400),
    "a short text": lambda path: path.write_bytes(b"hello"),
    "a newer schema": newer_schema,
}


@pytest.mark.requirement("S-004")
@pytest.mark.parametrize("make", UNOPENABLE.values(), ids=UNOPENABLE)
def test_a_file_that_is_not_ours_is_refused_and_keeps_its_bytes(tmp_path: Path, make: Callable[[Path], object]) -> None:
    path = tmp_path / "some.db"
    make(path)
    before = bytes_of(tmp_path)
    with pytest.raises(Refused):
        prepare(path, 0)
    assert bytes_of(tmp_path) == before


@pytest.mark.requirement("S-004")
def test_a_newer_schema_that_names_us_among_its_writers_is_used_as_it_is(tmp_path: Path) -> None:
    path = new_file(tmp_path)
    connection = apsw.Connection(str(path))
    connection.execute("ALTER TABLE tasks ADD COLUMN mood TEXT")
    connection.execute("INSERT INTO migrations VALUES (?, 'next', 'x', 1, 1, 0)", (SCHEMA_VERSION + 1,))
    connection.close()
    assert prepare(path, 0) == Schema(SCHEMA_VERSION + 1, 1, 1)
    store = SqliteStore(path)
    world = World(store)
    world.finish(world.running())
    assert world.problems() == []
    store.close()
    assert schema_problems(path) == []


@pytest.mark.requirement("S-004", "S-004c")
def test_an_older_schema_is_migrated_after_a_backup_in_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = new_file(tmp_path)
    next_version = SCHEMA_VERSION + 1
    added = migrate.Migration(next_version, "mood", "ALTER TABLE clients ADD COLUMN mood TEXT")
    before = migrate.migrations()
    monkeypatch.setattr(migrate, "migrations", lambda: [*before, added])
    monkeypatch.setattr(migrate, "SCHEMA_VERSION", next_version)
    monkeypatch.setattr(migrate, "_COMPATIBILITY", {next_version: (1, 1)})
    assert prepare(path, 5).version == next_version
    assert schema_problems(path) == []
    backup = apsw.Connection(str(tmp_path / f"retoma.db.before-schema-{next_version}"))
    assert backup.execute("SELECT max(version) FROM migrations").fetchall() == [(SCHEMA_VERSION,)]
    backup.close()


@pytest.mark.requirement("S-004")
def test_a_migration_that_fails_leaves_the_store_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = new_file(tmp_path)
    broken = migrate.Migration(
        SCHEMA_VERSION + 1, "broken", "ALTER TABLE clients ADD COLUMN mood TEXT; SELECT nonsense"
    )
    before = migrate.migrations()
    monkeypatch.setattr(migrate, "migrations", lambda: [*before, broken])
    monkeypatch.setattr(migrate, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    with pytest.raises(StoreUnavailable):
        prepare(path, 5)
    monkeypatch.undo()
    assert prepare(path, 6).version == SCHEMA_VERSION
    assert schema_problems(path) == []


def test_a_changed_schema_is_noticed(tmp_path: Path) -> None:
    path = new_file(tmp_path)
    connection = apsw.Connection(str(path))
    connection.execute(
        "DROP TRIGGER tasks_end_for_good; DROP INDEX tasks_finished; CREATE TABLE extra (x); "
        "DROP INDEX tasks_by_client; CREATE INDEX tasks_by_client ON tasks (id); "
        "UPDATE migrations SET checksum = 'another' WHERE version = 1"
    )
    connection.close()
    assert schema_problems(path) == [
        "the index tasks_finished is missing",
        "the trigger tasks_end_for_good is missing",
        "the table extra is not of this schema",
        "the index tasks_by_client is not as it was made",
        "migration 1 was applied with another text",
    ]


def test_a_damaged_page_and_a_dangling_row_are_noticed(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    assert store.integrity_problems() == []
    store.close()
    connection = apsw.Connection(str(store.path))
    connection.execute("INSERT INTO idempotency_keys VALUES ('c', zeroblob(16), zeroblob(32), 'gone', 0, 0)")
    connection.execute("INSERT INTO snapshots VALUES ('gone', 1, 1, 'p', 1, 'f', 0)")
    (root,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'tasks_queue'").fetchone()
    size = connection.pragma("page_size")
    connection.close()
    with store.path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)
    reopened = SqliteStore(store.path)
    found = reopened.integrity_problems()
    reopened.close()
    assert "a row of idempotency_keys refers to a row of tasks that is not there" in found
    assert "a row of snapshots refers to a row of tasks that is not there" in found
    assert any("tasks_queue" in problem or "btree" in problem.lower() for problem in found)


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder with a store that nobody may write to; the folders of `tmp_path` can't be entered by another user."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        new_file(folder).chmod(0o444)
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)


def test_a_folder_that_may_not_be_written_is_unavailable_and_says_which(read_only: Path) -> None:
    folder = read_only

    def act() -> int:
        for path in (folder / "retoma.db", folder / "new.db"):
            try:
                prepare(path, 0)
            except StoreUnavailable as error:
                if str(path) not in error.message:
                    return 2
            else:
                return 1
        return 0

    assert processes.in_child(act, as_nobody=True) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["retoma.db"]


def test_a_missing_folder_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="nowhere"):
        prepare(tmp_path / "nowhere" / "retoma.db", 0)


ERRORS = {
    apsw.FullError: StoreFull,
    apsw.ConstraintError: Conflict,
    apsw.CorruptError: Refused,
    apsw.NotADBError: Refused,
    apsw.ReadOnlyError: StoreUnavailable,
    apsw.CantOpenError: StoreUnavailable,
    apsw.BusyError: StoreUnavailable,
    apsw.LockedError: StoreUnavailable,
    apsw.IOError: StoreUnavailable,
}


@pytest.mark.parametrize(("code", "expected"), ERRORS.items())
def test_each_error_code_of_the_driver_has_its_word(code: type[apsw.Error], expected: type[RetomaError]) -> None:
    assert type(sqlite.translate(code("x"), Path("p"))) is expected


# Work


def write(name: str) -> Callable[[Any], int]:
    insert = statement("service_config.insert")
    return lambda tx: tx.execute(insert, {"key": name, "value": "v" * 2_000, "now_ms": 0})


def has(store: SqliteStore, name: str) -> bool:
    return store.read(lambda tx: tx.row(READ, {"key": name})) is not None


def test_clients_at_once_share_commits(store: SqliteStore) -> None:
    barrier = threading.Barrier(16)

    def client(number: int) -> None:
        barrier.wait(BOUND_S)
        for turn in range(20):
            store.transact(write(f"{number}.{turn}"))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
    statistics = store.statistics()
    assert statistics["transactions"] == 320
    assert statistics["commits"] < 160


def test_a_function_that_breaks_a_rule_of_the_database_takes_only_itself_back(store: SqliteStore) -> None:
    def breaks(tx: Any) -> None:
        write("half")(tx)
        tx.execute(Statement("x", "x", "INSERT INTO clients VALUES ('c','n',x'00','[]',1,0,NULL,NULL)"), {})

    with pytest.raises(Conflict):
        store.transact(breaks)
    store.transact(write("next"))
    assert (has(store, "half"), has(store, "next")) == (False, True)


def test_a_reader_sees_one_state_and_can_not_write(store: SqliteStore) -> None:
    def look_twice(tx: Any) -> tuple[bool, bool]:
        first = tx.row(READ, {"key": "a"}) is None
        store.transact(write("a"))
        return first, tx.row(READ, {"key": "a"}) is None

    assert store.read(look_twice) == (True, True)
    assert has(store, "a")
    with pytest.raises(StoreUnavailable):
        store.read(write("b"))


def test_more_readers_than_connections_wait_for_each_other(store: SqliteStore) -> None:
    inside = threading.Barrier(sqlite.READERS_MAX + 1)
    go = threading.Event()
    results: list[bool] = []

    def slow(_: Any) -> bool:
        inside.wait(BOUND_S)
        return go.wait(BOUND_S)

    slow_ones = [threading.Thread(target=lambda: results.append(store.read(slow))) for _ in range(sqlite.READERS_MAX)]
    late = threading.Thread(target=lambda: results.append(store.read(lambda _: True)))
    for thread in slow_ones:
        thread.start()
    inside.wait(BOUND_S)
    late.start()
    assert results == []
    go.set()
    for thread in [*slow_ones, late]:
        thread.join(BOUND_S)
    assert results == [True] * (sqlite.READERS_MAX + 1)


def test_a_query_for_one_row_that_finds_two_is_a_mistake(store: SqliteStore) -> None:
    store.transact(write("a"))
    store.transact(write("b"))
    with pytest.raises(AssertionError, match="found 2 rows"):
        store.read(lambda tx: tx.row(Statement("x", "x", "SELECT key FROM service_config"), {}))


def test_a_broken_statement_is_an_error_of_the_store(store: SqliteStore) -> None:
    with pytest.raises(StoreUnavailable, match="reported an error"):
        store.read(lambda tx: tx.rows(Statement("y", "y", "SELECT nonsense"), {}))


def test_close_leaves_one_file_that_holds_everything(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    store.transact(write("a"))
    assert has(store, "a")
    store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["retoma.db"]
    with pytest.raises(ShuttingDown):
        store.transact(write("b"))
    with pytest.raises(StoreUnavailable):
        has(store, "a")
    with pytest.raises(StoreUnavailable):
        store.changed_elsewhere()
    reopened = SqliteStore(store.path)
    assert has(reopened, "a")
    reopened.close()


def test_wakes_are_delivered_after_the_commit(store: SqliteStore) -> None:
    woken: list[frozenset[str]] = []
    store.listen(lambda thunk: thunk(), woken.append)
    store.transact(lambda tx: tx.wake("resp_1"))
    store.transact(lambda _: None)
    assert woken == [frozenset({"resp_1"})]


# Checkpoints


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[SqliteWriteConnection]:
    connection = SqliteWriteConnection(new_file(tmp_path))
    yield connection
    connection.close()


def commit(connection: SqliteWriteConnection, name: str) -> None:
    connection.begin()
    write(name)(connection.tx)
    connection.commit()
    connection.after_batch()


def wal_bytes(path: Path) -> int:
    return path.with_name("retoma.db-wal").stat().st_size


def test_the_wal_is_moved_into_the_file_once_it_is_long_and_is_then_used_again(
    writing: SqliteWriteConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_PAGES", 10)
    sizes = []
    for number in range(60):
        commit(writing, f"n{number}")
        sizes.append(wal_bytes(tmp_path / "retoma.db"))
    assert max(sizes) < 40 * 4_200
    assert sizes[-1] == max(sizes)
    assert writing.checkpoint_problem is None


def test_without_a_checkpoint_the_wal_grows(writing: SqliteWriteConnection, tmp_path: Path) -> None:
    for number in range(60):
        commit(writing, f"n{number}")
    assert wal_bytes(tmp_path / "retoma.db") > 100 * 4_096


def test_a_reader_that_never_ends_holds_up_no_commit(
    writing: SqliteWriteConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_PAGES", 1)
    tries: list[int] = []
    monkeypatch.setattr(sqlite, "_wait_for_lock", lambda count: tries.append(count) or True)
    commit(writing, "first")
    reader = sqlite.open_connection(tmp_path / "retoma.db", read_only=True)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM service_config").fetchall()
    for number in range(20):
        commit(writing, f"n{number}")
    assert tries, "a checkpoint that waits was never tried"
    assert max(tries) < sqlite.CHECKPOINT_TRIES_MAX
    assert writing.checkpoint_problem is None
    reader.close()


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[FaultyVfs]:
    vfs = FaultyVfs()
    yield vfs
    vfs.unregister()


def test_a_checkpoint_that_fails_is_reported_and_tried_again(
    tmp_path: Path, faulty: FaultyVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_PAGES", 1)
    connection = SqliteWriteConnection(new_file(tmp_path), vfs=faulty.name)
    faulty.fail("write", ".db", apsw.IOError, times=None)
    commit(connection, "a")
    assert connection.checkpoint_problem is not None
    assert connection.checkpoint_problem.startswith("a checkpoint failed")
    faulty.mend()
    commit(connection, "b")
    assert connection.checkpoint_problem is None
    connection.close()
    assert problems(tmp_path / "retoma.db") == []


def test_the_store_reports_the_problem_of_its_checkpoint(store: SqliteStore) -> None:
    assert store.problem() is None
    assert store._write_connection is not None
    store._write_connection.checkpoint_problem = "a checkpoint failed: x"
    assert store.problem() == "a checkpoint failed: x"


# Errors of the disk


@pytest.mark.parametrize("step", ["write", "sync"])
@pytest.mark.requirement("S-005", "S-007", "S-005a", "S-007d")
def test_an_error_of_the_disk_at_the_commit_leads_to_one_effect(tmp_path: Path, faulty: FaultyVfs, step: str) -> None:
    connections: list[SqliteWriteConnection] = []

    def connect() -> SqliteWriteConnection:
        connections.append(SqliteWriteConnection(new_path, vfs=faulty.name))
        return connections[-1]

    new_path = new_file(tmp_path)
    writer = Writer(connect)
    faulty.fail(step, "-wal", apsw.IOError, times=1)
    outcome = settled(writer, write("a"))
    assert outcome.error is None
    assert len(connections) == 2
    writer.close()
    assert faulty.failures == 1
    store = SqliteStore(new_path)
    assert has(store, "a")
    store.close()
    assert problems(new_path) == []


def settled(writer: Writer, function: Callable[[Any], Any]) -> Any:
    outcomes: list[Any] = []
    done = threading.Event()
    writer.submit(function, lambda outcome: (outcomes.append(outcome), done.set()))
    assert done.wait(BOUND_S)
    return outcomes[0]


def test_errors_of_each_step_have_their_words(tmp_path: Path, faulty: FaultyVfs) -> None:
    connection = SqliteWriteConnection(new_file(tmp_path), vfs=faulty.name)
    connection.begin()
    write("a")(connection.tx)
    faulty.fail("sync", "-wal", apsw.IOError, times=1)
    with pytest.raises(CommitUnknown):
        connection.commit()
    connection.rollback()
    with pytest.raises(StoreUnavailable):
        connection._run("RELEASE nothing")
    assert connection.rollback_to_savepoint() is False
    connection.close()


@pytest.mark.requirement("P-11.2-persist", "S-005")
def test_a_full_disk_is_a_definite_no_at_every_write_and_later_works_again(tmp_path: Path, faulty: FaultyVfs) -> None:
    """Each write to the WAL in turn comes up short; what was refused must not be there after a restart."""
    path = new_file(tmp_path)
    refused = 0
    for step in range(40):
        writer = Writer(partial(SqliteWriteConnection, path, faulty.name))
        faulty.fail("write", "-wal", apsw.FullError, times=None, after=step)
        outcome = settled(writer, write(f"step{step}"))
        was_hit = faulty.failures > 0
        faulty.mend()
        after = settled(writer, write(f"after{step}"))
        writer.close()
        assert after.error is None
        connection = SqliteStore(path)
        there = has(connection, f"step{step}")
        connection.close()
        if not was_hit:
            assert outcome.error is None
            assert there
            break
        refused += 1
        assert isinstance(outcome.error, StoreFull)
        assert not there
    assert refused > 3
    assert problems(path) == []


@pytest.mark.requirement("S-005")
def test_a_disk_that_is_really_full_is_a_definite_no_and_later_works_again(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("mounting a small file system needs rights that this user has not; the test above stands in")
    try:
        store = new_store(disk)
        world = World(store)
        accepted = [world.accept().id]
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1_024)):
                pass
        for _ in range(3):
            with pytest.raises(StoreFull, match="free some space"):
                world.accept()
        assert store.problem() is not None
        assert world.task(accepted[0]).state == "queued"
        filler.unlink()
        accepted.append(world.accept().id)
        assert store.problem() is None
        there = {one for (one,) in store.read(lambda tx: tx.rows(ALL_TASKS, {}))}
        store.close()
        assert there == set(accepted)
        assert problems(disk / "retoma.db") == []
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


# Several processes


@pytest.fixture
def others(tmp_path: Path) -> Iterator[Callable[[int], Any]]:
    started: list[Any] = []

    def start(space: int) -> Any:
        started.append(processes.python("tests.support.instance", str(tmp_path / "retoma.db"), str(space)))
        return started[-1]

    yield start
    for process in started:
        assert processes.end(process) == 0


def test_a_writer_waits_for_a_lock_that_another_process_holds(
    tmp_path: Path, others: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(tmp_path)
    other = others(2)
    processes.tell(other, "lock")
    assert processes.line(other) == '"locked"'
    waited: list[int] = []
    wait = sqlite._wait_for_lock

    def handler(tries: int) -> bool:
        waited.append(tries)
        if tries == 20:
            processes.tell(other, "enough")
        return wait(tries)

    assert store._write_connection is not None
    store._write_connection._connection.set_busy_handler(handler)
    store.transact(write("a"))
    assert len(waited) > 20
    assert processes.line(other) == '"free"'
    store.close()


@pytest.mark.requirement("S-002d")
def test_a_lock_that_is_never_let_go_is_a_definite_no(
    tmp_path: Path, others: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BUSY_WAIT_MS_MAX", 5)
    store = new_store(tmp_path)
    other = others(2)
    processes.tell(other, "lock")
    processes.line(other)
    with pytest.raises(StoreUnavailable, match="busy"):
        store.transact(write("a"))
    assert not has(store, "a")
    processes.tell(other, "enough")
    processes.line(other)
    store.transact(write("a"))
    store.close()


@pytest.mark.requirement("S-002", "S-002c")
def test_two_processes_write_into_one_file_at_once_and_see_each_other(
    tmp_path: Path, others: Callable[[int], Any]
) -> None:
    store = new_store(tmp_path)
    world = World(store, me="instance-1")
    store.changed_elsewhere()
    other = others(2)
    processes.tell(other, "accept 150")
    mine = [world.accept().id for _ in range(150)]
    theirs = json.loads(processes.line(other))
    assert store.changed_elsewhere()
    assert not store.changed_elsewhere()
    there = {one for (one,) in store.read(lambda tx: tx.rows(ALL_TASKS, {}))}
    assert there == {*mine, *theirs}
    store.close()
    assert problems(tmp_path / "retoma.db") == []


@pytest.mark.requirement("S-002", "S-004")
def test_two_processes_that_make_the_same_new_store_at_once_both_succeed(
    tmp_path: Path, others: Callable[[int], Any]
) -> None:
    both = [others(2), others(3)]
    for _ in range(60):
        for path in tmp_path.iterdir():
            path.unlink()
        for process in both:
            processes.tell(process, "prepare")
        assert [processes.line(process) for process in both] == [str(SCHEMA_VERSION)] * 2
        assert schema_problems(tmp_path / "retoma.db") == []
