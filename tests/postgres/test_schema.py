"""The tables on PostgreSQL: every statement prepares, every trigger refuses, one process migrates at a time."""

from __future__ import annotations

import json
import re
import threading
from itertools import product

import psycopg
import pytest

from retoma.core.task import State
from retoma.core.transitions import TRANSITIONS
from retoma.errors import Refused, StoreUnavailable
from retoma.store import migrate_postgres, schema
from retoma.store.dialect import POSTGRES
from retoma.store.migrate_postgres import changed_migrations, prepare
from retoma.store.postgres import PostgresStore
from retoma.store.postgres_tx import psycopg_text
from retoma.store.schema import Migration, Schema, migrations_for
from retoma.store.statements import Statement, all_statements
from tests.support import processes
from tests.support.postgres import TABLES, administer, empty
from tests.support.waiting import wait_for
from tests.support.world import World

EVERY = pytest.mark.parametrize("one", all_statements(), ids=lambda one: one.name)
MOVES = {(state, reached) for (state, _), reached in TRANSITIONS.items() if state is not reached}


@EVERY
def test_a_statement_prepares_on_postgresql(shared_postgres_store: PostgresStore, one: Statement) -> None:
    with psycopg.connect(shared_postgres_store._url) as connection:
        connection.execute(b"EXPLAIN " + psycopg_text(one), dict.fromkeys(re.findall(r":(\w+)", one.text)))


@pytest.fixture(scope="module")
def full(postgres: str) -> str:
    """A store with twenty thousand finished tasks, as many events of one task, and few that wait or are under way."""
    from tests.support.postgres import new_schema

    url = new_schema(postgres)
    prepare(url, 0)
    task = (
        "INSERT INTO tasks SELECT 'resp_' || lpad(n::text, 8, '0'), 'c' || n % 100, 'm', 'background', 'stored', "
        "'fail', CASE n % 200 WHEN 1 THEN 'queued' WHEN 2 THEN 'running' ELSE 'completed' END, 1, 1, 1, 'i' || n % 7, "
        "1, 0, 0, 0, '', 0, '{}', '[]', 0, 0, CASE WHEN n % 200 IN (1, 2) THEN NULL ELSE n END "
        "FROM generate_series(1, 20000) n"
    )
    administer(
        url,
        "SET session_replication_role = replica",
        task,
        "INSERT INTO task_events SELECT 'resp_00000001', n, 't', '{}', '', 'op', 1, 0 FROM generate_series(0, 20000) n",
        "INSERT INTO idempotency_keys SELECT 'c' || n % 100, decode(md5(n::text), 'hex'), "
        "decode(md5(n::text) || md5(n::text), 'hex'), 'resp_' || lpad(n::text, 8, '0'), 0, 0 "
        "FROM generate_series(1, 20000) n",
        "ANALYZE",
    )
    return url


HOT = {
    "tasks.lock": "tasks_pkey",
    "tasks.lock_progress": "tasks_pkey",
    "tasks.lock_queued": "tasks_pkey",
    "tasks.move": "tasks_pkey",
    "tasks.advance": "tasks_pkey",
    "tasks.first_queued": "tasks_queue",
    "tasks.queued_after": "tasks_queue",
    "tasks.queue_length": "tasks_queue",
    "tasks.queue_position": "tasks_queue",
    "tasks.active": "tasks_active",
    "tasks.expired_stored": "tasks_finished",
    "tasks.expired_unstored": "tasks_unstored",
    "tasks.lock_expired": "tasks_pkey",
    "tasks.newest_finished": "tasks_finished",
    "tasks.page": "tasks_pkey",
    "task_events.after": "task_events_pkey",
    "task_events.op_at": "task_events_pkey",
    "idempotency_keys.read": "idempotency_keys_pkey",
    "idempotency_keys.delete_of_task": "idempotency_keys_by_task",
    "idempotency_keys.expired": "idempotency_keys_expiring",
}


