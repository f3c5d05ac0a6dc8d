"""`retoma store` and `retoma settings` on PostgreSQL, and a password that nobody gets to see."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest

from retoma.errors import Refused
from retoma.settings import Settings, without_password
from retoma.store import compare_postgres
from retoma.store.compare_postgres import schema_problems
from retoma.store.migrate_postgres import prepare
from retoma.store.postgres_server import Server
from retoma.store.schema import SCHEMA_VERSION
from retoma.transactions.models import register_model
from tests.support.command import Ended, run_retoma
from tests.support.postgres import administer, new_postgres_store, new_schema
from tests.support.world import World
from tests.transactions.test_registries import MODEL

SECRET = "hunter2"


@pytest.fixture(scope="module")
def filled(postgres: str) -> str:
    """A store with a finished response, a waiting one, and a model whose file is on another host."""
    url = new_schema(postgres)
    store = new_postgres_store(url)
    world = World(store)
    world.finish(world.running())
    world.accept()
    world.does(register_model, MODEL)
    store.close()
    return url


def retoma(data_dir: Path, url: str, *command: str, env: Mapping[str, str] | None = None) -> Ended:
    return run_retoma(*command, "--data-dir", data_dir, env={"RETOMA_STORE": url, **(env or {})})


def with_password(url: str) -> str:
    return url.replace("postgres@", f"postgres:{SECRET}@", 1)


def test_info_shows_what_a_postgresql_store_holds_and_no_password(filled: str, tmp_path: Path) -> None:
    ended = retoma(tmp_path, with_password(filled), "store", "info", "--json")
    assert ended.status == 0, ended.err
    shown = json.loads(ended.out)
    assert (shown["tasks"], shown["models"]) == ({"completed": 1, "queued": 1}, 1)
    assert shown["schema_version"] == SCHEMA_VERSION
    assert shown["bytes"]["database"] > 0
    assert shown["store"].startswith("postgresql://postgres:***@")
    assert SECRET not in ended.out + ended.err


@pytest.mark.requirement("S-003")
def test_a_sound_postgresql_store_passes_the_check_and_migrating_it_again_changes_nothing(
    filled: str, tmp_path: Path
) -> None:
    ended = retoma(tmp_path, filled, "store", "check", "--json")
    assert (ended.status, json.loads(ended.out)) == (0, []), ended.err
    assert f"schema {SCHEMA_VERSION}" in retoma(tmp_path, filled, "store", "migrate").out
    assert administer(filled, "SELECT max(version) FROM migrations") == [(SCHEMA_VERSION,)]


def test_a_changed_response_is_found_and_derived_again(postgres_url: str, tmp_path: Path) -> None:
    store = new_postgres_store(postgres_url)
    world = World(store)
    task = world.finish(world.running())
    before = world.response(task.id)
    administer(postgres_url, "UPDATE responses SET body = '{}'")
    checked = retoma(tmp_path, postgres_url, "store", "check", "--json")
    assert checked.status == 1
    assert {finding["task_id"] for finding in json.loads(checked.out)} == {task.id}
    rebuilt = retoma(tmp_path, postgres_url, "store", "rebuild", "--json")
    assert (rebuilt.status, json.loads(rebuilt.out)["replaced"]) == (0, [task.id])
    assert world.response(task.id) == before
    store.close()


def test_a_postgresql_store_is_not_copied_but_the_tool_that_does_it_is_named(filled: str, tmp_path: Path) -> None:
    ended = retoma(tmp_path, filled, "store", "backup", str(tmp_path / "copy"))
    assert (ended.status, ended.err.count("pg_dump")) == (3, 1)
    assert not (tmp_path / "copy").exists()


CHANGES = {
    "ALTER TABLE tasks ADD COLUMN mine text": "the column tasks.mine is not of this schema",
    "ALTER TABLE tasks ALTER COLUMN request DROP NOT NULL": "the column tasks.request is not as it was made",
    "ALTER TABLE tasks DROP CONSTRAINT tasks_attempt_check": "the constraint tasks_attempt_check of tasks is missing",
    "DROP INDEX tasks_queue": "the index tasks_queue is missing",
    "DROP INDEX tasks_queue; CREATE INDEX tasks_queue ON tasks (id)": "the index tasks_queue is not as it was made",
    "DROP TRIGGER tasks_end_for_good ON tasks": "the trigger tasks_end_for_good is missing",
    "DROP TABLE snapshots": "the column snapshots.path is missing",
    "CREATE OR REPLACE FUNCTION tasks_move_with_their_event() RETURNS trigger LANGUAGE plpgsql "
    "SET search_path FROM CURRENT AS 'BEGIN RETURN NEW; END'": (
        "the function tasks_move_with_their_event is not as it was made"
    ),
    "UPDATE migrations SET checksum = 'x'": "migration 1 was applied with another text",
}


@pytest.mark.parametrize("change", CHANGES, ids=range(len(CHANGES)))
def test_tables_that_are_not_as_they_were_made_are_found(postgres_url: str, change: str) -> None:
    prepare(postgres_url, 0)
    assert schema_problems(postgres_url) == []
    administer(postgres_url, change)
    assert CHANGES[change] in schema_problems(postgres_url)


def test_another_programs_table_beside_ours_is_none_of_our_business(postgres_url: str) -> None:
    prepare(postgres_url, 0)
    administer(postgres_url, "CREATE TABLE theirs (id int PRIMARY KEY)", "CREATE INDEX their_index ON theirs (id)")
    assert schema_problems(postgres_url) == []
    schemas = administer(postgres_url, "SELECT nspname FROM pg_namespace")
    assert [name for (name,) in schemas if str(name).startswith(compare_postgres.FRESH)] == []


def test_settings_show_no_password(tmp_path: Path) -> None:
    for url in (f"postgresql://me:{SECRET}@db/retoma", f"postgresql://me@db/retoma?password={SECRET}&sslmode=require"):
        for words in (("settings",), ("settings", "--json")):
            ended = retoma(tmp_path, url, *words)
            assert ended.status == 0
            assert SECRET not in ended.out + ended.err
            assert "***" in ended.out
    assert SECRET not in repr(Settings(store=f"postgresql://me:{SECRET}@db/retoma"))


def test_a_server_that_is_away_is_told_without_the_password(tmp_path: Path) -> None:
    url = f"postgresql://me:{SECRET}@127.0.0.1:1/retoma"
    for words in (("store", "info"), ("--debug", "store", "check"), ("serve", "--port", "0")):
        ended = retoma(tmp_path, url, *words)
        assert ended.status == 1
        assert "can't be reached" in ended.err
        assert SECRET not in ended.out + ended.err


@pytest.mark.parametrize("torn", ["a/b", "a@b", "a?b@c", "a#b/c"])
def test_a_password_that_tears_the_url_apart_is_refused_unseen(torn: str, tmp_path: Path) -> None:
    url = f"postgresql://me:{SECRET}{torn}{SECRET}@db/retoma"
    assert SECRET not in without_password(url)
    ended = retoma(tmp_path, url, "store", "info")
    assert (ended.status, "password" in ended.err, SECRET in ended.err) == (3, True, False)
    with pytest.raises(Refused):
        partial(Server, url)()
    Server(f"postgresql://me:{quote(SECRET + torn, safe='')}@db/retoma")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me@db/retoma?host=%2Ftmp", "postgresql://me@db/retoma?host=%2Ftmp"),
        ("postgresql://me:x@db:5432/retoma", "postgresql://me:***@db:5432/retoma"),
        ("postgres://db/r?sslpassword=x&sslmode=prefer", "postgres://db/r?sslpassword=***&sslmode=prefer"),
        ("sqlite:////tmp/a.db", "sqlite:////tmp/a.db"),
        ("", ""),
    ],
)
def test_only_the_password_of_a_url_is_hidden(url: str, shown: str) -> None:
    assert without_password(url) == shown
