"""The routes of contract §2."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from retoma.core.task import OnRestart
from retoma.errors import ContextLengthExceeded, InvalidRequest, RetomaError
from retoma.http import keys
from retoma.http.compose import compose, on_restart_of
from retoma.http.errors import error_reply
from retoma.http.guard import Caller, caller_of
from retoma.http.query import Query, cursor_of, expected_version, idempotency_key_of, response_id_of
from retoma.http.reply import REPLAYED, Json, list_reply, response_reply
from retoma.http.stream import EventStream, stop, until_gone
from retoma.http.wire import CreateResponse, digest_of, parse, read_json
from retoma.limits import PAGE_ITEMS_MAX
from retoma.store.contract import Tx
from retoma.transactions import read
from retoma.transactions.accept import Accepted
from retoma.transactions.cancel import Cancel
from retoma.transactions.delete import Delete
from retoma.transactions.read import SeenResponse

logger = logging.getLogger("retoma.http")
router = APIRouter(tags=["responses"])
PAGE_ITEMS_DEFAULT = 20
_CLIENT_GONE = 499  # never seen by anybody; the word that proxies' logs use


@router.post("/v1/responses", summary="Create a response")
async def create(request: Request) -> Response:
    """Accepts a request: it exists from the commit on, whatever dies afterwards."""
    caller = caller_of(request)
    Query(request)
    key_text = idempotency_key_of(request)
    body = await read_json(request)
    digest, wanted = digest_of(body), parse(body)
    accepted = await _accept(caller, wanted, key_text, digest)
    headers = REPLAYED if accepted.replayed else {}
    if wanted.stream:
        return _stream(caller, wanted, accepted.task_id, headers)
    if wanted.background:
        first = await caller.service.read(partial(_first_answer, task_id=accepted.task_id))
        return response_reply(first, 202, {"Location": f"/v1/responses/{accepted.task_id}", **headers})
    return await _wait(request, caller, wanted, accepted.task_id, headers)


async def _accept(caller: Caller, wanted: CreateResponse, key_text: str | None, digest: bytes) -> Accepted:
    if key_text is None:
        return await caller.service.accept(await compose(caller, wanted, None))
    key = keys.hashed(caller, key_text, digest)
    found = await keys.earlier(caller, key)
    if found is not None:
        return found
    return await caller.service.accept(await compose(caller, wanted, key))


def _first_answer(tx: Tx, task_id: str) -> dict[str, Any]:
    read.read_task(tx, task_id)  # NotFound, if it has been deleted since
    return read.read_first_answer(tx, task_id)


def _stream(caller: Caller, wanted: CreateResponse, task_id: str, headers: dict[str, str]) -> EventStream:
    return EventStream(
        caller.service.follow(task_id, -1),
        keep_alive_s=caller.context.keep_alive_s,
        headers=headers,
        attending=partial(caller.context.attendance.attending, task_id),
        on_gone=partial(_client_left, caller, wanted, task_id),
    )


async def _wait(
    request: Request, caller: Caller, wanted: CreateResponse, task_id: str, headers: Mapping[str, str]
) -> Response:
    """The finished response; a client that goes away before takes its task with it."""
    with caller.context.attendance.attending(task_id):
        seen = await _end_or_gone(request, caller, task_id)
    if seen is None:
        await _client_left(caller, wanted, task_id)
        return Response(status_code=_CLIENT_GONE)
    error: dict[str, str] | None = seen.body["error"]
    if error and error["code"] == ContextLengthExceeded.code and not seen.body["output"]:
        refusal = ContextLengthExceeded(error["message"], param="input")
        return error_reply(refusal, request.state.request_id, headers=headers)
    return response_reply(seen.body, headers=headers)


async def _end_or_gone(request: Request, caller: Caller, task_id: str) -> SeenResponse | None:
    ended = asyncio.ensure_future(caller.service.finished(task_id))
    gone = asyncio.ensure_future(until_gone(request.receive))
    try:
        await asyncio.wait({ended, gone}, return_when=asyncio.FIRST_COMPLETED)
        return ended.result() if ended.done() else None
    finally:
        await stop(ended, gone)


async def _client_left(caller: Caller, wanted: CreateResponse, task_id: str) -> None:
    """Ends a foreground task that nobody waits for, unless it was to outlive a restart (contract §2)."""
    if wanted.background or on_restart_of(wanted) is not OnRestart.FAIL:
        return
    if caller.context.attendance.connections(task_id):
        return
    service = caller.service
    try:
        await service.cancel(Cancel(task_id, "", service.clock.wall_ms(), service.ids.op_id(), by_client=False))
    except RetomaError as error:  # it ends by itself, only later
        logger.warning("%s could not be cancelled after its client had left: %s", task_id, type(error).__name__)


@router.get("/v1/responses/{response_id}", summary="Retrieve a response, or stream its events")
async def retrieve(response_id: str, request: Request) -> Response:
    """The response now; with `stream=true` its events after a number, then live ones to the end."""
    caller = caller_of(request)
    query = Query(request, ("stream", "starting_after", "include", "include_obfuscation"))
    query.flag("include_obfuscation")
    streaming, after = query.flag("stream"), cursor_of(request, query)
    wanted_id = response_id_of(response_id)
    if not streaming:
        seen = await caller.service.read(lambda tx: read.read_response(tx, wanted_id, caller.sees))
        return response_reply(seen.body)
    await caller.service.read(lambda tx: read.read_task(tx, wanted_id, caller.sees))
    return EventStream(caller.service.follow(wanted_id, after), keep_alive_s=caller.context.keep_alive_s)


@router.post("/v1/responses/{response_id}/cancel", summary="Cancel a background response")
async def cancel(response_id: str, request: Request) -> Response:
    """The response after the transition; a finished one is returned unchanged, any number of times."""
    caller = caller_of(request)
    Query(request)
    service = caller.service
    command = Cancel(
        task_id=response_id_of(response_id),
        client_id=caller.sees,
        now_ms=service.clock.wall_ms(),
        op_id=service.ids.op_id(),
        version=expected_version(request),
    )
    seen = await service.cancel(command)
    return response_reply(seen.body)


@router.delete("/v1/responses/{response_id}", summary="Delete a finished response")
async def delete(response_id: str, request: Request) -> Response:
    """Deletes it for good; an unfinished one must be cancelled first."""
    caller = caller_of(request)
    Query(request)
    command = Delete(response_id_of(response_id), caller.sees, expected_version(request))
    await caller.service.delete(command)
    return Json({"id": response_id, "object": "response", "deleted": True})


@router.get("/v1/responses/{response_id}/input_items", summary="List the input of a response")
async def input_items(response_id: str, request: Request) -> Response:
    """A page of the items that the request brought, newest first unless `order=asc`."""
    caller = caller_of(request)
    query = Query(request, ("limit", "order", "after", "include"))
    limit = query.integer("limit", low=1, high=PAGE_ITEMS_MAX) or PAGE_ITEMS_DEFAULT
    order, after = query.text("order", ("asc", "desc")), query.text("after")
    wanted_id = response_id_of(response_id)
    task = await caller.service.read(lambda tx: read.read_task(tx, wanted_id, caller.sees))
    items: list[dict[str, Any]] = task.request_fields["input"]
    if order != "asc":
        items.reverse()
    start = _place_after(items, after)
    return list_reply(items[start : start + limit], has_more=start + limit < len(items))


def _place_after(items: list[dict[str, Any]], after: str) -> int:
    if not after:
        return 0
    for place, item in enumerate(items):
        if item["id"] == after:
            return place + 1
    raise InvalidRequest("after must be the id of one of these items", param="after")
