"""Webhooks over HTTP: where a response's end is told, what became of each message, and a client's own secret."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from retoma.core.webhook import MessageState, parse_url
from retoma.errors import InvalidRequest
from retoma.http.guard import Caller, caller_of
from retoma.http.query import Query
from retoma.http.reply import Json, page_reply
from retoma.http.wire import CreateResponse
from retoma.limits import PAGE_ITEMS_MAX
from retoma.runtime.webhook_address import is_private_in_writing
from retoma.store.rows import MessageRow
from retoma.transactions import outbox

router = APIRouter(tags=["webhooks"])
PAGE_WEBHOOKS_DEFAULT = 20
_MESSAGE_ID = re.compile(r"evt_[0-9a-f]{32}", re.ASCII)


def webhook_url(caller: Caller, wanted: CreateResponse) -> str:
    """Where the end of this response is told, empty for nowhere; raises InvalidRequest.

    What can be seen to be private is refused at once; what a name leads to is looked at when it is used.
    """
    if wanted.webhook is None:
        return ""
    url = parse_url(wanted.webhook.url)
    if is_private_in_writing(url.host) and not caller.context.settings.webhook_private:
        raise InvalidRequest(
            f"webhook.url leads to a private address ({url.host}); the service's setting webhook_private allows those",
            param="webhook",
        )
    return wanted.webhook.url


@router.get("/v1/webhooks", summary="List webhooks")
async def list_webhooks(request: Request) -> Response:
    """Newest first; `after` is the last id of the page before. What is over is listed for some days only."""
    caller = caller_of(request)
    query = Query(request, ("state", "after", "limit"))
    state = query.text("state", tuple(MessageState))
    limit = query.integer("limit", low=1, high=PAGE_ITEMS_MAX) or PAGE_WEBHOOKS_DEFAULT
    after = query.text("after")
    if after and not _MESSAGE_ID.fullmatch(after):
        raise InvalidRequest("after must be the id of a webhook", param="after")
    found = await caller.service.read(
        lambda tx: outbox.read_messages(tx, state=state, client_id=caller.sees, before=after, limit=limit + 1)
    )
    return page_reply(found, limit, _wire)


@router.get("/v1/webhooks/secret", summary="Retrieve the secret of one's webhooks")
async def retrieve_secret(request: Request) -> Response:
    """What the webhooks of the asking client are signed with; each client has another one."""
    caller = caller_of(request)
    Query(request)
    return Json({"object": "webhook.secret", "secret": caller.service.webhooks.secret_of(caller.client.id)})


def _wire(message: MessageRow) -> dict[str, Any]:
    return {
        "id": message.id,
        "object": "webhook",
        "task": message.task_id,
        "client_id": message.client_id,
        "url": _shown(message.url),
        "state": message.state,
        "tries": message.tries,
        "next_at_ms": message.next_at_ms,
        "last_answer": message.last_answer,
        "created_at_ms": message.created_at_ms,
        "updated_at_ms": message.updated_at_ms,
    }


def _shown(url: str) -> str:
    try:
        return parse_url(url).shown
    except InvalidRequest:  # accepted by another release
        return "–"
