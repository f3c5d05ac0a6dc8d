"""Append: output of a running task, committed before anybody sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retoma.core.events import EventDraft
from retoma.core.task import Command, State
from retoma.core.transitions import next_state
from retoma.errors import LeaseLost, NotFound
from retoma.failpoints import Failpoint, passing
from retoma.store.contract import Tx
from retoma.store.statements import statement
from retoma.transactions import log

LOCK_PROGRESS = statement("tasks.lock_progress")
ADVANCE = statement("tasks.advance")
OP_AT = statement("task_events.op_at")


@dataclass(frozen=True, slots=True)
class Append:
    """Events that belong right after number `after_seq`. Their place is part of the command's identity."""

    task_id: str
    fencing_token: int
    after_seq: int
    drafts: Sequence[EventDraft]
    now_ms: int
    op_id: str


def append(tx: Tx, command: Append) -> int:
    """Writes the events and the row's place in the log together (P-11.2-seq, I2, I3, I5); the last event's number.

    Raises LeaseLost for an old fencing token and IllegalTransition when the task is `cancelling` by now.
    """
    row = tx.row(LOCK_PROGRESS, {"id": command.task_id})
    if row is None:
        raise NotFound(f"there is no response {command.task_id}")
    state, fencing_token, last_seq = row
    if fencing_token != command.fencing_token:
        raise LeaseLost(f"{command.task_id} is held under fencing token {fencing_token}, not {command.fencing_token}")
    if last_seq != command.after_seq:
        return _place_taken(tx, command, State(state))
    next_state(State(state), Command.APPEND)

    seq = log.write_events(tx, command.task_id, last_seq, command.drafts, op_id=command.op_id, now_ms=command.now_ms)
    changed = tx.execute(
        ADVANCE,
        {
            "id": command.task_id,
            "fencing_token": command.fencing_token,
            "old_last_seq": last_seq,
            "last_seq": seq,
            "tokens": sum(len(event.tokens) for event in command.drafts),
            "now_ms": command.now_ms,
        },
    )
    assert changed == 1, f"{command.task_id} changed under its lock"
    passing(Failpoint.APPEND_WRITTEN)
    tx.after_commit(Failpoint.APPEND_COMMITTED)
    tx.wake(command.task_id)
    return seq


def _place_taken(tx: Tx, command: Append, state: State) -> int:
    """Something stands after `after_seq` already: this very command, or a cancel."""
    row = tx.row(OP_AT, {"task_id": command.task_id, "seq": command.after_seq + 1})
    if row is not None and row[0] == command.op_id:
        return command.after_seq + len(command.drafts)
    next_state(state, Command.APPEND)
    raise LeaseLost(f"{command.task_id} has grown past event {command.after_seq} under another writer")
