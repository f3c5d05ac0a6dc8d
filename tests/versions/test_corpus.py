"""Stores of earlier schemas: this release reads them byte for byte, goes on with them, and leaves a way back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import apsw
import pytest

from retoma.core.restart import decide_restart
from retoma.core.task import State
from retoma.errors import Refused
from retoma.store.migrate import prepare, schema_problems
from retoma.store.schema import COMPATIBILITY, SCHEMA_VERSION, Migration, migrations_for
from retoma.store.sqlite import SqliteStore
from retoma.transactions.accept import Accepted, accept
from retoma.transactions.recover import recover
from tests.support.clock import SequentialIds
from tests.support.stores import problems
from tests.support.world import World, key_of
from tools import schema_check
from tools.corpus import corpus, shown, write_store

CORPUS = corpus()
FAR_MS = 4_000_000_000_000


@pytest.fixture(params=CORPUS, ids=lambda path: path.stem)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copy(request.param, tmp_path / "retoma.db"))


@pytest.fixture
def expected(old: Path, request: pytest.FixtureRequest) -> list[dict[str, object]]:
    fixture: Path = request.node.callspec.params["old"]
    return json.loads(fixture.with_suffix(".json").read_text())


def go_on(path: Path, space: int) -> None:
    """What a start does with what was left behind, and then each task to its end."""
    store = SqliteStore(path)
    world = World(store, ids=SequentialIds(space), me=f"instance-{space}")
    for owner in ("inst_of_the_past", "other"):
        for task in world.unfinished_of(owner):
            moved = world.does(recover, world.recover_command(task))
            assert moved is not None
            assert moved.state is decide_restart(task.state, task.on_restart)[1]
    while (claimed := world.claim()) is not None:
        world.start(claimed)
    for task in world.unfinished_of(world.me):
        world.append(task, "and on")
        world.finish(task)
    assert world.problems() == []
    store.close()


def dump(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row of a store."""
    connection = apsw.Connection(f"file:{path}?immutable=1", flags=apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READONLY)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    rows = {table: connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in tables}  # noqa: S608
    connection.close()
    return rows


def alter(path: Path, sql: str, *values: object) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(sql, values).fetchall()
    connection.close()


def test_there_is_a_store_of_every_schema_up_to_this_one() -> None:
    assert [path.stem for path in CORPUS] == [f"schema_{version}" for version in range(1, SCHEMA_VERSION + 1)]


@pytest.mark.requirement("S-004", "S-004a")
def test_an_earlier_store_shows_the_same_tasks_events_and_responses_byte_for_byte(
    old: Path, expected: list[dict[str, object]]
) -> None:
    prepare(old, 0)
    store = SqliteStore(old)
    assert shown(store) == expected
    store.close()
    assert problems(old) == []
    assert {one["state"] for one in expected} == set(State)


@pytest.mark.requirement("S-004", "S-004a")
def test_an_earlier_store_is_recovered_and_every_task_comes_to_its_end(
    old: Path, expected: list[dict[str, object]]
) -> None:
    prepare(old, 0)
    go_on(old, 50)
    store = SqliteStore(old)
    after = shown(store)
    store.close()
    assert [one["id"] for one in after] == [one["id"] for one in expected]
    assert all(State(one["state"]).finished for one in after)
    assert problems(old) == []


@pytest.mark.requirement("S-004", "S-004a")
def test_the_keys_of_an_earlier_store_still_lead_to_their_tasks(old: Path, expected: list[dict[str, object]]) -> None:
    prepare(old, 0)
    store = SqliteStore(old)
    world = World(store, ids=SequentialIds(51))
    for one in expected:
        name = f"{one['state']} {one['on_restart']}"
        again = world.accept_command(key=key_of(name, expires_at_ms=FAR_MS))
        assert world.does(accept, again) == Accepted(one["id"], replayed=True)
    store.close()


def test_the_store_of_this_schema_is_made_the_same_by_the_transactions_of_today(tmp_path: Path) -> None:
    """Where they write something else, it must still be read by the release before: see to it, then `tools.corpus`."""
    write_store(tmp_path / "again.db")
    assert dump(tmp_path / "again.db") == dump(CORPUS[-1])


# Releases side by side, and the way back

NEXT = """
    ALTER TABLE tasks ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm';
    CREATE TABLE moods (task_id TEXT PRIMARY KEY, mood TEXT NOT NULL) STRICT;
    CREATE INDEX tasks_by_mood ON tasks (mood);
"""


def migrated_by_the_next_release(path: Path, oldest: int) -> None:
    alter(path, NEXT)
    alter(path, "INSERT INTO migrations VALUES (?, 'next', 'x', ?, ?, 0)", SCHEMA_VERSION + 1, oldest, oldest)


