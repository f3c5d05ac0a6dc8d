"""The database itself refuses what a buggy writer would do: each trigger, met with raw SQL."""

# ruff: noqa: S608 - the statements are put together from this file's own words

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import apsw
import pytest

from retoma.core.task import FINISHED, State
from retoma.core.transitions import TRANSITIONS
from tests.support.stores import new_file, new_store
from tests.support.world import World

MOVES = {(state, reached) for (state, _), reached in TRANSITIONS.items()}


@pytest.fixture(scope="module")
def one_of_each(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a task in each state; its ids are the states."""
    folder = tmp_path_factory.mktemp("one-of-each")
    store = new_store(folder)
    world = World(store)
    for state in (state for state in State if state is not State.QUEUED):
        world.in_state(state, task_id=state)
    world.in_state(State.QUEUED, task_id=State.QUEUED)
    store.close()
    return folder / "retoma.db"


@pytest.fixture
def raw(one_of_each: Path) -> Iterator[apsw.Connection]:
    """A writer that knows nothing of Retoma; what it does is undone."""
    connection = apsw.Connection(str(one_of_each))
    connection.execute("BEGIN")
    yield connection
    connection.execute("ROLLBACK")
    connection.close()


TASK = {
    "client_id": "c",
    "model": "m",
    "mode": "background",
    "retention": "stored",
    "on_restart": "fail",
    "state": "queued",
    "version": 1,
    "last_seq": 1,
    "fencing_token": 0,
    "instance_id": "i",
    "attempt": 1,
    "finished_at_ms": None,
}


def add_task(raw: apsw.Connection, task_id: str, verb: str = "INSERT", **changes: object) -> None:
    """A task without events; columns that matter to no trigger are empty or 0."""
    columns = raw.execute("SELECT name, type FROM pragma_table_info('tasks')").fetchall()
    values = {name: "" if kind == "TEXT" else 0 for name, kind in columns} | TASK | {"id": task_id} | changes
    marks = ", ".join(f":{name}" for name in values)
    raw.execute(f"{verb} INTO tasks ({', '.join(values)}) VALUES ({marks})", values)


def add_event(raw: apsw.Connection, task_id: str, seq: int | None = None) -> int:
    if seq is None:
        (seq,) = raw.execute("SELECT max(seq) + 1 FROM task_events WHERE task_id = ?", (task_id,)).fetchone()
    raw.execute("INSERT INTO task_events VALUES (?, ?, 'some', '{}', x'', 'op', 1, 0)", (task_id, seq))
    return seq


def refused(raw: apsw.Connection, message: str, sql: str, *values: object) -> None:
    with pytest.raises(apsw.ConstraintError, match=message):
        raw.execute(sql, values)


def move(raw: apsw.Connection, task_id: str, state: State) -> None:
    """As a faithful writer would, but for the choice of the state."""
    seq = add_event(raw, task_id)
    finished_at_ms = 1 if state.finished else None
    raw.execute(
        "UPDATE tasks SET state = ?, version = version + 1, last_seq = ?, finished_at_ms = ? WHERE id = ?",
        (state, seq, finished_at_ms, task_id),
    )


@pytest.mark.requirement("S-003", "P-11.2-cancel")
@pytest.mark.parametrize(("old", "new"), [pair for pair in product(State, State) if pair[0] is not pair[1]])
def test_a_task_moves_only_as_the_table_allows(raw: apsw.Connection, old: State, new: State) -> None:
    if (old, new) in MOVES:
        move(raw, old, new)
        assert raw.execute("SELECT state FROM tasks WHERE id = ?", (old,)).fetchall() == [(new,)]
        return
    with pytest.raises(apsw.ConstraintError, match=r"illegal transition|does not change|out of sequence"):
        move(raw, old, new)


@pytest.mark.parametrize(("old", "new"), [pair for pair in product(State, State) if pair[0] is not pair[1]])
def test_the_transition_trigger_alone_refuses_what_the_table_forbids(tmp_path: Path, old: State, new: State) -> None:
    """The other triggers are taken away, so that none of them hides a hole in this one."""
    raw = apsw.Connection(str(new_file(tmp_path)))
    others = raw.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name <> 'tasks_move_legally'")
    for (name,) in others.fetchall():
        raw.execute(f"DROP TRIGGER {name}")
    add_task(raw, "t", state=old, finished_at_ms=1 if old.finished else None)
    change = "UPDATE tasks SET state = ?, finished_at_ms = ? WHERE id = 't'"
    if (old, new) in MOVES:
        raw.execute(change, (new, 1 if new.finished else None))
    else:
        refused(raw, "illegal transition", change, new, 1 if new.finished else None)
    raw.close()


@pytest.mark.requirement("P-11.2-cancel")
@pytest.mark.parametrize("state", sorted(FINISHED))
@pytest.mark.parametrize("column", ["updated_at_ms", "version", "priority"])
def test_a_finished_task_never_changes(raw: apsw.Connection, state: State, column: str) -> None:
    refused(raw, "does not change", f"UPDATE tasks SET {column} = {column} + 1 WHERE id = ?", state)


@pytest.mark.parametrize("state", sorted(FINISHED))
def test_nothing_is_written_behind_a_terminal_event(raw: apsw.Connection, state: State) -> None:
    with pytest.raises(apsw.ConstraintError, match="out of sequence"):
        add_event(raw, state)


@pytest.mark.requirement("P-11.2-seq", "S-001b")
@pytest.mark.parametrize(
    "change",
    [
        "state = 'cancelling', version = version + 1",
        "state = 'cancelling', version = version + 1, last_seq = last_seq + 1",
        "tokens = tokens + 1",
        "fencing_token = fencing_token + 1",
        "last_seq = last_seq + 1",
        "last_seq = last_seq - 1",
    ],
)
def test_a_task_changes_only_together_with_its_event(raw: apsw.Connection, change: str) -> None:
    refused(raw, "together with its event", f"UPDATE tasks SET {change} WHERE id = 'running'")


def test_a_task_without_any_event_can_not_be_moved_either(raw: apsw.Connection) -> None:
    add_task(raw, "bare")
    refused(
        raw,
        "together with its event",
        "UPDATE tasks SET state = 'loading', version = 2, last_seq = 2 WHERE id = 'bare'",
    )


def test_a_change_of_state_raises_the_version(raw: apsw.Connection) -> None:
    seq = add_event(raw, "running")
    refused(
        raw, "together with its event", "UPDATE tasks SET state = 'cancelling', last_seq = ? WHERE id = 'running'", seq
    )


@pytest.mark.requirement("S-006", "S-006c")
@pytest.mark.parametrize(
    "change", ["fencing_token = fencing_token - 1", "instance_id = 'other', fencing_token = fencing_token"]
)
def test_a_fencing_token_never_falls_and_rises_with_every_owner(raw: apsw.Connection, change: str) -> None:
    seq = add_event(raw, "running")
    refused(raw, "fencing token only rises", f"UPDATE tasks SET {change}, last_seq = ? WHERE id = 'running'", seq)


@pytest.mark.requirement("S-006")
def test_an_owner_can_not_change_in_a_statement_that_leaves_the_token_out(raw: apsw.Connection) -> None:
    refused(raw, "fencing token only rises", "UPDATE tasks SET instance_id = 'other' WHERE id = 'running'")


@pytest.mark.requirement("P-11.2-seq")
@pytest.mark.parametrize("seq", [0, 3, 4, 6, 7, 100])
def test_an_event_has_the_next_number_and_no_other(raw: apsw.Connection, seq: int) -> None:
    (last,) = raw.execute("SELECT max(seq) FROM task_events WHERE task_id = 'running'").fetchone()
    assert last == 6 - 3
    if seq == last + 1:
        add_event(raw, "running", seq)
        return
    with pytest.raises(apsw.ConstraintError, match="out of sequence"):
        add_event(raw, "running", seq)


def test_a_log_begins_with_number_0(raw: apsw.Connection) -> None:
    with pytest.raises(apsw.ConstraintError, match="out of sequence"):
        add_event(raw, "no-such-task", 1)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("column", ["body", "type", "op_id"])
def test_an_event_never_changes(raw: apsw.Connection, state: State, column: str) -> None:
    refused(raw, "never changes", f"UPDATE task_events SET {column} = 'x' WHERE task_id = ? AND seq = 0", state)


@pytest.mark.requirement("P-11.2-never")
@pytest.mark.parametrize("state", [state for state in State if not state.finished])
def test_an_unfinished_task_and_its_events_are_never_deleted(raw: apsw.Connection, state: State) -> None:
    refused(raw, "never deleted", "DELETE FROM tasks WHERE id = ?", state)
    refused(raw, "never deleted", "DELETE FROM task_events WHERE task_id = ?", state)


def test_a_replaced_event_is_an_event_out_of_sequence(raw: apsw.Connection) -> None:
    refused(
        raw,
        "out of sequence",
        "INSERT OR REPLACE INTO task_events VALUES ('running', 1, 'some', '{}', x'', 'op', 1, 0)",
    )


def test_a_task_begins_queued_without_an_owner_s_token_and_once(raw: apsw.Connection) -> None:
    with pytest.raises(apsw.ConstraintError, match="begins queued"):
        add_task(raw, "new", state="running")
    with pytest.raises(apsw.ConstraintError, match="begins queued"):
        add_task(raw, "new", fencing_token=1)
    with pytest.raises(apsw.ConstraintError, match="begins queued"):
        add_task(raw, "running", "INSERT OR REPLACE")
    add_task(raw, "new")


def test_a_finished_task_goes_with_all_that_belongs_to_it(raw: apsw.Connection) -> None:
    raw.execute("DELETE FROM task_events WHERE task_id = 'completed'")
    raw.execute("DELETE FROM tasks WHERE id = 'completed'")


def test_a_task_can_not_leave_its_events_or_its_key_behind(raw: apsw.Connection) -> None:
    raw.execute("COMMIT")
    raw.execute("PRAGMA foreign_keys = ON")
    raw.execute("BEGIN")
    refused(raw, "FOREIGN KEY", "DELETE FROM tasks WHERE id = 'completed'")


def add_message(raw: apsw.Connection, task_id: str, state: str = "waiting", body: str = "") -> None:
    due = 1 if state in {"pending", "unconfirmed"} else None
    raw.execute(
        "INSERT INTO outbox VALUES ('evt', ?, 'c', 'https://example.org', ?, ?, 0, ?, '', 0, 0)",
        (task_id, state, body, due),
    )


RELEASE = "UPDATE outbox SET state = 'pending', body = '{}', next_at_ms = 1"


@pytest.mark.parametrize("state", State)
def test_a_message_is_not_released_before_its_task_has_ended(raw: apsw.Connection, state: State) -> None:
    add_message(raw, state)
    if state.finished:
        raw.execute(RELEASE)
    else:
        refused(raw, "before its task has ended", RELEASE)


@pytest.mark.parametrize(
    "change",
    [
        "id = 'other'",
        "task_id = 'other'",
        "body = '{\"other\":1}'",
        "tries = tries - 1",
        "state = 'waiting', body = '{}', next_at_ms = NULL",
    ],
)
def test_a_released_message_is_sent_as_it_was_written(raw: apsw.Connection, change: str) -> None:
    add_message(raw, "completed", "pending", "{}")
    refused(raw, "sent as it was written|CHECK", f"UPDATE outbox SET {change}")


@pytest.mark.parametrize("state", ["delivered", "failed"])
def test_a_message_that_is_over_never_changes(raw: apsw.Connection, state: str) -> None:
    add_message(raw, "completed", state, "{}")
    refused(raw, "over for good", "UPDATE outbox SET state = 'pending', next_at_ms = 1")
    refused(raw, "over for good", "UPDATE outbox SET last_answer = 'HTTP 200'")


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO outbox VALUES ('e', 't', 'c', 'u', 'sent', '{}', 0, NULL, '', 0, 0)",
        "INSERT INTO outbox VALUES ('e', 't', 'c', 'u', 'pending', '', 0, 1, '', 0, 0)",
        "INSERT INTO outbox VALUES ('e', 't', 'c', 'u', 'pending', '{}', 0, NULL, '', 0, 0)",
        "INSERT INTO outbox VALUES ('e', 't', 'c', 'u', 'delivered', '{}', 0, 1, '', 0, 0)",
        "INSERT INTO pairings VALUES ('p', x'00', 'n', '[]', 0, 0, 0)",
        "UPDATE tasks SET state = 'sleeping' WHERE id = 'running'",
        "UPDATE tasks SET attempt = 0 WHERE id = 'running'",
        "UPDATE tasks SET finished_at_ms = 1 WHERE id = 'running'",
        "UPDATE tasks SET mode = 'sideways' WHERE id = 'queued'",
        "INSERT INTO idempotency_keys VALUES ('c', x'00', zeroblob(32), 'running', 0, 0)",
        "INSERT INTO models VALUES ('m', 'short', 1, 'e', 's', 'available', '{}', 1, 0)",
        "INSERT INTO clients VALUES ('c', 'n', x'00', '[]', 1, 0, NULL, NULL)",
        "INSERT INTO responses VALUES ('r', 'c', 'running', '{}', 1, 1)",
        "INSERT INTO task_events VALUES ('running', 'four', 'some', '{}', x'', 'op', 1, 0)",
    ],
)
def test_a_value_outside_of_its_range_is_refused(raw: apsw.Connection, sql: str) -> None:
    with pytest.raises(apsw.ConstraintError):
        raw.execute(sql)


BUGS = {
    "tasks_move_legally": "UPDATE tasks SET state = 'loading' WHERE id = 'running'",
    "tasks_end_for_good": "UPDATE tasks SET priority = 1 WHERE id = 'failed'",
    "tasks_move_with_their_event": "UPDATE tasks SET state = 'cancelling' WHERE id = 'running'",
    "tasks_never_fence_back": "UPDATE tasks SET fencing_token = 0 WHERE id = 'running'",
    "outbox_waits_for_the_end": RELEASE,
    "outbox_sends_the_same": "UPDATE outbox SET id = 'other'",
    "tasks_begin_queued": "INSERT OR REPLACE INTO tasks SELECT * FROM tasks WHERE id = 'queued'",
    "tasks_stay_until_finished": "DELETE FROM tasks WHERE id = 'running'",
    "task_events_follow_each_other": "INSERT INTO task_events VALUES ('running', 99, 't', '{}', x'', 'op', 1, 0)",
    "task_events_never_change": "UPDATE task_events SET body = '{}' WHERE task_id = 'failed'",
    "task_events_stay_until_finished": "DELETE FROM task_events WHERE task_id = 'running'",
}


def triggers(raw: apsw.Connection) -> set[str]:
    return {name for (name,) in raw.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")}


def test_there_is_a_bug_for_every_trigger(raw: apsw.Connection) -> None:
    assert triggers(raw) == set(BUGS)


@pytest.mark.parametrize("trigger", BUGS)
def test_a_trigger_stops_its_bug_alone_and_nothing_else_does(raw: apsw.Connection, trigger: str) -> None:
    add_message(raw, "running")
    for other in triggers(raw) - {trigger}:
        raw.execute(f"DROP TRIGGER {other}")
    with pytest.raises(apsw.ConstraintError):
        raw.execute(BUGS[trigger])
    raw.execute(f"DROP TRIGGER {trigger}")
    raw.execute(BUGS[trigger])
