"""Delete: a finished task goes, with its log, its response and its key; by a client, or in batches after its time."""

from __future__ import annotations

from dataclasses import dataclass

from retoma.errors import NotFound, StaleVersion, TaskUnfinished
from retoma.failpoints import Failpoint, passing
from retoma.store.contract import Tx
from retoma.store.statements import statement
from retoma.transactions import log

EXPIRED = statement("tasks.expired")
DELETE_TASK = statement("tasks.delete_finished")
DELETE_EVENTS = statement("task_events.delete_of_task")
DELETE_RESPONSE = statement("responses.delete")
DELETE_KEYS = statement("idempotency_keys.delete_of_task")


@dataclass(frozen=True, slots=True)
class Delete:
    """A client's wish; an empty client may delete any (scope `admin`)."""

    task_id: str
    client_id: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Prune:
    """Retention: finished before this instant. `retention` is `stored` or `unstored`."""

    retention: str
    before_ms: int
    now_ms: int
    limit: int


def delete(tx: Tx, command: Delete) -> None:
    """Removes a finished task for good; its files go later, by their folder's name.

    Raises NotFound, TaskUnfinished or StaleVersion. Driven again after an unknown commit, it raises NotFound: gone.
    """
    task = log.lock_task(tx, command.task_id)
    if command.client_id and task.client_id != command.client_id:
        raise NotFound(f"there is no response {command.task_id}")
    if command.version is not None and command.version != task.version:
        raise StaleVersion(f"{task.id} is at version {task.version}, not {command.version}; nothing was changed")
    if not task.state.finished:
        raise TaskUnfinished(f"{task.id} is {task.state}; cancel it first or wait for its end")
    _delete_task(tx, task.id)
    passing(Failpoint.DELETE_WRITTEN)
    tx.after_commit(Failpoint.DELETE_COMMITTED)
    tx.wake(task.id)


def prune(tx: Tx, command: Prune) -> list[str]:
    """Removes at most `limit` tasks past their time and never an unfinished one (P-11.2-retain, P-11.2-never).

    A task stays as long as its idempotency key is valid. The ids of those that went.
    """
    params = {
        "retention": command.retention,
        "before_ms": command.before_ms,
        "now_ms": command.now_ms,
        "limit": command.limit,
    }
    task_ids = [task_id for (task_id,) in tx.rows(EXPIRED, params)]
    for task_id in task_ids:
        _delete_task(tx, task_id)
        tx.wake(task_id)
    passing(Failpoint.PRUNE_WRITTEN)
    tx.after_commit(Failpoint.PRUNE_COMMITTED)
    return task_ids


def _delete_task(tx: Tx, task_id: str) -> None:
    tx.execute(DELETE_KEYS, {"task_id": task_id})
    tx.execute(log.DELETE_SNAPSHOTS, {"task_id": task_id})
    tx.execute(DELETE_EVENTS, {"task_id": task_id})
    tx.execute(DELETE_RESPONSE, {"id": task_id})
    changed = tx.execute(DELETE_TASK, {"id": task_id})
    assert changed == 1, f"{task_id} changed under its lock"
