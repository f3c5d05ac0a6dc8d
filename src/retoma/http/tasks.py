"""The operator's view: tasks and their logs, page by page. Only the log tells what was asked and answered."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from retoma.core.task import State
from retoma.http.guard import caller_of
from retoma.http.query import Query, response_id_of
from retoma.http.reply import Json, page_reply
from retoma.limits import EVENTS_PAGE_MAX, PAGE_ITEMS_MAX
from retoma.store.contract import Tx
from retoma.store.rows import TaskRow
from retoma.transactions import read
from retoma.transactions.read import LogPage

router = APIRouter(tags=["tasks"])
PAGE_TASKS_DEFAULT = 20
PAGE_EVENTS_DEFAULT = 100


@router.get("/v1/tasks", summary="List tasks")
async def list_tasks(request: Request) -> Response:
    """Newest first; `after` is the last id of the page before."""
    caller = caller_of(request)
    query = Query(request, ("state", "after", "limit"))
    state = query.text("state", tuple(State))
    limit = query.integer("limit", low=1, high=PAGE_ITEMS_MAX) or PAGE_TASKS_DEFAULT
    after = query.text("after")
    found = await caller.service.read(
        lambda tx: read.read_tasks(tx, state=state, client_id=caller.sees, before=after, limit=limit + 1)
    )
    return page_reply(found, limit, _wire)


@router.get("/v1/tasks/{task_id}", summary="Retrieve a task")
async def retrieve_task(task_id: str, request: Request) -> Response:
    """One task, with its place in the queue while it waits."""
    caller = caller_of(request)
    Query(request)
    wanted_id = response_id_of(task_id)

    def look(tx: Tx) -> dict[str, Any]:
        task = read.read_task(tx, wanted_id, caller.sees)
        return {**_wire(task), "queue_position": read.queue_position(tx, task)}

    wire = await caller.service.read(look)
    return Json(wire, headers={"ETag": f'"{wire["version"]}"'})


@router.get("/v1/tasks/{task_id}/events", summary="List the events of a task")
async def list_events(task_id: str, request: Request) -> Response:
    """Events with a number above `after`; `complete` tells that the log ends here for good."""
    caller = caller_of(request)
    query = Query(request, ("after", "limit"))
    after = query.integer("after")
    limit = query.integer("limit", low=1, high=EVENTS_PAGE_MAX) or PAGE_EVENTS_DEFAULT
    wanted_id = response_id_of(task_id)

    def look(tx: Tx) -> tuple[TaskRow, LogPage]:
        task = read.read_task(tx, wanted_id, caller.sees)
        return task, read.read_log(tx, wanted_id, -1 if after is None else after, limit)

    task, page = await caller.service.read(look)
    last = page.events[-1][0] if page.events else None
    return Json(
        {
            "object": "list",
            "data": [json.loads(text) for _, _, text in page.events],
            "last_sequence_number": last,
            "has_more": last is not None and last < task.last_seq,
            "complete": page.complete,
        }
    )


def _wire(task: TaskRow) -> dict[str, Any]:
    return {
        "id": task.id,
        "object": "task",
        "client_id": task.client_id,
        "model": task.model,
        "background": task.mode == "background",
        "store": task.retention == "stored",
        "state": task.state,
        "on_restart": task.on_restart,
        "attempt": task.attempt,
        "version": task.version,
        "last_sequence_number": task.last_seq,
        "output_tokens": task.tokens,
        "instance": task.instance_id,
        "fencing_token": task.fencing_token,
        "priority": task.priority,
        "restarts": task.restart_list,
        "created_at_ms": task.created_at_ms,
        "updated_at_ms": task.updated_at_ms,
        "finished_at_ms": task.finished_at_ms,
    }
