"""Pairing, and the list of clients with the means to revoke one."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Message

from retoma.core.pairing import is_name
from retoma.errors import InvalidRequest, TooLarge
from retoma.http.guard import caller_of, context_of
from retoma.http.query import Query
from retoma.http.reply import Json, page_reply
from retoma.http.wire import read_json
from retoma.limits import CLIENT_NAME_CHARS_MAX, PAGE_ITEMS_MAX, PAIRING_BYTES_MAX
from retoma.transactions.clients import ClientRow, is_client_id

router = APIRouter(tags=["clients"])
PAGE_CLIENTS_DEFAULT = 20
_TYPED_CHARS_MAX = 64


@router.post("/v1/pairings", summary="Exchange a one-time code for a token", status_code=201)
async def pair(request: Request) -> Response:
    """`{"code", "name"}`; needs no token. The token is in this answer and nowhere else, not even in the store.

    A code makes one client. Five wrong tries end every code that is open; too many within a minute are not looked at.
    """
    Query(request)
    body = await _read_small(request)
    for field in body:
        if field not in {"code", "name"}:
            raise InvalidRequest(f"{field[:100]}: there is no such field", param=field[:100])
    code, name = body.get("code"), body.get("name")
    if not isinstance(code, str) or not 0 < len(code) <= _TYPED_CHARS_MAX:
        raise InvalidRequest("code must be the text that `retoma clients pair` has printed", param="code")
    if name is not None and not is_name(name):
        raise InvalidRequest(f"name must be a text of 1 to {CLIENT_NAME_CHARS_MAX} printable characters", param="name")
    token, client = await context_of(request).service.clients.pair(code, name or "")
    shown = {"id": client.id, "name": client.name, "scopes": sorted(client.scopes)}
    return Json({"token": token, "client": shown}, 201)


@router.get("/v1/clients", summary="List clients")
async def list_clients(request: Request) -> Response:
    """Newest first; `after` is the last id of the page before. With `all=true` the revoked ones too."""
    caller = caller_of(request)
    query = Query(request, ("after", "limit", "all"))
    limit = query.integer("limit", low=1, high=PAGE_ITEMS_MAX) or PAGE_CLIENTS_DEFAULT
    after = query.text("after")
    if after and not is_client_id(after):
        raise InvalidRequest("after must be the id of a client", param="after")
    found = await caller.service.clients.page(after, limit + 1, revoked_too=query.flag("all"))
    return page_reply(found, limit, _wire)


@router.delete("/v1/clients/{client_id}", summary="Revoke a client")
async def revoke_client(client_id: str, request: Request) -> Response:
    """Its token is refused from now on, its open requests end, and its unfinished background tasks go on."""
    caller = caller_of(request)
    Query(request)
    await caller.service.clients.revoke(client_id)
    return Json({"id": client_id, "object": "client", "revoked": True})


async def _read_small(request: Request) -> dict[str, Any]:
    """The body of a request by nobody knows whom, for whom little is kept in memory."""
    taken = 0

    async def receive() -> Message:
        nonlocal taken
        message = await request.receive()
        taken += len(message.get("body", b""))
        if taken > PAIRING_BYTES_MAX:
            raise TooLarge(f"this request may have {PAIRING_BYTES_MAX} bytes at most")
        return message

    return await read_json(Request(request.scope, receive))


def _wire(row: ClientRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "object": "client",
        "name": row.name,
        "scopes": row.scope_list,
        "created_at": row.created_at_ms // 1000,
        "last_used_at": None if row.last_used_at_ms is None else row.last_used_at_ms // 1000,
        "revoked_at": None if row.revoked_at_ms is None else row.revoked_at_ms // 1000,
    }
