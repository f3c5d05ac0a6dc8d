"""Read: what clients and operators see. Nothing here changes anything."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from retoma.core.events import encode_event
from retoma.core.fold import Folded
from retoma.core.response import Ending
from retoma.core.task import WIRE_STATUS, State
from retoma.errors import NotFound
from retoma.limits import QUEUED_TASKS_MAX
from retoma.store.contract import Tx
from retoma.store.rows import EventRow, TaskRow
from retoma.store.statements import statement
from retoma.transactions import log

READ_TASK = statement("tasks.read")
READ_RESPONSE = statement("responses.read")
PAGE = statement("tasks.page")
COUNTS = statement("tasks.counts")
QUEUE_POSITION = statement("tasks.queue_position")
EVENTS_AFTER = statement("task_events.after")
_LAST_ID = "~"  # sorts after every id


@dataclass(frozen=True, slots=True)
class SeenResponse:
    """A response as a client sees it, with its row."""

    task: TaskRow
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LogPage:
    """Consecutive events as they are sent, and whether the task has ended and this page ends the log."""

    events: list[tuple[int, str, str]]
    """Sequence number, type, JSON text."""
    complete: bool


def read_task(tx: Tx, task_id: str, client_id: str = "") -> TaskRow:
    """One task; an empty client sees all. Raises NotFound, also for another client's task."""
    row = tx.row(READ_TASK, {"id": task_id})
    task = TaskRow.of(row) if row else None
    if task is None or (client_id and task.client_id != client_id):
        raise NotFound(f"there is no response {task_id}")
    return task


def read_response(tx: Tx, task_id: str, client_id: str = "") -> SeenResponse:
    """The Response now: the stored one of a finished task, else what the log adds up to. Raises NotFound."""
    task = read_task(tx, task_id, client_id)
    if task.state.finished:
        row = tx.row(READ_RESPONSE, {"id": task_id})
        assert row is not None, f"{task_id} is finished without a response"
        return SeenResponse(task, json.loads(row[0]))
    ending = Ending(WIRE_STATUS[task.state], log.output_so_far(tx, task, "in_progress"))
    return SeenResponse(task, log.response_of(task, ending, queue_position(tx, task)))


def queue_position(tx: Tx, task: TaskRow) -> int | None:
    """How many tasks are before this one, 0 for the next; None when it is not waiting."""
    if task.state is not State.QUEUED:
        return None
    row = tx.row(QUEUE_POSITION, {"priority": task.priority, "id": task.id, "limit": QUEUED_TASKS_MAX})
    assert row is not None
    return row[0]


def read_first_answer(tx: Tx, task_id: str) -> dict[str, Any]:
    """The Response that the 202 carried, from the log, for a replayed key's very same body; raises NotFound."""
    rows = tx.rows(EVENTS_AFTER, {"task_id": task_id, "after": 0, "limit": 1})
    if not rows:
        raise NotFound(f"there is no response {task_id}")
    return json.loads(EventRow(*rows[0]).body)["response"]


def read_log(tx: Tx, task_id: str, after: int, limit: int) -> LogPage:
    """At most `limit` events with a number above `after`. Raises NotFound."""
    found = log.read_state(tx, task_id)
    if found is None:
        raise NotFound(f"there is no response {task_id}")
    _, state, last_seq = found
    rows = [EventRow(*row) for row in tx.rows(EVENTS_AFTER, {"task_id": task_id, "after": after, "limit": limit})]
    last = rows[-1].seq if rows else after
    complete = state.finished and last >= last_seq
    return LogPage([(row.seq, row.type, encode_event(row.type, row.seq, row.body)) for row in rows], complete)


def read_folded(tx: Tx, task_id: str) -> Folded:
    """What the task's log adds up to, for the engine that continues it."""
    return log.fold_log(tx, task_id)


def read_states(tx: Tx, task_ids: Iterable[str]) -> dict[str, State]:
    """The states of these tasks; those that are gone are left out."""
    found = {task_id: log.read_state(tx, task_id) for task_id in task_ids}
    return {task_id: row[1] for task_id, row in found.items() if row}


def read_queue_head(tx: Tx) -> bool:
    """True if a task waits."""
    return log.queue_length(tx, 1) > 0


def read_tasks(tx: Tx, *, state: str, client_id: str, before: str, limit: int) -> list[TaskRow]:
    """A page of tasks, newest first, older than the id `before`; empty filters take all."""
    params = {"state": state, "client_id": client_id, "before": before or _LAST_ID, "limit": limit}
    return [TaskRow.of(row) for row in tx.rows(PAGE, params)]


def count_states(tx: Tx) -> dict[str, int]:
    """How many tasks are in each state."""
    return dict(tx.rows(COUNTS, {}))
