"""The routes of contract §2."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from retoma.errors import ContextLengthExceeded, InvalidRequest
from retoma.http.create import accept, stream, wait
from retoma.http.errors import error_reply
from retoma.http.guard import caller_of
from retoma.http.items import read_input
from retoma.http.query import Query, cursor_of, expected_version, idempotency_key_of, response_id_of
from retoma.http.reply import REPLAYED, Json, list_reply, response_reply
from retoma.http.stream import EventStream
from retoma.http.wire import digest_of, parse, read_json
from retoma.limits import PAGE_ITEMS_MAX
from retoma.store.contract import Tx
from retoma.transactions import read
from retoma.transactions.cancel import Cancel
from retoma.transactions.delete import Delete
from retoma.transactions.read import SeenResponse

router = APIRouter(tags=["responses"])
PAGE_ITEMS_DEFAULT = 20


@router.post("/v1/responses", summary="Create a response")
async def create(request: Request) -> Response:
    """Accepts a request: it exists from the commit on, whatever dies afterwards."""
    caller = caller_of(request)
    Query(request)
    key_text = idempotency_key_of(request)
    body = await read_json(request)
    digest, wanted = digest_of(body), parse(body)
    accepted = await accept(caller, wanted, partial(read_input, wanted.input), key_text, digest)
    task_id, headers = accepted.task_id, REPLAYED if accepted.replayed else {}
    if wanted.stream:
        return stream(caller, wanted, task_id, caller.service.follow(task_id, -1), headers=headers)
    if wanted.background:
        first = await caller.service.read(partial(_first_answer, task_id=task_id))
        return response_reply(first, 202, {"Location": f"/v1/responses/{task_id}", **headers})
    reply = partial(_finished_reply, request_id=request.state.request_id, headers=headers)
    return await wait(request, caller, wanted, task_id, reply)


def _first_answer(tx: Tx, task_id: str) -> dict[str, Any]:
    read.read_task(tx, task_id)  # NotFound, if it has been deleted since
    return read.read_first_answer(tx, task_id)


def _finished_reply(seen: SeenResponse, request_id: str, headers: Mapping[str, str]) -> Response:
    error: dict[str, str] | None = seen.body["error"]
    if error and error["code"] == ContextLengthExceeded.code and not seen.body["output"]:
        return error_reply(ContextLengthExceeded(error["message"], param="input"), request_id, headers=headers)
    return response_reply(seen.body, headers=headers)


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
