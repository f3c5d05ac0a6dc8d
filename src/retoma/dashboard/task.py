"""The page of one task: its fields, its life, its text; and beside it, asked for only when wanted, prompt and log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retoma.core.task import State
from retoma.dashboard.overview import see_instances, speed_of
from retoma.dashboard.people import names_of
from retoma.dashboard.timeline import Life, failure, life_of
from retoma.dashboard.waiting import Around, why_waiting
from retoma.http.guard import Caller
from retoma.store.contract import Tx
from retoma.store.rows import TaskRow
from retoma.transactions import read, survey
from retoma.transactions.instances import read_active

EVENTS_SHOWN = 50
# What is longer is cut on the page; the API has it whole.
TEXT_CHARS_SHOWN = 200_000
EVENT_CHARS_SHOWN = 2_000
_ACTIVE_MAX = 1_000


@dataclass(frozen=True, slots=True)
class SeenTask:
    """A task with all that its page shows. `response` is there once it has ended."""

    task: TaskRow
    request: dict[str, Any]
    response: dict[str, Any] | None
    life: Life
    speed: str
    client: str
    host: str
    why: str
    """Why it waits; empty when it doesn't."""
    now_ms: int

    @property
    def lasted_ms(self) -> int:
        """From the acceptance to the end, or to now."""
        return (self.task.finished_at_ms or self.now_ms) - self.task.created_at_ms

    @property
    def can_be_cancelled(self) -> bool:
        """A foreground task ends when its client goes away (contract.md §2)."""
        return self.task.mode == "background" and not self.task.state.finished

    @property
    def text(self) -> str:
        """The output text of an ended task."""
        items: list[dict[str, Any]] = self.response["output"] if self.response else []
        return "".join(
            part["text"]
            for item in items
            if item["type"] == "message"
            for part in item["content"]
            if part["type"] == "output_text"
        )

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The function calls of an ended task."""
        items: list[dict[str, Any]] = self.response["output"] if self.response else []
        return [item for item in items if item["type"] == "function_call"]

    @property
    def errors(self) -> list[str]:
        """Why it failed, in sentences; nothing for one that did not."""
        return failure(self.response["error"]) if self.response and self.response["error"] else []


async def see_task(caller: Caller, task_id: str) -> SeenTask:
    """Raises NotFound."""
    service = caller.service
    workers, problem, me = await service.workers(), service.not_ready(), service.instance_id
    now_ms = service.clock.wall_ms()

    def look(tx: Tx) -> SeenTask:
        task = read.read_task(tx, task_id)
        instances = see_instances(tx, me, [])
        position = read.queue_position(tx, task)
        around = Around(
            workers,
            busy=len(read_active(tx, me, _ACTIVE_MAX)),
            others=sum(instance.alive and not instance.mine for instance in instances),
            problem=problem,
        )
        hosts = {instance.row.id: f"{instance.row.host}, process {instance.row.pid}" for instance in instances}
        return SeenTask(
            task=task,
            request=task.request_fields,
            response=read.read_response(tx, task_id).body if task.state.finished else None,
            life=life_of(survey.read_turns(tx, task_id), task.tokens, now_ms),
            speed=speed_of(task.state, survey.read_pace(tx, task_id), now_ms),
            client=names_of(tx, [task.client_id]).get(task.client_id, ""),
            host=hosts.get(task.instance_id, ""),
            why="" if position is None else why_waiting(position, task.model, around),
            now_ms=now_ms,
        )

    return await service.read(look)


async def see_messages(caller: Caller, task_id: str) -> list[tuple[str, str, int]]:
    """Role, text and how many characters of it are left out, of each message of the request; raises NotFound."""
    task = await caller.service.read(lambda tx: read.read_task(tx, task_id))
    return [_message(message) for message in task.request_fields["messages"]]


def _message(message: Mapping[str, Any]) -> tuple[str, str, int]:
    content: object = message.get("content")
    rest = {name: value for name, value in message.items() if name not in {"role", "content"}}
    shown = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=2)
    if rest:
        shown += "\n" + json.dumps(rest, ensure_ascii=False, indent=2)
    text, left_out = _cut(shown, TEXT_CHARS_SHOWN)
    return str(message["role"]), text, left_out


@dataclass(frozen=True, slots=True)
class SeenEvents:
    """A page of a log: number, type, text and how much of it is left out. `next_after` is None on the last page."""

    task_id: str
    events: list[tuple[int, str, str, int]]
    next_after: int | None
    state: State


async def see_events(caller: Caller, task_id: str, after: int) -> SeenEvents:
    """Events with a number above `after`; raises NotFound."""

    def look(tx: Tx) -> SeenEvents:
        task = read.read_task(tx, task_id)
        page = read.read_log(tx, task_id, after, EVENTS_SHOWN)
        last = page.events[-1][0] if page.events else after
        shown = [(seq, kind, *_cut(text, EVENT_CHARS_SHOWN)) for seq, kind, text in page.events]
        return SeenEvents(task_id, shown, last if last < task.last_seq else None, task.state)

    return await caller.service.read(look)


def _cut(text: str, chars: int) -> tuple[str, int]:
    return text[:chars], max(0, len(text) - chars)
