"""What every change of a task shares: lock the row, check the owner, write the events and the row together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from retoma.core import events
from retoma.core.events import EventDraft
from retoma.core.fold import Folded, fold
from retoma.core.response import Ending, build_response
from retoma.core.task import WIRE_STATUS, Command, State
from retoma.core.transitions import TRANSITIONS, next_state
from retoma.errors import LeaseLost, NotFound
from retoma.limits import PAGE_ITEMS_MAX
from retoma.store.contract import Tx
from retoma.store.rows import TaskRow
from retoma.store.statements import statement
from retoma.transactions import outbox

LOCK = statement("tasks.lock")
READ_STATE = statement("tasks.state")
FIRST_QUEUED = statement("tasks.first_queued")
QUEUED_AFTER = statement("tasks.queued_after")
LOCK_QUEUED = statement("tasks.lock_queued")
QUEUE_LENGTH = statement("tasks.queue_length")
MOVE = statement("tasks.move")
INSERT_EVENT = statement("task_events.insert")
WHOLE_LOG = statement("task_events.whole")
EVENT_OF_OP = statement("task_events.of_op")
INSERT_RESPONSE = statement("responses.insert")
DELETE_SNAPSHOTS = statement("snapshots.delete_of_task")


def read_state(tx: Tx, task_id: str) -> tuple[str, State, int] | None:
    """The client, the state and the last event's number of a task, without its request; None when it is gone."""
    row = tx.row(READ_STATE, {"id": task_id})
    return (row[0], State(row[1]), row[2]) if row else None


def lock_first_queued(tx: Tx) -> str | None:
    """The id at the head of the queue, locked where the database locks rows; None when nothing waits."""
    row = tx.row(FIRST_QUEUED, {})
    return row[0] if row else None


def lock_first_queued_of(tx: Tx, models: frozenset[str]) -> str | None:
    """As `lock_first_queued`, of the tasks with one of these models.

    The queue is read in pages without locks, so that instances with different models don't hide it from each other.
    """
    priority, last = -(2**62), ""
    while page := tx.rows(QUEUED_AFTER, {"priority": priority, "id": last, "limit": PAGE_ITEMS_MAX}):
        for _, task_id, model in page:
            if model in models and tx.row(LOCK_QUEUED, {"id": task_id}) == (State.QUEUED,):
                return task_id
        priority, last, _ = page[-1]
    return None


def queue_length(tx: Tx, limit: int) -> int:
    """How many tasks wait, counted up to a bound."""
    row = tx.row(QUEUE_LENGTH, {"limit": limit})
    assert row is not None
    return row[0]


def lock_task(tx: Tx, task_id: str) -> TaskRow:
    """The task's row, locked; raises NotFound."""
    row = tx.row(LOCK, {"id": task_id})
    if row is None:
        raise NotFound(f"there is no response {task_id}")
    return TaskRow.of(row)


def was_applied(tx: Tx, task_id: str, op_id: str) -> bool:
    """True if this command has written its events before. Reads the task's part of the log: for the rare path only."""
    row = tx.row(EVENT_OF_OP, {"task_id": task_id, "op_id": op_id})
    assert row is not None
    return row[0] is not None


def lock_for(tx: Tx, task_id: str, command: Command, op_id: str, fencing_token: int | None = None) -> TaskRow | None:
    """The locked row if `command` is allowed to this owner now; None if this very command was applied before.

    Raises LeaseLost for an old fencing token and IllegalTransition for a state that forbids the command, in that order.
    """
    task = lock_task(tx, task_id)
    owned = fencing_token is None or task.fencing_token == fencing_token
    allowed = (task.state, command) in TRANSITIONS
    if not (owned and allowed) and was_applied(tx, task_id, op_id):
        return None
    if not owned:
        raise LeaseLost(f"{task_id} is held under fencing token {task.fencing_token}, not {fencing_token}")
    next_state(task.state, command)
    return task


def moved(task: TaskRow, command: Command, now_ms: int, **changes: Any) -> TaskRow:
    """The row after `command`, without its place in the log, which `write_move` fills in."""
    state = next_state(task.state, command)
    finished_at_ms = now_ms if state.finished else None
    return replace(
        task, state=state, version=task.version + 1, updated_at_ms=now_ms, finished_at_ms=finished_at_ms, **changes
    )


