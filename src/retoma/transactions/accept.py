"""Accept: a request becomes a task."""

from __future__ import annotations

from dataclasses import dataclass

from retoma import limits
from retoma.core import events
from retoma.core.task import OnRestart, State
from retoma.errors import IdempotencyConflict, QueueFull
from retoma.failpoints import Failpoint, passing
from retoma.store.contract import Tx
from retoma.store.rows import TaskRow
from retoma.store.statements import statement
from retoma.transactions import log, outbox

INSERT_TASK = statement("tasks.insert")
READ_KEY = statement("idempotency_keys.read")
INSERT_KEY = statement("idempotency_keys.insert")
DELETE_FORGOTTEN = statement("idempotency_keys.delete_forgotten")


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A client's key, hashed to 16 bytes, and the digest of the request that it stands for."""

    key_hash: bytes
    request_digest: bytes
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class Accept:
    """A request, ready to be stored. `request` is the JSON text that the task keeps."""

    task_id: str
    client_id: str
    model: str
    background: bool
    stored: bool
    on_restart: OnRestart
    request: str
    instance_id: str
    now_ms: int
    op_id: str
    key: IdempotencyKey | None = None
    priority: int = 0
    queue_max: int | None = limits.QUEUED_TASKS_MAX
    """How many tasks may wait; None: the caller knows that there is room, and spares the count."""
    webhook: str = ""
    """The URL that is told of the task's end."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The task that the request became, now or, if replayed, under the same key before."""

    task_id: str
    replayed: bool


def accept(tx: Tx, command: Accept) -> Accepted:
    """Writes the task, its first two events, its key and its webhook (P-11.2-persist, I1, I5, I10).

    If the process dies before the commit, nothing was accepted; after it, the task exists whether or not the client was
    told, and the key leads the client's next try to it. Raises IdempotencyConflict or QueueFull with nothing written.
    """
    if log.read_state(tx, command.task_id) is not None:
        return Accepted(command.task_id, replayed=False)  # this very command, driven again
    if command.key is not None and (earlier := read_key(tx, command.client_id, command.key, command.now_ms)):
        return Accepted(earlier, replayed=True)
    if command.queue_max is not None:
        _require_room(tx, command.queue_max)

    tx.execute(
        INSERT_TASK,
        {
            "id": command.task_id,
            "client_id": command.client_id,
            "model": command.model,
            "mode": "background" if command.background else "foreground",
            "retention": "stored" if command.stored else "unstored",
            "on_restart": command.on_restart,
            "instance_id": command.instance_id,
            "priority": command.priority,
            "request": command.request,
            "now_ms": command.now_ms,
        },
    )
    task = new_task(command)
    drafts = [log.lifecycle_event(events.CREATED, task), log.lifecycle_event(events.QUEUED, task)]
    log.write_events(tx, task.id, -1, drafts, op_id=command.op_id, now_ms=command.now_ms)
    if command.webhook:
        outbox.write_waiting(tx, task, command.webhook)
    if command.key is not None:
        _write_key(tx, command, command.key)
    passing(Failpoint.ACCEPT_WRITTEN)
    tx.after_commit(Failpoint.ACCEPT_COMMITTED)
    tx.wake(task.id)
    return Accepted(task.id, replayed=False)


def new_task(command: Accept) -> TaskRow:
    """The row that `tasks.insert` writes."""
    return TaskRow(
        id=command.task_id,
        client_id=command.client_id,
        model=command.model,
        mode="background" if command.background else "foreground",
        retention="stored" if command.stored else "unstored",
        on_restart=command.on_restart,
        state=State.QUEUED,
        version=1,
        last_seq=1,
        fencing_token=0,
        instance_id=command.instance_id,
        attempt=1,
        tokens=0,
        crashes=0,
        crash_tokens=0,
        fingerprint="",
        priority=command.priority,
        request=command.request,
        restarts="[]",
        created_at_ms=command.now_ms,
        updated_at_ms=command.now_ms,
        finished_at_ms=None,
    )


def read_key(tx: Tx, client_id: str, key: IdempotencyKey, now_ms: int) -> str | None:
    """The task that this key stands for, or None; raises IdempotencyConflict for another body.

    A key is forgotten once it has expired and its task is finished.
    """
    row = tx.row(READ_KEY, {"client_id": client_id, "key_hash": key.key_hash})
    if row is None:
        return None
    request_digest, task_id, expires_at_ms, state = row
    if expires_at_ms < now_ms and State(state).finished:
        return None
    if request_digest != key.request_digest:
        raise IdempotencyConflict(
            "this Idempotency-Key was used with another request body; use a new key for a new request",
            param="Idempotency-Key",
        )
    return task_id


def _require_room(tx: Tx, queue_max: int) -> None:
    if log.queue_length(tx, queue_max) >= queue_max:
        raise QueueFull(f"{queue_max} tasks are waiting already; nothing was accepted; try again later")


def _write_key(tx: Tx, command: Accept, key: IdempotencyKey) -> None:
    place = {"client_id": command.client_id, "key_hash": key.key_hash, "now_ms": command.now_ms}
    tx.execute(DELETE_FORGOTTEN, place)
    tx.execute(
        INSERT_KEY,
        {
            **place,
            "request_digest": key.request_digest,
            "task_id": command.task_id,
            "expires_at_ms": key.expires_at_ms,
        },
    )
