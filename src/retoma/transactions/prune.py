"""Prune: what is past its time goes, of its own accord and in batches; an unfinished task never does.

Each kind has two halves. The first looks, in a reading transaction and in pages of a bounded number of rows, each page
from behind the last row of the one before: nothing is walked past twice. The second deletes what was found, and looks
again: the whole predicate stands in the deleting statement. So whatever happens between the halves, on this instance or
on another, nothing goes that should not.

A finished response is one thing: its task, its log, its response and its snapshots live and go together, because a
stream is served from number 0 for as long as the response is there. A key that is still valid keeps its task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retoma import limits
from retoma.failpoints import Failpoint, passing
from retoma.store.contract import Tx
from retoma.store.statements import statement
from retoma.transactions.accept import DELETE_FORGOTTEN
from retoma.transactions.delete import delete_what_belongs

EXPIRED = {"stored": statement("tasks.expired_stored"), "unstored": statement("tasks.expired_unstored")}
LOCK_EXPIRED = statement("tasks.lock_expired")
DELETE_TASK = statement("tasks.delete_expired")
DELETE_KEYS = statement("idempotency_keys.delete_expired_of_task")
EXPIRED_KEYS = statement("idempotency_keys.expired")
STALE_SNAPSHOTS = statement("snapshots.stale")
DELETE_SNAPSHOT = statement("snapshots.delete_stale")
NEWEST_FINISHED = statement("tasks.newest_finished")
WEIGHT = statement("tasks.weight")

_EVENT_BYTES = 300  # what one takes as a rule, in a row of its own


@dataclass(frozen=True, slots=True)
class Window:
    """Which finished tasks are past their time: those of this retention that ended before an instant.

    `retention` is `stored` or `unstored`; `now_ms` decides which keys are still valid.
    """

    retention: str
    before_ms: int
    now_ms: int


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a page ends: when the last task that it looked at ended, and its id."""

    finished_at_ms: int = 0
    task_id: str = ""


@dataclass(frozen=True, slots=True)
class ExpiredTasks:
    """A page of tasks that may go, oldest first; `next_after` is None after the last page.

    `looked_at` counts the rows of the page, `kept` those whose time is over and whose key is still valid.
    """

    task_ids: list[str]
    next_after: Place | None
    looked_at: int
    kept: int


@dataclass(frozen=True, slots=True)
class Prune:
    """Delete those of these tasks that are in the window."""

    window: Window
    task_ids: Sequence[str]


@dataclass(frozen=True, slots=True, order=True)
class ExpiredKey:
    """An idempotency key past its time."""

    expires_at_ms: int = 0
    client_id: str = ""
    key_hash: bytes = b""
    task_id: str = ""


@dataclass(frozen=True, slots=True)
class ExpiredKeys:
    """A page of keys whose tasks are finished; `next_after` is None after the last page."""

    keys: list[ExpiredKey]
    next_after: ExpiredKey | None


@dataclass(frozen=True, slots=True)
class ForgetKeys:
    """Delete those of these keys that have expired by now and whose tasks are finished."""

    keys: Sequence[ExpiredKey]
    now_ms: int


@dataclass(frozen=True, slots=True)
class StaleSnapshot:
    """A snapshot of a task that has been waiting for long."""

    path: str
    task_id: str
    fencing_token: int
    tokens: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DropSnapshots:
    """Drop those of these snapshots that were written before an instant, for tasks that have not moved since."""

    snapshots: Sequence[StaleSnapshot]
    before_ms: int


@dataclass(frozen=True, slots=True)
class Weight:
    """What a finished task takes."""

    events: int
    size_bytes: int


def find_expired(tx: Tx, window: Window, after: Place, limit: int = limits.PRUNE_BATCH_MAX) -> ExpiredTasks:
    """The next page behind `after`; looks at no more than `limit` rows, and ends sooner when the tasks are large."""
    params = {
        "before_ms": window.before_ms,
        "now_ms": window.now_ms,
        "after_ms": after.finished_at_ms,
        "after_id": after.task_id,
        "limit": limit,
    }
    rows = tx.rows(EXPIRED[window.retention], params)
    found: list[str] = []
    weight = looked_at = kept = 0
    after_last: Place | None = None
    for finished_at_ms, task_id, retention, last_seq, request_bytes, has_key in rows:
        looked_at += 1
        if retention != window.retention:
            continue
        if has_key:
            kept += 1
            continue
        found.append(task_id)
        weight += last_seq * _EVENT_BYTES + request_bytes
        if weight >= limits.PRUNE_BATCH_BYTES:
            after_last = Place(finished_at_ms, task_id)
            break
    else:
        after_last = Place(rows[-1][0], rows[-1][1]) if len(rows) == limit else None
    return ExpiredTasks(found, after_last, looked_at, kept)


