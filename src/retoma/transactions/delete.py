"""Delete: a client has a finished task go, with its log, its response and its key."""

from __future__ import annotations

from dataclasses import dataclass

from retoma.errors import NotFound, StaleVersion, TaskUnfinished
from retoma.failpoints import Failpoint, passing
from retoma.store.contract import Tx
from retoma.store.statements import statement
from retoma.transactions import log, outbox

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
    tx.execute(DELETE_KEYS, {"task_id": task.id})
    delete_what_belongs(tx, task.id)
    changed = tx.execute(DELETE_TASK, {"id": task.id})
    assert changed == 1, f"{task.id} changed under its lock"
    passing(Failpoint.DELETE_WRITTEN)
    tx.after_commit(Failpoint.DELETE_COMMITTED)
    tx.wake(task.id)


def delete_what_belongs(tx: Tx, task_id: str) -> None:
    """All of a finished task, whose row is locked, but the row itself and its key: they are the caller's."""
    outbox.release_if_ended(tx, task_id)  # what is owed stays owed, and now is the last time that it can be said
    tx.execute(log.DELETE_SNAPSHOTS, {"task_id": task_id})
    tx.execute(DELETE_EVENTS, {"task_id": task_id})
    tx.execute(DELETE_RESPONSE, {"id": task_id})
