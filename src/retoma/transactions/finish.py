"""Finish: the owner ends its task, as completed, incomplete, failed or cancelled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from retoma.core.events import EventDraft
from retoma.core.response import Ending
from retoma.core.task import Command
from retoma.failpoints import Failpoint, passing
from retoma.store.contract import Tx
from retoma.store.rows import TaskRow
from retoma.transactions import log

_COMMANDS = {
    "completed": Command.COMPLETE,
    "incomplete": Command.COMPLETE,
    "failed": Command.FAIL,
    "cancelled": Command.CONFIRM_CANCEL,
}


@dataclass(frozen=True, slots=True)
class Finish:
    """How the attempt ended. `before` are output events that no append carried."""

    task_id: str
    fencing_token: int
    ending: Ending
    now_ms: int
    op_id: str
    before: Sequence[EventDraft] = ()
    fold_output: bool = False
    """The caller does not know the output (it has only just taken the task over): take it from the log."""


def finish(tx: Tx, command: Finish) -> TaskRow:
    """Writes the last output, the terminal event, the state and the folded response in one (P-11.2-cancel, I4).

    Once `cancelling` is committed, no completion can win: this raises IllegalTransition then, and LeaseLost for an old
    fencing token.
    """
    verb = _COMMANDS[command.ending.status]
    task = log.lock_for(tx, command.task_id, verb, command.op_id, command.fencing_token)
    if task is None:
        return log.lock_task(tx, command.task_id)

    ending = command.ending
    if command.fold_output:
        ending = replace(ending, output=log.output_so_far(tx, task))
    tokens = task.tokens + sum(len(event.tokens) for event in command.before)
    ended = log.moved(task, verb, command.now_ms, tokens=tokens)
    written = log.write_ending(tx, task, ended, ending, op_id=command.op_id, before=command.before)
    passing(Failpoint.FINISH_WRITTEN)
    tx.after_commit(Failpoint.FINISH_COMMITTED)
    return written
