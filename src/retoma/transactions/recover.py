"""Recover: one left-behind task is moved by its restart policy, or one whose engine crashed by the same table."""

from __future__ import annotations

import json
from dataclasses import dataclass

from retoma.core import events
from retoma.core.crash import CrashCount, decide_after_crash
from retoma.core.response import Ending
from retoma.core.restart import decide_restart
from retoma.core.task import Command, State
from retoma.core.transitions import next_state
from retoma.errors import LeaseLost, NotFound
from retoma.failpoints import Failpoint, passing
from retoma.limits import RESTARTS_KEPT_MAX
from retoma.store.contract import Tx
from retoma.store.rows import TaskRow
from retoma.transactions import log


@dataclass(frozen=True, slots=True)
class Recover:
    """Take this task from a dead instance."""

    task_id: str
    dead_instance_id: str
    instance_id: str
    now_ms: int
    op_id: str
    can_work: bool = True
    """False: the rescuer has no workers, so it must leave a running text to an instance that has some."""


@dataclass(frozen=True, slots=True)
class AfterCrash:
    """The owner's engine died while it worked on this task."""

    task_id: str
    fencing_token: int
    instance_id: str
    code: str
    message: str
    now_ms: int
    op_id: str
    innocent: bool = False
    """The engine worked on another text when it died, so this task's count stays as it is."""


@dataclass(frozen=True, slots=True)
class _Cause:
    """Why a task is moved: an error code, a sentence, and the crashes counted with this one."""

    code: str
    message: str
    count: CrashCount


def recover(tx: Tx, command: Recover) -> TaskRow | None:
    """Applies the table of P-11.3 in one transaction with its event; None if somebody else was first (I9).

    Driven again, it returns the row as it left it; a task that has been deleted meanwhile was somebody else's.
    The new fencing token shuts the dead owner out, should it live after all. If the process dies before the commit, the
    task is still left behind; after it, it is recovered, whoever looks.
    """
    try:
        task = log.lock_task(tx, command.task_id)
    except NotFound:
        return None
    if task.instance_id != command.dead_instance_id or task.state.finished:
        return task if log.was_applied(tx, task.id, command.op_id) else None
    verb, _ = decide_restart(task.state, task.on_restart)
    if verb is Command.CONTINUE and not command.can_work:
        return None
    count = CrashCount(task.crashes, task.crash_tokens)
    cause = _Cause("server_restarted", "the service was restarted while the response was unfinished", count)
    written = _apply(tx, task, verb, command, cause)
    passing(Failpoint.RECOVER_WRITTEN)
    tx.after_commit(Failpoint.RECOVER_COMMITTED)
    return written


def recover_after_crash(tx: Tx, command: AfterCrash) -> TaskRow:
    """The same table for a crashed engine, but a text that kills its engine without progress fails in the end.

    Raises LeaseLost.
    """
    task = log.lock_task(tx, command.task_id)
    if task.fencing_token != command.fencing_token or task.state.finished:
        if log.was_applied(tx, command.task_id, command.op_id):
            return task
        raise LeaseLost(f"{task.id} is held under fencing token {task.fencing_token}, not {command.fencing_token}")
    count = CrashCount(task.crashes, task.crash_tokens)
    if not command.innocent:
        count = count.after_crash_at(task.tokens)
    verb = decide_after_crash(task.state, task.on_restart, count)
    written = _apply(tx, task, verb, command, _Cause(command.code, command.message, count))
    passing(Failpoint.REQUEUE_WRITTEN)
    tx.after_commit(Failpoint.REQUEUE_COMMITTED)
    return written


def _apply(tx: Tx, task: TaskRow, verb: Command, command: Recover | AfterCrash, cause: _Cause) -> TaskRow:
    begins_again = verb is Command.REQUEUE
    new = log.moved(
        task,
        verb,
        command.now_ms,
        fencing_token=task.fencing_token + 1,
        instance_id=command.instance_id,
        attempt=task.attempt + (task.state is not State.QUEUED and not next_state(task.state, verb).finished),
        tokens=0 if begins_again else task.tokens,
        fingerprint="" if begins_again else task.fingerprint,
        crashes=cause.count.crashes,
        crash_tokens=cause.count.tokens,
        restarts=_with_restart(task, cause.code, verb, command.now_ms),
    )
    if new.state.finished:
        return log.write_ending(tx, task, new, _ending(tx, task, new, cause), op_id=command.op_id)
    kind = events.QUEUED if begins_again else events.IN_PROGRESS
    written = log.write_move(tx, task, new, [log.lifecycle_event(kind, new)], command.op_id)
    if begins_again:
        tx.execute(log.DELETE_SNAPSHOTS, {"task_id": task.id})
    return written


def _ending(tx: Tx, task: TaskRow, new: TaskRow, cause: _Cause) -> Ending:
    output = log.output_so_far(tx, task)
    if new.state is State.CANCELLED:
        return Ending("cancelled", output)
    return Ending("failed", output, code=cause.code, message=cause.message)


def _with_restart(task: TaskRow, cause: str, verb: Command, now_ms: int) -> str:
    entry = {
        "at": now_ms // 1000,
        "from": task.state,
        "policy": task.on_restart,
        "cause": cause,
        "resumed_at_token": task.tokens if verb is Command.CONTINUE else None,
        "path": None,
    }
    return json.dumps([*task.restart_list, entry][-RESTARTS_KEPT_MAX:])