@pytest.mark.requirement("S-004", "S-004b")
def test_this_release_and_the_next_work_on_one_store_at_once_and_after_a_way_back(old: Path) -> None:
    """Upgrade, both at once, back to this release, upgrade again: nothing is lost and nothing has to be undone."""
    prepare(old, 0)
    migrated_by_the_next_release(old, SCHEMA_VERSION)
    assert prepare(old, 0).version == SCHEMA_VERSION + 1
    store = SqliteStore(old)
    world = World(store, ids=SequentialIds(60), me="other")
    task = world.in_state(State.RUNNING, priority=-1)
    # The next release writes its own column of the same row, and a row of its own table.
    alter(old, "UPDATE tasks SET mood = 'glad' WHERE id = ?", task.id)
    alter(old, "INSERT INTO moods VALUES (?, 'glad')", task.id)
    world.append(task, "written by this release")
    store.close()
    go_on(old, 61)
    connection = apsw.Connection(str(old))
    assert connection.execute("SELECT mood FROM tasks WHERE id = ?", (task.id,)).fetchall() == [("glad",)]
    assert connection.execute("SELECT count(*) FROM tasks WHERE mood NOT IN ('calm', 'glad')").fetchall() == [(0,)]
    connection.close()
    assert schema_problems(old) == []
    assert problems(old) == []


@pytest.mark.requirement("S-004", "S-004b")
def test_a_store_that_needs_a_newer_release_is_refused_with_its_bytes_unchanged(old: Path) -> None:
    prepare(old, 0)
    migrated_by_the_next_release(old, SCHEMA_VERSION + 1)
    before = {path.name: path.read_bytes() for path in old.parent.iterdir()}
    with pytest.raises(Refused, match="needs a newer Retoma"):
        prepare(old, 0)
    assert {path.name: path.read_bytes() for path in old.parent.iterdir()} == before


# The check of the schema


@pytest.mark.requirement("S-004", "S-004c")
def test_the_migrations_only_add_and_lead_to_the_schema_of_a_fresh_store() -> None:
    assert schema_check.problems() == []


@pytest.mark.requirement("S-004", "S-004c")
@pytest.mark.parametrize(
    ("sql", "wrong"),
    [
        ("ALTER TABLE tasks DROP COLUMN model", "has a DROP"),
        ("drop index tasks_queue", "has a DROP"),
        ("ALTER TABLE tasks RENAME COLUMN model TO name", "has a RENAME"),
        ("ALTER TABLE tasks ALTER  COLUMN model TYPE bigint", "has a ALTER COLUMN"),
        ("TRUNCATE tasks", "has a TRUNCATE"),
        ("CREATE TRIGGER t BEFORE TRUNCATE ON tasks FOR EACH STATEMENT f(); TRUNCATE tasks", "has a TRUNCATE"),
        ("-- CREATE TRIGGER t BEFORE\nTRUNCATE /* ON */ tasks", "has a TRUNCATE"),
        ("ALTER TABLE tasks ADD COLUMN mood TEXT NOT NULL", "adds the column mood"),
    ],
)
def test_a_migration_that_an_older_release_could_stumble_over_is_noticed(sql: str, wrong: str) -> None:
    assert [problem for problem in schema_check.contractions(sql) if wrong in problem]


@pytest.mark.parametrize(
    "sql",
    [
        NEXT,
        "-- DROP nothing\nCREATE TABLE t (x)",
        "CREATE TRIGGER t BEFORE DELETE ON tasks BEGIN SELECT RAISE(ABORT, 'never DROP it'); END",
        "CREATE TRIGGER t BEFORE TRUNCATE ON tasks\nFOR EACH STATEMENT EXECUTE FUNCTION retoma_refuse('no')",
        "CREATE FUNCTION f() RETURNS trigger AS $$ BEGIN DROP TABLE x; END $$ LANGUAGE plpgsql",
        "ALTER TABLE tasks ADD COLUMN mood TEXT; ALTER TABLE tasks ADD COLUMN n bigint NOT NULL DEFAULT 0",
    ],
)
def test_a_migration_that_only_adds_is_fine(sql: str) -> None:
    assert list(schema_check.contractions(sql)) == []


def test_a_schema_that_leaves_no_way_back_is_noticed() -> None:
    assert list(schema_check.wrong_compatibility({1: (1, 1), 2: (1, 1)}, 2)) == []
    assert "nobody could go back" in next(schema_check.wrong_compatibility({1: (1, 1), 2: (1, 2)}, 2))
    assert "is said of the schemas" in next(schema_check.wrong_compatibility({2: (1, 1)}, 2))
    assert list(schema_check.wrong_compatibility(COMPATIBILITY, SCHEMA_VERSION)) == []


def test_migrations_that_differ_between_the_databases_or_leave_a_number_out_are_noticed() -> None:
    sqlite = migrations_for("sqlite")
    other = Migration(SCHEMA_VERSION + 1, "other", "")
    assert len(list(schema_check.wrong_numbers([*sqlite, other], sqlite))) == 2
    assert list(schema_check.wrong_numbers(sqlite, migrations_for("postgres"))) == []


def test_a_store_whose_migrated_schema_is_another_than_a_fresh_one_is_noticed(old: Path) -> None:
    alter(old, "DROP INDEX tasks_by_client")
    assert schema_check.differences(old) == [f"{old.name}, migrated: the index tasks_by_client is missing"]
