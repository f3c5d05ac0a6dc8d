"""Who asks, and whether they may: the bearer token, and one table of the scope that each route needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

from fastapi import Request

from retoma.core.scopes import ADMIN
from retoma.errors import InsufficientScope, InvalidToken
from retoma.http.attendance import Attendance
from retoma.http.sessions import UNKNOWN_CLIENT
from retoma.runtime.service import Service
from retoma.settings import Settings
from retoma.transactions.clients import LOCAL_CLIENT, Client

TOKEN_CHARS_MAX = 512

# Route → the scope it needs; None: open to everybody. `admin` may do everything.
SCOPES: Mapping[tuple[str, str], str | None] = MappingProxyType(
    {
        ("POST", "/v1/responses"): "responses:write",
        ("GET", "/v1/responses/{response_id}"): "responses:read",
        ("DELETE", "/v1/responses/{response_id}"): "responses:write",
        ("POST", "/v1/responses/{response_id}/cancel"): "responses:write",
        ("GET", "/v1/responses/{response_id}/input_items"): "responses:read",
        ("POST", "/v1/chat/completions"): "responses:write",
        ("GET", "/v1/chat/completions/{completion_id}"): "responses:read",
        ("DELETE", "/v1/chat/completions/{completion_id}"): "responses:write",
        ("GET", "/v1/models"): "models:read",
        ("GET", "/v1/models/{model:path}"): "models:read",
        ("POST", "/v1/models"): "models:write",
        ("DELETE", "/v1/models/{model:path}"): "models:write",
        ("POST", "/v1/pairings"): None,
        ("GET", "/v1/clients"): ADMIN,
        ("DELETE", "/v1/clients/{client_id}"): ADMIN,
        ("GET", "/v1/service"): ADMIN,
        ("PATCH", "/v1/service"): ADMIN,
        ("GET", "/v1/tasks"): "tasks:read",
        ("GET", "/v1/tasks/{task_id}"): "tasks:read",
        ("GET", "/v1/tasks/{task_id}/events"): "tasks:read",
        ("GET", "/v1/webhooks"): "tasks:read",
        ("GET", "/v1/webhooks/secret"): "responses:read",
        ("GET", "/healthz"): None,
        ("GET", "/readyz"): None,
        ("GET", "/metrics"): None,
        ("GET", "/docs"): None,
        ("GET", "/"): None,
        ("GET", "/dashboard/dashboard.css"): None,
        ("GET", "/dashboard/dashboard.js"): None,
        ("GET", "/dashboard/overview"): ADMIN,
        ("GET", "/dashboard/tasks"): ADMIN,
        ("GET", "/dashboard/tasks/{task_id}"): ADMIN,
        ("GET", "/dashboard/tasks/{task_id}/messages"): ADMIN,
        ("GET", "/dashboard/tasks/{task_id}/events"): ADMIN,
        ("GET", "/dashboard/models"): ADMIN,
        ("GET", "/dashboard/clients"): ADMIN,
        ("GET", "/dashboard/store"): ADMIN,
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
    client = await context.service.clients.authenticate(_bearer_token(request))
    if client is None:
        raise InvalidToken(UNKNOWN_CLIENT)
    if scope not in client.scopes and ADMIN not in client.scopes:
        raise InsufficientScope(f"this request needs the scope {scope}, which the token does not carry")
    if client.id != LOCAL_CLIENT.id:
        request.state.session.belongs_to(client.id, context.service.clients)
    request.state.caller = Caller(context, client)


def _bearer_token(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > TOKEN_CHARS_MAX:
        raise InvalidToken("send the token as `Authorization: Bearer TOKEN`")
    return token
