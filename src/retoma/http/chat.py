"""Chat completions: what most programs still speak, as the same durable tasks as responses.

`chatcmpl-X` and `resp_X` are two names of one task.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from retoma.core import events
from retoma.errors import NotFound, RetomaError, ShuttingDown, TaskUnfinished, Unavailable
from retoma.http.chat_reply import (
    Chunks,
    Failure,
    completion_of,
    encode_message,
    failure_of,
    response_id_in,
)
from retoma.http.chat_wire import digest_of_chat, parse_chat
from retoma.http.create import accept, stream, wait
from retoma.http.guard import caller_of
from retoma.http.query import Query, expected_version, idempotency_key_of, response_id_of
from retoma.http.reply import REPLAYED, Json
from retoma.http.stream import Page, close
from retoma.http.wire import read_json
from retoma.limits import EVENTS_PAGE_MAX
from retoma.store.contract import Tx
from retoma.transactions import read
from retoma.transactions.delete import Delete
from retoma.transactions.read import SeenResponse

router = APIRouter(tags=["chat completions"])
# A failure is the end of its task: the same request would get it again under its key, and make a second task without.
_FINAL = {"X-Should-Retry": "false"}


@router.post("/v1/chat/completions", summary="Create a chat completion")
async def create(request: Request) -> Response:
    """Accepts a request: it exists from the commit on, as the response that `Location` names."""
    caller = caller_of(request)
    Query(request)
    key_text = idempotency_key_of(request)
    body = await read_json(request)
    digest, asked = digest_of_chat(body), parse_chat(body)
    accepted = await accept(caller, asked.wanted, asked.read, key_text, digest)
    task_id = accepted.task_id
    headers = {"Location": f"/v1/responses/{task_id}", **(REPLAYED if accepted.replayed else {})}
    if not asked.wanted.stream:
        reply = partial(_finished_reply, request_id=request.state.request_id, headers=headers)
        return await wait(request, caller, asked.wanted, task_id, reply)
    begins_at = await caller.service.read(partial(_beginning, task_id=task_id)) if accepted.replayed else 0
    chunks = Chunks(include_usage=asked.include_usage, begins_at=begins_at)
    pages = _messages(caller.service.follow(task_id, -1), chunks)
    return stream(caller, asked.wanted, task_id, pages, headers=headers, encode=encode_message)


@router.get("/v1/chat/completions/{completion_id}", summary="Retrieve a finished chat completion")
async def retrieve(completion_id: str, request: Request) -> Response:
    """What the request that created it was, or would have been, answered with."""
    caller = caller_of(request)
    Query(request)
    try:
        wanted_id = response_id_of(response_id_in(completion_id))
        seen = await caller.service.read(lambda tx: read.read_response(tx, wanted_id, caller.sees))
    except NotFound:
        raise _no_such_completion(completion_id) from None
    if not seen.task.state.finished:
        raise TaskUnfinished(f"{completion_id} has not ended yet; /v1/responses/{wanted_id} shows how far it is")
    return _finished_reply(seen, request.state.request_id, {})


@router.delete("/v1/chat/completions/{completion_id}", summary="Delete a finished chat completion")
async def delete(completion_id: str, request: Request) -> Response:
    """Deletes it for good, as a response too."""
    caller = caller_of(request)
    Query(request)
    try:
        wanted_id = response_id_of(response_id_in(completion_id))
        await caller.service.delete(Delete(wanted_id, caller.sees, expected_version(request)))
    except NotFound:
        raise _no_such_completion(completion_id) from None
    return Json({"object": "chat.completion.deleted", "id": completion_id, "deleted": True})


def _no_such_completion(completion_id: str) -> NotFound:
    return NotFound(f"there is no chat completion {completion_id[:64]}")


def _finished_reply(seen: SeenResponse, request_id: str, headers: Mapping[str, str]) -> Response:
    failure = failure_of(seen.body)
    if failure is not None:
        error = {**failure.wire(), "request_id": request_id}
        return Json({"error": error}, failure.status, {**_FINAL, **headers})
    return Json(completion_of(seen.body), headers={"ETag": f'"{seen.task.version}"', **headers})


async def _messages(pages: AsyncIterator[Page], chunks: Chunks) -> AsyncIterator[Page]:
    """The log's pages as pages of messages; ends with the text, or says why it can't go on to its end here."""
    missing: RetomaError = ShuttingDown(
        "the service is stopping; send the same request again under its idempotency key"
    )
    try:
        async for page in pages:
            said = [message for event in page if not chunks.ended for message in chunks.take(event)]
            if said:
                yield said
            if chunks.ended:
                return
    except (NotFound, Unavailable) as error:
        missing = error
    finally:
        await close(pages)
    failure = Failure(missing.status, missing.code, missing.message)
    yield [(chunks.last_seq, "", data) for data in chunks.fail(failure)]


def _beginning(tx: Tx, task_id: str) -> int:
    """The number of the event with which the text that stands begins. Reads the log only after a restart."""
    if not read.read_task(tx, task_id).restart_list:
        return 0
    beginning, after = 0, -1
    while found := read.read_log(tx, task_id, after, EVENTS_PAGE_MAX).events:
        beginning = max([beginning, *(seq for seq, kind, _ in found if kind == events.QUEUED)])
        after = found[-1][0]
    return beginning
