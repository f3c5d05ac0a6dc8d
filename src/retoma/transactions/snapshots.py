"""Snapshots: the row of a file that is durable already. File first, row last; for removal row first, file last."""

from __future__ import annotations

from dataclasses import dataclass

from retoma.core.task import State
from retoma.errors import LeaseLost
from retoma.failpoints import Failpoint, passing
from retoma.limits import SNAPSHOTS_KEPT
from retoma.store.contract import Tx
from retoma.store.rows import SnapshotRow
from retoma.store.statements import statement
from retoma.transactions import log

INSERT = statement("snapshots.insert")
OF_TASK = statement("snapshots.of_task")
DELETE = statement("snapshots.delete")
ALL = statement("snapshots.all")


@dataclass(frozen=True, slots=True)
class RegisterSnapshot:
    """A file under the snapshots folder, written for this owner after `tokens` tokens."""

    task_id: str
    fencing_token: int
    tokens: int
    path: str
    size_bytes: int
    fingerprint: str
    now_ms: int


def register_snapshot(tx: Tx, command: RegisterSnapshot) -> list[str]:
    """Writes the row under the owner's token and drops the rows beyond the newest two.

    Returns the paths whose rows are gone; their files go after the commit. Raises LeaseLost when the task has another
    owner or has ended; the file is then nobody's.
    """
    task = log.lock_task(tx, command.task_id)
    if task.fencing_token != command.fencing_token or task.state is not State.RUNNING:
        raise LeaseLost(f"{task.id} is {task.state} under fencing token {task.fencing_token}")
    tx.execute(
        INSERT,
        {
            "task_id": command.task_id,
            "fencing_token": command.fencing_token,
            "tokens": command.tokens,
            "path": command.path,
            "size_bytes": command.size_bytes,
            "fingerprint": command.fingerprint,
            "now_ms": command.now_ms,
        },
    )
    passing(Failpoint.SNAPSHOT_ROW_WRITTEN)
    tx.after_commit(Failpoint.SNAPSHOT_ROW_COMMITTED)
    old = read_snapshots(tx, command.task_id)[SNAPSHOTS_KEPT:]
    for row in old:
        tx.execute(DELETE, {"task_id": task.id, "fencing_token": row.fencing_token, "tokens": row.tokens})
    if old:
        tx.after_commit(Failpoint.SNAPSHOT_ROWS_DROPPED)
    return [row.path for row in old]


def read_snapshots(tx: Tx, task_id: str) -> list[SnapshotRow]:
    """A task's snapshots, newest first."""
    return [SnapshotRow(*row) for row in tx.rows(OF_TASK, {"task_id": task_id})]


def read_snapshot_paths(tx: Tx) -> list[tuple[str, str]]:
    """Task id and path of every registered snapshot."""
    return [(task_id, path) for task_id, path in tx.rows(ALL, {})]


def forget_snapshot(tx: Tx, task_id: str, path: str) -> None:
    """Drops the row of a file that has vanished; that loses nothing but time."""
    for row in read_snapshots(tx, task_id):
        if row.path == path:
            tx.execute(DELETE, {"task_id": task_id, "fencing_token": row.fencing_token, "tokens": row.tokens})
