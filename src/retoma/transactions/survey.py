"""Survey: what the operator's page shows of many tasks at once. Nothing here changes anything.

Requests may be long and are left where they are: a page that looks again every other second must cost next to nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from retoma.core.task import OnRestart, State
from retoma.store.contract import Row, Tx
from retoma.store.statements import Statement, statement

BRIEFS = statement("tasks.briefs")
UNDER_WAY = statement("tasks.briefs_under_way")
QUEUED = statement("tasks.briefs_queued")
ENDED = statement("tasks.briefs_ended")
LATELY = statement("task_events.lately")
TURNS = statement("task_events.turns")
NEWEST_MIGRATION = statement("migrations.newest")
TURNS_MAX = 200
_TOKEN_BYTES = 4
_LATELY_EVENTS = 33
_LAST_ID = "~"  # sorts after every id


@dataclass(frozen=True, slots=True)
class Brief:
    """A task in a list."""

    id: str
    client_id: str
    model: str
    mode: str
    on_restart: OnRestart
    state: State
    version: int
    instance_id: str
    attempt: int
    tokens: int
    restarts: str
    created_at_ms: int
    updated_at_ms: int
    finished_at_ms: int | None

    @classmethod
    def of(cls, row: Row) -> Brief:
        """From a row of one of the statements `tasks.briefs…`."""
        values = list(row)
        values[4], values[5] = OnRestart(values[4]), State(values[5])
        return cls(*values)

    @property
    def restart_list(self) -> list[dict[str, Any]]:
        """The restarts so far, decoded."""
        return json.loads(self.restarts)


@dataclass(frozen=True, slots=True)
class Pace:
    """How a running text comes on: tokens per second over its last events (None: too few), and when the last came."""

    tokens_per_s: float | None
    last_at_ms: int


@dataclass(frozen=True, slots=True)
class Turn:
    """A change of state as the log tells it. `before_ms`: when the event before it was committed."""

    seq: int
    type: str
    response: dict[str, Any]
    at_ms: int
    before_ms: int | None


def read_briefs(tx: Tx, *, state: str, before: str, limit: int) -> list[Brief]:
    """A page of tasks of all clients, newest first, older than the id `before`; an empty filter takes all."""
    return _briefs(tx, BRIEFS, {"state": state, "before": before or _LAST_ID, "limit": limit})


def read_under_way(tx: Tx, limit: int) -> list[Brief]:
    """What all instances work on, by instance."""
    return _briefs(tx, UNDER_WAY, {"limit": limit})


def read_waiting(tx: Tx, limit: int) -> list[Brief]:
    """The head of the queue, in its order."""
    return _briefs(tx, QUEUED, {"limit": limit})


def read_ended(tx: Tx, limit: int) -> list[Brief]:
    """The tasks that ended last, newest first."""
    return _briefs(tx, ENDED, {"limit": limit})


def read_pace(tx: Tx, task_id: str) -> Pace:
    """The pace of a task that has a log, since its last event without tokens: a restart begins the count again."""
    rows = tx.rows(LATELY, {"task_id": task_id, "limit": _LATELY_EVENTS})
    last_at_ms: int = rows[0][2]
    # Of the run of events that committed tokens; the first of them only marks where the time begins.
    run: list[tuple[int, int]] = []
    for _, size, at_ms in rows:
        if not size:
            break
        run.append((size // _TOKEN_BYTES, at_ms))
    taken_ms = run[0][1] - run[-1][1] if run else 0
    rate = sum(count for count, _ in run[:-1]) / taken_ms * 1000 if taken_ms > 0 else None
    return Pace(rate, last_at_ms)


def read_turns(tx: Tx, task_id: str) -> list[Turn]:
    """The last `TURNS_MAX` changes of state, oldest first."""
    rows = tx.rows(TURNS, {"task_id": task_id, "limit": TURNS_MAX})
    return [
        Turn(seq, kind, json.loads(body)["response"], at_ms, before_ms)
        for seq, kind, body, at_ms, before_ms in reversed(rows)
    ]


def read_schema_version(tx: Tx) -> int:
    """The version of the store's schema."""
    row = tx.row(NEWEST_MIGRATION, {})
    assert row is not None
    return row[0]


def _briefs(tx: Tx, query: Statement, params: dict[str, str | int | float | bytes | None]) -> list[Brief]:
    return [Brief.of(row) for row in tx.rows(query, params)]