def task_extension(task: TaskRow, queue_position: int | None = None) -> dict[str, Any]:
    """The object `task` of a response (contract §2)."""
    return {
        "state": task.state,
        "on_restart": task.on_restart,
        "attempt": task.attempt,
        "queue_position": queue_position,
        "version": task.version,
        "instance": task.instance_id,
        "restarts": task.restart_list,
    }


def response_of(task: TaskRow, ending: Ending | None, queue_position: int | None = None) -> dict[str, Any]:
    """The Response that shows this row."""
    return build_response(
        task.id,
        task.request_fields["echo"],
        task_extension(task, queue_position),
        status=ending.status if ending else WIRE_STATUS[task.state],
        created_at_ms=task.created_at_ms,
        completed_at_ms=task.finished_at_ms,
        ending=ending,
    )


def lifecycle_event(event_type: str, task: TaskRow) -> EventDraft:
    """An event that carries the response as this row makes it, with no output: that is in the log already."""
    return events.draft(event_type, {"response": response_of(task, None)})


def write_events(tx: Tx, task_id: str, after_seq: int, drafts: Iterable[EventDraft], *, op_id: str, now_ms: int) -> int:
    """Appends to the log after number `after_seq`; the number of the last event."""
    seq = after_seq
    for event in drafts:
        seq += 1
        tx.execute(
            INSERT_EVENT,
            {
                "task_id": task_id,
                "seq": seq,
                "type": event.type,
                "body": event.body,
                "tokens": events.pack_tokens(event.tokens),
                "op_id": op_id,
                "format": events.EVENT_FORMAT,
                "now_ms": now_ms,
            },
        )
    return seq


def write_move(tx: Tx, old: TaskRow, new: TaskRow, drafts: Sequence[EventDraft], op_id: str) -> TaskRow:
    """Writes the events and then the row, guarded by what `old` held; followers are woken after the commit."""
    assert drafts, "a change of state has an event"
    new = replace(new, last_seq=write_events(tx, old.id, old.last_seq, drafts, op_id=op_id, now_ms=new.updated_at_ms))
    changed = tx.execute(
        MOVE,
        {
            "id": new.id,
            "state": new.state,
            "last_seq": new.last_seq,
            "fencing_token": new.fencing_token,
            "instance_id": new.instance_id,
            "attempt": new.attempt,
            "tokens": new.tokens,
            "crashes": new.crashes,
            "crash_tokens": new.crash_tokens,
            "fingerprint": new.fingerprint,
            "restarts": new.restarts,
            "now_ms": new.updated_at_ms,
            "finished_at_ms": new.finished_at_ms,
            "old_state": old.state,
            "old_version": old.version,
            "old_fencing_token": old.fencing_token,
        },
    )
    assert changed == 1, f"{old.id} changed under its lock"
    tx.wake(new.id)
    return new


def write_ending(
    tx: Tx, old: TaskRow, new: TaskRow, ending: Ending, *, op_id: str, before: Sequence[EventDraft] = ()
) -> TaskRow:
    """Ends the task: the last output events `before`, the terminal event, row, response and webhook, all at once."""
    assert new.state.finished
    response = response_of(new, ending)
    terminal = events.draft(events.TERMINAL_BY_STATUS[ending.status], {"response": response})
    written = write_move(tx, old, new, [*before, terminal], op_id)
    tx.execute(
        INSERT_RESPONSE,
        {
            "id": new.id,
            "client_id": new.client_id,
            "status": ending.status,
            "body": events.encode_json(response),
            "last_seq": written.last_seq,
            "now_ms": new.updated_at_ms,
        },
    )
    tx.execute(DELETE_SNAPSHOTS, {"task_id": new.id})
    outbox.release(tx, new.id, ending.status, new.updated_at_ms)
    return written


def fold_log(tx: Tx, task_id: str) -> Folded:
    """Folds the task's whole log."""
    return fold((seq, kind, body, tokens) for seq, kind, body, tokens in tx.rows(WHOLE_LOG, {"task_id": task_id}))


def output_so_far(tx: Tx, task: TaskRow, status: str = "incomplete") -> list[dict[str, Any]]:
    """The output items that the log adds up to."""
    if task.state in {State.QUEUED, State.LOADING} and not task.tokens:
        return []
    return fold_log(tx, task.id).output.items(status)