@pytest.mark.parametrize("name", HOT)
def test_a_hot_statement_uses_its_index_in_a_full_store(full: str, name: str) -> None:
    (one,) = (one for one in all_statements() if one.name == name)
    names = list(dict.fromkeys(re.findall(r":(\w+)", one.text)))
    text = re.sub(r":(\w+)", lambda match: f"${names.index(match[1]) + 1}", one.render(POSTGRES))
    plan = "\n".join(str(line) for (line,) in administer(full, f"EXPLAIN (GENERIC_PLAN) {text}"))
    assert HOT[name] in plan, plan
    assert "Seq Scan on task" not in plan, plan


# Triggers


@pytest.fixture
def one_of_each(postgres_store: PostgresStore) -> World:
    """A task in each state; its ids are the states."""
    world = World(postgres_store)
    for state in (state for state in State if state is not State.QUEUED):
        world.in_state(state, task_id=state)
    world.in_state(State.QUEUED, task_id=State.QUEUED)
    return world


def refused(world: World, message: str, *statements: str) -> None:
    """The last of the statements is refused, by a rule of the database."""
    assert isinstance(world.store, PostgresStore)
    with (
        psycopg.connect(world.store._url) as connection,
        pytest.raises(psycopg.errors.IntegrityConstraintViolation, match=message),
    ):
        connection.execute("; ".join(statements).encode())


@pytest.mark.requirement("S-003", "P-11.2-cancel")
def test_a_task_moves_only_as_the_table_allows(one_of_each: World) -> None:
    assert isinstance(one_of_each.store, PostgresStore)
    seen: set[tuple[State, State]] = set()
    with psycopg.connect(one_of_each.store._url) as connection:
        for old, new in product(State, State):
            if old is new:
                continue
            change = (
                "INSERT INTO task_events SELECT id, last_seq + 1, 't', '{}', '', 'op', 1, 0 "
                "FROM tasks WHERE id = %(id)s; "
                "UPDATE tasks SET state = %(new)s, version = version + 1, last_seq = last_seq + 1, "
                "finished_at_ms = %(at)s WHERE id = %(id)s"
            )
            values = {"id": str(old), "new": str(new), "at": 1 if new.finished else None}
            try:
                for part in change.split("; "):
                    connection.execute(part.encode(), values)
                seen.add((old, new))
            except psycopg.errors.IntegrityConstraintViolation:
                pass
            connection.rollback()
    assert seen == MOVES


TRIGGERS = {
    "illegal transition": ["UPDATE tasks SET state = 'loading' WHERE id = 'running'"],
    "does not change": ["UPDATE tasks SET updated_at_ms = 9 WHERE id = 'completed'"],
    "together with its event": ["UPDATE tasks SET last_seq = last_seq + 1 WHERE id = 'running'"],
    "only rises": [
        "INSERT INTO task_events SELECT id, last_seq + 1, 't', '{}', '', 'op', 1, 0 FROM tasks WHERE id = 'running'",
        "UPDATE tasks SET fencing_token = 0, last_seq = last_seq + 1 WHERE id = 'running'",
    ],
    "does so with every owner": ["UPDATE tasks SET instance_id = 'thief' WHERE id = 'running'"],
    "begins queued": [
        "CREATE TEMP TABLE copy AS TABLE tasks",
        "UPDATE copy SET id = 'new'",
        "INSERT INTO tasks SELECT id, 'c', 'm', mode, retention, on_restart, state, 1, 0, 0, 'i', 1, 0, 0, 0, '', "
        "0, '', '[]', 0, 0, finished_at_ms FROM copy WHERE state = 'running'",
    ],
    "unfinished task is never deleted": ["DELETE FROM tasks WHERE id = 'queued'"],
    "out of sequence": ["INSERT INTO task_events VALUES ('running', 99, 't', '{}', '', 'op', 1, 0)"],
    "event never changes": ["UPDATE task_events SET body = '' WHERE task_id = 'completed'"],
    "events of an unfinished task": ["DELETE FROM task_events WHERE task_id = 'running'"],
}


