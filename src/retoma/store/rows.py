"""Rows as typed values. The order of the fields is the order of the columns in the statements that read them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from retoma.core.task import OnRestart, State
from retoma.core.webhook import MessageState


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task as it stands in the store. `request` and `restarts` are JSON."""

    id: str
    client_id: str
    model: str
    mode: str
    retention: str
    on_restart: OnRestart
    state: State
    version: int
    last_seq: int
    fencing_token: int
    instance_id: str
    attempt: int
    tokens: int
    """Output tokens committed by the present attempt."""
    crashes: int
    crash_tokens: int
    fingerprint: str
    """Of the engine that made the committed tokens; empty before the first."""
    priority: int
    request: str
    restarts: str
    created_at_ms: int
    updated_at_ms: int
    finished_at_ms: int | None

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> TaskRow:
        """From a row of `tasks.read` or `tasks.lock`."""
        values = list(row)
        values[5], values[6] = OnRestart(values[5]), State(values[6])
        return cls(*values)

    @property
    def request_fields(self) -> dict[str, Any]:
        """The request, decoded."""
        return json.loads(self.request)

    @property
    def restart_list(self) -> list[dict[str, Any]]:
        """The restarts so far, decoded."""
        return json.loads(self.restarts)


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A registered model. `facts` is JSON."""

    name: str
    digest: str
    size_bytes: int
    engine: str
    source: str
    state: str
    facts: str
    version: int
    created_at_ms: int

    @property
    def fact_fields(self) -> dict[str, Any]:
        """The facts, decoded."""
        return json.loads(self.facts)


@dataclass(frozen=True, slots=True)
class InstanceRow:
    """A process that serves this store, or did."""

    id: str
    host: str
    boot_id: str
    pid: int
    lease_until_ms: int
    """By the store's time (Tx.now_ms)."""
    state: str
    registered_at_ms: int


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """A registered snapshot file; the path is relative to the snapshots folder."""

    fencing_token: int
    tokens: int
    path: str
    size_bytes: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event as it stands in the log."""

    seq: int
    type: str
    body: str
    tokens: bytes = b""


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A webhook as it stands in the outbox."""

    id: str
    task_id: str
    client_id: str
    url: str
    state: MessageState
    body: str
    tries: int
    next_at_ms: int | None
    last_answer: str
    created_at_ms: int
    updated_at_ms: int

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> MessageRow:
        """From a row of `outbox.page`."""
        values = list(row)
        values[4] = MessageState(values[4])
        return cls(*values)
