"""Start: the engine is ready for the next token of a task."""

from __future__ import annotations

import json
from dataclasses import dataclass

from retoma.core import events
from retoma.core.task import Command, State
from retoma.failpoints import Failpoint, passing
from retoma.store.contract import Tx
from retoma.store.rows import TaskRow
from retoma.transactions import log


@dataclass(frozen=True, slots=True)
class Start:
    """What the engine reported. `path` tells how the committed part came back: snapshot, log or prompt."""

    task_id: str
    fencing_token: int
    path: str
    exact: bool
    fingerprint: str
    """Of the engine that makes the next tokens."""
    now_ms: int
    op_id: str


def start(tx: Tx, command: Start) -> TaskRow:
    """Moves `loading` to `running`; for a task that is continued, notes in its last restart how that was done.

    Raises LeaseLost, or IllegalTransition when the task is `cancelling` by now.
    """
    task = log.lock_task(tx, command.task_id)
    verb = Command.CONTINUE if task.state is State.RUNNING else Command.START
    locked = log.lock_for(tx, command.task_id, verb, command.op_id, command.fencing_token)
    if locked is None or (verb is Command.CONTINUE and log.was_applied(tx, command.task_id, command.op_id)):
        return task

    started = log.moved(task, verb, command.now_ms, fingerprint=command.fingerprint, restarts=_with_path(task, command))
    written = log.write_move(tx, task, started, [log.lifecycle_event(events.IN_PROGRESS, started)], command.op_id)
    passing(Failpoint.START_WRITTEN)
    tx.after_commit(Failpoint.START_COMMITTED)
    return written


def _with_path(task: TaskRow, command: Start) -> str:
    restarts = task.restart_list
    if restarts:
        restarts[-1] |= {"path": command.path, "exact": command.exact}
    return json.dumps(restarts)