@pytest.mark.requirement("S-003")
@pytest.mark.parametrize("message", TRIGGERS)
def test_the_database_itself_refuses_what_a_faulty_writer_would_do(one_of_each: World, message: str) -> None:
    refused(one_of_each, message, *TRIGGERS[message])


def test_a_finished_log_takes_no_event_and_a_foreign_search_path_gets_round_no_trigger(one_of_each: World) -> None:
    assert isinstance(one_of_each.store, PostgresStore)
    (name,) = re.findall(r"%3D(\w+)", one_of_each.store._url)
    end = (
        "INSERT INTO {}task_events SELECT id, last_seq + 1, 't', '{{}}', '', 'op', 1, 0 "
        "FROM {}tasks WHERE id = 'failed'"
    )
    refused(one_of_each, "out of sequence", end.format("", ""))
    refused(one_of_each, "out of sequence", "SET search_path = pg_catalog", end.format(f"{name}.", f"{name}."))


@pytest.mark.requirement("P-11.2-never", "S-003")
@pytest.mark.parametrize("statement", ["TRUNCATE tasks CASCADE", "TRUNCATE task_events", "TRUNCATE {} CASCADE"])
def test_no_task_and_no_event_is_lost_by_a_truncate(one_of_each: World, statement: str) -> None:
    """It passes no trigger on rows, whatever their state."""
    everything = ", ".join(TABLES)
    refused(one_of_each, "are deleted", statement.format(everything))
    assert len(one_of_each.log(State.QUEUED)) == 2
    assert one_of_each.problems() == []


def test_tables_can_be_emptied_by_whoever_may_switch_triggers_off(one_of_each: World) -> None:
    assert isinstance(one_of_each.store, PostgresStore)
    administer(one_of_each.store._url, "SET session_replication_role = replica", "TRUNCATE tasks CASCADE")
    empty(one_of_each.store)
    assert one_of_each.store.integrity_problems() == []


def test_both_databases_have_the_same_tables_columns_and_triggers() -> None:
    """But for the triggers on TRUNCATE, which SQLite doesn't have."""
    whole = ["\n".join(one.sql for one in migrations_for(name)) for name in ("sqlite", "postgres")]
    texts = [re.sub(r"--.*", "", text) for text in whole]
    triggers = r"CREATE TRIGGER (\w+)(?! BEFORE TRUNCATE)\b"
    for pattern in (r"CREATE TABLE (\w+)", triggers, r"CREATE (?:UNIQUE )?INDEX (\w+ ON .*);"):
        first, second = (re.findall(pattern, text) for text in texts)
        assert first == second
    column = re.compile(r"^    ([a-z_]+) (?:TEXT|INTEGER|BLOB|text|bigint|bytea)\b", re.MULTILINE)
    columns = [column.findall(text) for text in texts]
    assert columns[0] == columns[1]


def test_whatever_is_looked_up_or_sorted_is_compared_byte_by_byte_as_on_sqlite(postgres_store: PostgresStore) -> None:
    collations = administer(
        postgres_store._url,
        "SELECT DISTINCT attname, collname FROM pg_index "
        "JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey) "
        "JOIN pg_collation c ON c.oid = attcollation "
        "WHERE indrelid::regclass::text IN (SELECT tablename FROM pg_tables WHERE schemaname = current_schema())",
    )
    assert {str(collation) for _, collation in collations} == {"C"}
    assert len(collations) > 5


# Migrations


def add_later_migration(postgres_url: str, oldest: int) -> None:
    later = schema.SCHEMA_VERSION + 1
    administer(postgres_url, f"INSERT INTO migrations VALUES ({later}, 'later', 'x', {oldest}, {oldest}, 0)")  # noqa: S608 - numbers


