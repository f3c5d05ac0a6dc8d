"""Claim: an instance takes the next queued task."""

from __future__ import annotations

from dataclasses import dataclass

from retoma.core import events
from retoma.core.task import Command, State
from retoma.failpoints import Failpoint, passing
from retoma.store.contract import Tx
from retoma.store.rows import TaskRow
from retoma.transactions import log
from retoma.transactions.instances import read_active

_ACTIVE_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Claim:
    """Who claims."""

    instance_id: str
    now_ms: int
    op_id: str
    models: frozenset[str] | None = None
    """Those that the instance can load, where its files are not everybody's; None: every model."""


def claim(tx: Tx, command: Claim) -> TaskRow | None:
    """Moves the first task of the queue that this instance can work on to `loading` under a new fencing token.

    None when nothing such waits.

    Driven again, it returns the same task, which a client may have made `cancelling` meanwhile.

    If the process dies before the commit, the task is still queued; after it, recovery finds it `loading` under a dead
    instance.
    """
    if (again := _claimed_before(tx, command)) is not None:
        return again
    models = command.models
    first = log.lock_first_queued(tx) if models is None else log.lock_first_queued_of(tx, models)
    if first is None:
        return None
    task = log.lock_task(tx, first)

    claimed = log.moved(
        task,
        Command.CLAIM,
        command.now_ms,
        fencing_token=task.fencing_token + 1,
        instance_id=command.instance_id,
    )
    written = log.write_move(tx, task, claimed, [log.lifecycle_event(events.IN_PROGRESS, claimed)], command.op_id)
    passing(Failpoint.CLAIM_WRITTEN)
    tx.after_commit(Failpoint.CLAIM_COMMITTED)
    return written


def _claimed_before(tx: Tx, command: Claim) -> TaskRow | None:
    for task_id, state in read_active(tx, command.instance_id, _ACTIVE_MAX):
        # `cancelling`: a client was quicker than the second drive. `running` needs an owner that knows of its claim.
        if state is not State.RUNNING and log.was_applied(tx, task_id, command.op_id):
            return log.lock_task(tx, task_id)
    return None
