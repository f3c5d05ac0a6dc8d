"""Who asks, and whether they may: the bearer token, and one table of the scope that each route needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

from fastapi import Request

from retoma.errors import InsufficientScope, InvalidToken
from retoma.http.attendance import Attendance
from retoma.runtime.service import Service
from retoma.settings import Settings
from retoma.transactions.clients import Client

ADMIN = "admin"
TOKEN_CHARS_MAX = 512

# Route → the scope it needs; None: open to everybody. `admin` may do everything.
SCOPES: Mapping[tuple[str, str], str | None] = MappingProxyType(
    {
        ("POST", "/v1/responses"): "responses:write",
        ("GET", "/v1/responses/{response_id}"): "responses:read",
        ("DELETE", "/v1/responses/{response_id}"): "responses:write",
        ("POST", "/v1/responses/{response_id}/cancel"): "responses:write",
        ("GET", "/v1/responses/{response_id}/input_items"): "responses:read",
        ("GET", "/v1/models"): "models:read",
        ("GET", "/v1/models/{model:path}"): "models:read",
        ("POST", "/v1/models"): "models:write",
        ("DELETE", "/v1/models/{model:path}"): "models:write",
        ("GET", "/v1/service"): ADMIN,
        ("PATCH", "/v1/service"): ADMIN,
        ("GET", "/v1/tasks"): "tasks:read",
        ("GET", "/v1/tasks/{task_id}"): "tasks:read",
        ("GET", "/v1/tasks/{task_id}/events"): "tasks:read",
        ("GET", "/healthz"): None,
        ("GET", "/readyz"): None,
        ("GET", "/docs"): None,
    }
)


@dataclass(frozen=True, slots=True)
class Context:
    """What every route works with; one for the whole application, as `app.state.context`."""

    service: Service
    settings: Settings
    attendance: Attendance
    keep_alive_s: float


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated request's client, and what it works with."""

    context: Context
    client: Client

    @property
    def service(self) -> Service:
        """The instance."""
        return self.context.service

    @property
    def sees(self) -> str:
        """The client whose tasks are seen; empty, as the transactions have it, for all of them."""
        return "" if ADMIN in self.client.scopes else self.client.id


def context_of(request: Request) -> Context:
    """What this application works with."""
    return cast("Context", request.app.state.context)


def caller_of(request: Request) -> Caller:
    """Who `authorize` has found."""
    return cast("Caller", request.state.caller)


async def authorize(request: Request) -> None:
    """Runs before every route, and before a body is read. Raises InvalidToken or InsufficientScope."""
    scope = SCOPES[request.method, request.scope["route"].path]
    if scope is None:
        return
    context = context_of(request)
    client = await context.service.authenticate(_bearer_token(request))
    if client is None:
        raise InvalidToken("the bearer token is unknown or revoked")
    if scope not in client.scopes and ADMIN not in client.scopes:
        raise InsufficientScope(f"this request needs the scope {scope}, which the token does not carry")
    request.state.caller = Caller(context, client)


def _bearer_token(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > TOKEN_CHARS_MAX:
        raise InvalidToken("send the token as `Authorization: Bearer TOKEN`")
    return token