@pytest.mark.requirement("S-002")
def test_of_several_processes_that_migrate_at_once_one_does(postgres_url: str) -> None:
    migrating = [processes.python("tests.support.postgres_instance", postgres_url, str(space)) for space in range(3)]
    for process in migrating:
        processes.tell(process, "prepare")
    assert [json.loads(processes.line(process)) for process in migrating] == [schema.SCHEMA_VERSION] * 3
    assert [processes.end(process) for process in migrating] == [0] * 3
    assert administer(postgres_url, "SELECT max(version), count(*) FROM migrations") == [(schema.SCHEMA_VERSION,) * 2]
    assert changed_migrations(postgres_url) == []


def test_nobody_migrates_while_another_does(postgres_url: str) -> None:
    migrating = threading.Thread(target=prepare, args=(postgres_url, 0))
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()"
    with psycopg.connect(postgres_url, autocommit=True) as other:
        other.execute(
            b"SELECT pg_advisory_lock(CAST(%s AS int), hashtext(current_schema()))", (migrate_postgres._LOCK_KEY,)
        )
        migrating.start()
        waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        wait_for(lambda: administer(postgres_url, waiting), "the migration to wait")
        assert administer(postgres_url, tables) == [(0,)]
    migrating.join(20)
    assert administer(postgres_url, tables) != [(0,)]


def test_a_newer_schema_is_refused_untouched(postgres_url: str) -> None:
    prepare(postgres_url, 0)
    add_later_migration(postgres_url, oldest=schema.SCHEMA_VERSION + 1)
    before = administer(postgres_url, "SELECT xmin::text, version FROM migrations ORDER BY version")
    with pytest.raises(Refused, match="needs a newer Retoma"):
        prepare(postgres_url, 0)
    assert administer(postgres_url, "SELECT xmin::text, version FROM migrations ORDER BY version") == before


def test_a_newer_schema_that_this_release_may_write_is_opened(postgres_url: str) -> None:
    prepare(postgres_url, 0)
    add_later_migration(postgres_url, oldest=1)
    assert prepare(postgres_url, 0) == Schema(schema.SCHEMA_VERSION + 1, 1, 1)


def test_a_migration_that_fails_leaves_nothing_behind(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [*migrations_for("postgres"), Migration(schema.SCHEMA_VERSION + 1, "broken", "SELECT nonsense")]
    monkeypatch.setattr(migrate_postgres, "migrations", lambda: broken)
    monkeypatch.setattr(schema, "SCHEMA_VERSION", schema.SCHEMA_VERSION + 1)
    with pytest.raises(StoreUnavailable, match="nonsense"):
        prepare(postgres_url, 0)
    assert administer(postgres_url, "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()") == [(0,)]


def test_a_migration_that_was_applied_with_another_text_is_noticed(postgres_url: str) -> None:
    prepare(postgres_url, 0)
    administer(postgres_url, "UPDATE migrations SET checksum = 'other' WHERE version = 1")
    assert changed_migrations(postgres_url) == ["migration 1 was applied with another text"]


def test_a_schema_of_another_program_is_refused(postgres_url: str) -> None:
    administer(postgres_url, "CREATE TABLE migrations (id int)")
    with pytest.raises(Refused, match="belongs to another program"):
        prepare(postgres_url, 0)


def test_a_schema_that_is_not_there_is_refused_in_a_sentence(postgres_url: str) -> None:
    with pytest.raises(Refused, match="CREATE SCHEMA"):
        prepare(f"{postgres_url}_missing", 0)


def test_a_trigger_that_was_switched_off_is_a_finding(postgres_store: PostgresStore) -> None:
    assert postgres_store.integrity_problems() == []
    administer(postgres_store._url, "ALTER TABLE tasks DISABLE TRIGGER tasks_end_for_good")
    assert postgres_store.integrity_problems() == ["the trigger tasks_end_for_good is switched off"]
