"""Cancel: a client wants a task to end."""

from __future__ import annotations

from dataclasses import dataclass

from retoma.core import events
from retoma.core.response import Ending
from retoma.core.task import Command, State
from retoma.errors import NotFound, RequestError, StaleVersion
from retoma.failpoints import Failpoint, passing
from retoma.store.contract import Tx
from retoma.store.rows import TaskRow
from retoma.transactions import log


@dataclass(frozen=True, slots=True)
class Cancel:
    """Which task, and for whom; an empty client may cancel any (scope `admin`)."""

    task_id: str
    client_id: str
    now_ms: int
    op_id: str
    version: int | None = None
    by_client: bool = True
    """False: the service itself cancels a foreground task whose client went away."""


def cancel(tx: Tx, command: Cancel) -> TaskRow:
    """`queued` ends at once, `loading` and `running` become `cancelling` (P-11.2-cancel); otherwise nothing changes.

    After the commit no completion of this task can be written any more. Raises NotFound, StaleVersion, or RequestError
    for a foreground response, with nothing written.
    """
    task = log.lock_task(tx, command.task_id)
    if command.client_id and task.client_id != command.client_id:
        raise NotFound(f"there is no response {command.task_id}")
    if command.by_client and task.mode == "foreground":
        raise RequestError("only background responses can be cancelled; close the connection of a foreground one")
    if command.version is not None and command.version != task.version:
        if log.was_applied(tx, command.task_id, command.op_id):
            return task
        raise StaleVersion(f"{task.id} is at version {task.version}, not {command.version}; nothing was changed")
    if task.state.finished or task.state is State.CANCELLING:
        return task

    written = _write_cancel(tx, task, command)
    passing(Failpoint.CANCEL_WRITTEN)
    tx.after_commit(Failpoint.CANCEL_COMMITTED)
    return written


def _write_cancel(tx: Tx, task: TaskRow, command: Cancel) -> TaskRow:
    cancelled = log.moved(task, Command.CANCEL, command.now_ms)
    if cancelled.state.finished:
        return log.write_ending(tx, task, cancelled, Ending("cancelled", []), op_id=command.op_id)
    return log.write_move(tx, task, cancelled, [log.lifecycle_event(events.IN_PROGRESS, cancelled)], command.op_id)
