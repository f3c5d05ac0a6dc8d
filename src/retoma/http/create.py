"""What every route that makes a task does: accept it, wait for its end or stream it, end it if its client leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial

from fastapi import Request
from starlette.responses import Response

from retoma.core.task import OnRestart
from retoma.errors import RetomaError
from retoma.http import keys
from retoma.http.compose import compose, on_restart_of
from retoma.http.guard import Caller
from retoma.http.items import ReadInput
from retoma.http.stream import Event, EventStream, Page, encode_sse, stop, until_gone
from retoma.http.wire import CreateResponse
from retoma.transactions.accept import Accepted
from retoma.transactions.cancel import Cancel
from retoma.transactions.read import SeenResponse

logger = logging.getLogger("retoma.http")
_CLIENT_GONE = 499  # never seen by anybody; the word that proxies' logs use


async def accept(
    caller: Caller, wanted: CreateResponse, read_input: ReadInput, key_text: str | None, digest: bytes
) -> Accepted:
    """The task that this request is or, under its key, was before; it is committed."""
    if key_text is None:
        return await caller.service.accept(await compose(caller, wanted, read_input, None))
    key = keys.hashed(caller, key_text, digest)
    found = await keys.earlier(caller, key)
    if found is not None:
        return found
    return await caller.service.accept(await compose(caller, wanted, read_input, key))


async def wait(
    request: Request, caller: Caller, wanted: CreateResponse, task_id: str, reply: Callable[[SeenResponse], Response]
) -> Response:
    """The reply for the finished task; a client that goes away before takes its task with it."""
    with caller.context.attendance.attending(task_id):
        seen = await _end_or_gone(request, caller, task_id)
    if seen is None:
        await _client_left(caller, wanted, task_id)
        return Response(status_code=_CLIENT_GONE)
    return reply(seen)


def stream(
    caller: Caller,
    wanted: CreateResponse,
    task_id: str,
    pages: AsyncIterator[Page],
    *,
    headers: dict[str, str],
    encode: Callable[[Event], str] = encode_sse,
) -> EventStream:
    """The reply that streams these pages of the task; as with `wait` if its client goes away."""
    return EventStream(
        pages,
        keep_alive_s=caller.context.keep_alive_s,
        headers=headers,
        attending=partial(caller.context.attendance.attending, task_id),
        on_gone=partial(_client_left, caller, wanted, task_id),
        encode=encode,
    )


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