def prune(tx: Tx, command: Prune) -> list[str]:
    """Removes those of the tasks that still are in the window; their ids (P-11.2-retain, P-11.2-never).

    Their files go after the commit, by their folder's name. If the process dies before the commit, nothing has gone.
    Driven again, it finds them gone.
    """
    window = command.window
    gone: list[str] = []
    for task_id in command.task_ids:
        place = {
            "id": task_id,
            "retention": window.retention,
            "before_ms": window.before_ms,
            "now_ms": window.now_ms,
        }
        if tx.row(LOCK_EXPIRED, place) is None:
            continue
        tx.execute(DELETE_KEYS, {"task_id": task_id, "now_ms": window.now_ms})
        delete_what_belongs(tx, task_id)
        changed = tx.execute(DELETE_TASK, place)
        assert changed == 1, f"{task_id} changed under its lock"
        tx.wake(task_id)
        gone.append(task_id)
    _passed(tx)
    return gone


def find_expired_keys(tx: Tx, now_ms: int, after: ExpiredKey, limit: int = limits.PRUNE_BATCH_MAX) -> ExpiredKeys:
    """The next page of keys behind `after`; looks at no more than `limit` of them."""
    params = {
        "now_ms": now_ms,
        "after_ms": after.expires_at_ms,
        "after_client_id": after.client_id,
        "after_key_hash": after.key_hash,
        "limit": limit,
    }
    rows = tx.rows(EXPIRED_KEYS, params)
    keys = [ExpiredKey(*row[:4]) for row in rows]
    forgotten = [key for key, row in zip(keys, rows, strict=True) if row[4]]
    return ExpiredKeys(forgotten, keys[-1] if len(keys) == limit else None)


def forget_keys(tx: Tx, command: ForgetKeys) -> list[str]:
    """Deletes keys past their time, of finished tasks; the ids of these tasks, which nothing may keep any more."""
    now_ms = command.now_ms
    freed = [
        key.task_id
        for key in command.keys
        if tx.execute(DELETE_FORGOTTEN, {"client_id": key.client_id, "key_hash": key.key_hash, "now_ms": now_ms})
    ]
    _passed(tx)
    return freed


def find_stale_snapshots(tx: Tx, before_ms: int, after_path: str, limit: int) -> list[StaleSnapshot]:
    """The next snapshots behind a path that are older than an instant and whose tasks have not moved since."""
    rows = tx.rows(STALE_SNAPSHOTS, {"before_ms": before_ms, "after": after_path, "limit": limit})
    return [StaleSnapshot(*row) for row in rows]


def drop_snapshots(tx: Tx, command: DropSnapshots) -> list[StaleSnapshot]:
    """Deletes the rows of stale snapshots, which loses nothing but time; the files of those returned go after it."""
    dropped = [
        snapshot
        for snapshot in command.snapshots
        if tx.execute(
            DELETE_SNAPSHOT,
            {
                "task_id": snapshot.task_id,
                "fencing_token": snapshot.fencing_token,
                "tokens": snapshot.tokens,
                "before_ms": command.before_ms,
            },
        )
    ]
    if dropped:
        tx.after_commit(Failpoint.SNAPSHOT_ROWS_DROPPED)
    _passed(tx)
    return dropped


def read_newest_finished(tx: Tx) -> int | None:
    """When the last task ended, as it was labelled; None when there is no finished one."""
    row = tx.row(NEWEST_FINISHED, {})
    return row[0] if row else None


def read_weight(tx: Tx, task_id: str) -> Weight:
    """What one finished task takes; nothing when it is gone."""
    row = tx.row(WEIGHT, {"id": task_id})
    return Weight(*row) if row else Weight(0, 0)


def _passed(tx: Tx) -> None:
    passing(Failpoint.PRUNE_WRITTEN)
    tx.after_commit(Failpoint.PRUNE_COMMITTED)
