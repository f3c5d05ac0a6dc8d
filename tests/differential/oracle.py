"""What the tables of `retoma.core` say must come of a command; it knows nothing of SQL and of events."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from retoma.core.crash import CrashCount, decide_after_crash
from retoma.core.restart import decide_restart
from retoma.core.task import Command, State
from retoma.core.transitions import TRANSITIONS
from tests.transactions.test_state_machine import TERMINAL, Known


@dataclass(frozen=True)
class Pictured(Known):
    """What is known of a task, with all that decides about a command."""

    client: str = ""
    model: str = "m"
    priority: int = 0
    background: bool = True
    stored: bool = True
    finished_at_ms: int | None = None
    version: int = 1
    last_seq: int = 1

    def after(self, command: Command, now_ms: int, **changes: Any) -> Pictured:
        """Moved, with the version and the instant that go with it."""
        moved = self.moved(command, **changes)
        assert isinstance(moved, Pictured)
        ended = now_ms if moved.state.finished else None
        return replace(moved, version=self.version + 1, finished_at_ms=ended)


@dataclass(frozen=True)
class Key:
    """An idempotency key: whose task it stands for."""

    task_id: str
    body: str
    expires_at_ms: int


class Oracle:
    """The whole store as dictionaries. Every method says in one word what must come of the command, and follows it."""

    def __init__(self) -> None:
        self.tasks: dict[str, Pictured] = {}
        self.keys: dict[tuple[str, str], Key] = {}

    def accept(self, task_id: str, task: Pictured, key: str, body: str, *, expires: int, now: int, room: int) -> str:
        known = self.keys.get((task.client, key)) if key else None
        if known and not (known.expires_at_ms < now and self.tasks[known.task_id].state.finished):
            return "replayed" if known.body == body else "IdempotencyConflict"
        if sum(one.state is State.QUEUED for one in self.tasks.values()) >= room:
            return "QueueFull"
        self.tasks[task_id] = task
        if key:
            self.keys[task.client, key] = Key(task_id, body, expires)
        return "queued"

    def claim(self, owner: str, models: Collection[str] | None, now: int) -> str:
        waiting = sorted(
            (task.priority, task_id)
            for task_id, task in self.tasks.items()
            if task.state is State.QUEUED and (models is None or task.model in models)
        )
        if not waiting:
            return "nothing"
        _, task_id = waiting[0]
        task = self.tasks[task_id]
        self.tasks[task_id] = task.after(Command.CLAIM, now, owner=owner, token=task.token + 1)
        return f"loading {task_id}"

    def refusal(self, task_id: str, token: int, command: Command) -> str:
        """Why the owner's command is refused, or nothing."""
        task = self.tasks.get(task_id)
        if task is None:
            return "NotFound"
        if task.token != token:
            return "LeaseLost"
        return "" if (task.state, command) in TRANSITIONS else "IllegalTransition"

    def start(self, task_id: str, token: int, now: int) -> str:
        task = self.tasks.get(task_id)
        command = Command.CONTINUE if task and task.state is State.RUNNING else Command.START
        if refused := self.refusal(task_id, token, command):
            return refused
        assert task
        self.tasks[task_id] = task.after(command, now)
        return "running"

    def append(self, task_id: str, token: int, after_seq: int, last_seq: int, tokens: int) -> str:
        task = self.tasks.get(task_id)
        if task is None:
            return "NotFound"
        if task.token != token:
            return "LeaseLost"
        if (task.state, Command.APPEND) not in TRANSITIONS:
            return "IllegalTransition"
        if after_seq != last_seq:
            return "LeaseLost"
        self.tasks[task_id] = replace(task, tokens=task.tokens + tokens)
        return "appended"

    def finish(self, task_id: str, token: int, status: str, now: int) -> str:
        command = TERMINAL[status]
        if refused := self.refusal(task_id, token, command):
            return refused
        self.tasks[task_id] = self.tasks[task_id].after(command, now)
        return status

    def cancel(self, task_id: str, client: str, version: int | None, *, by_client: bool, now: int) -> str:
        task = self.tasks.get(task_id)
        if task is None or (client and task.client != client):
            return "NotFound"
        if by_client and not task.background:
            return "RequestError"
        if version not in {None, task.version}:
            return "StaleVersion"
        if (task.state, Command.CANCEL) in TRANSITIONS:
            self.tasks[task_id] = task.after(Command.CANCEL, now)
        return str(self.tasks[task_id].state)

    def recover(self, task_id: str, dead: str, owner: str, now: int, *, can_work: bool) -> str:
        task = self.tasks.get(task_id)
        if task is None or task.owner != dead or task.state.finished:
            return "nothing"
        command, _ = decide_restart(task.state, task.policy)
        if command is Command.CONTINUE and not can_work:
            return "nothing"
        self._take(task_id, task, command, owner, now)
        return str(self.tasks[task_id].state)

    def crash(self, task_id: str, token: int, owner: str, now: int) -> str:
        task = self.tasks.get(task_id)
        if task is None:
            return "NotFound"
        if task.token != token or task.state.finished:
            return "LeaseLost"
        count: CrashCount = task.crashes.after_crash_at(task.tokens)
        command = decide_after_crash(task.state, task.policy, count)
        self._take(task_id, task, command, owner, now)
        self.tasks[task_id] = replace(self.tasks[task_id], crashes=count)
        return str(self.tasks[task_id].state)

    def _take(self, task_id: str, task: Pictured, command: Command, owner: str, now: int) -> None:
        taken = task.taken(command, owner)
        assert isinstance(taken, Pictured)
        ended = now if taken.state.finished else None
        self.tasks[task_id] = replace(taken, version=task.version + 1, finished_at_ms=ended)

    def delete(self, task_id: str, client: str, version: int | None) -> str:
        task = self.tasks.get(task_id)
        if task is None or (client and task.client != client):
            return "NotFound"
        if version not in {None, task.version}:
            return "StaleVersion"
        if not task.state.finished:
            return "TaskUnfinished"
        self._forget(task_id)
        return "deleted"

    def prune(self, retention: str, before: int, now: int, limit: int) -> str:
        kept = {key.task_id for key in self.keys.values() if key.expires_at_ms >= now}
        expired = sorted(
            (task.finished_at_ms, task_id)
            for task_id, task in self.tasks.items()
            if task.finished_at_ms is not None
            and task.finished_at_ms < before
            and task.stored == (retention == "stored")
            and task_id not in kept
        )[:limit]
        for _, task_id in expired:
            self._forget(task_id)
        return f"pruned {len(expired)}"

    def _forget(self, task_id: str) -> None:
        del self.tasks[task_id]
        self.keys = {place: key for place, key in self.keys.items() if key.task_id != task_id}
