"""How an error is answered: one envelope, one place where exceptions become replies, one last net."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retoma import logs
from retoma.errors import IllegalTransition, InvalidRequest, NotFound, RequestError, RetomaError, Unavailable
from retoma.http.access import route_of
from retoma.http.reply import Json
from retoma.ids import Ids

logger = logging.getLogger("retoma.http")

TYPES: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        409: "conflict_error",
        412: "conflict_error",
        429: "rate_limit_error",
    }
)
# How long to wait before the same request may succeed, in seconds, by code.
RETRY_AFTER_S: Mapping[str, int] = MappingProxyType(
    {"queue_full": 2, "rate_limited": 60, "store_unavailable": 1, "shutting_down": 2, "store_full": 30}
)
INTERNAL = RetomaError("something went wrong inside Retoma; its log says more under this request id")


def error_type(status: int) -> str:
    """The `type` of OpenAI's errors for a status."""
    return TYPES.get(status, "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error")


def error_reply(
    error: RetomaError, request_id: str, *, status: int = 0, headers: Mapping[str, str] | None = None
) -> Json:
    """The envelope for this error. `status` replaces the one of its class."""
    status = status or error.status
    wire = {
        "message": error.message,
        "type": error_type(status),
        "code": error.code,
        "param": error.param,
        "request_id": request_id,
    }
    extra = dict(headers or {})
    if status == HTTPStatus.UNAUTHORIZED:
        extra["WWW-Authenticate"] = "Bearer"
    if error.code in RETRY_AFTER_S:
        extra["Retry-After"] = str(RETRY_AFTER_S[error.code])
    return Json({"error": wire}, status, extra)


def reply_for(error: Exception, request_id: str, place: str) -> Json:
    """The reply for anything that was raised. What a client can't mend is logged, and told only as `internal`.

    The log line names where it happened and never what the exception says: that may hold a prompt or a token.
    """
    if isinstance(error, RequestError | Unavailable | IllegalTransition):
        return error_reply(error, request_id)
    frames = traceback.extract_tb(error.__traceback__)
    way = " > ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames[-6:])
    logger.error("request %s (%s) ended with %s at %s", request_id, place, type(error).__name__, way)
    return error_reply(INTERNAL, request_id)


def on_http_exception(request: Request, error: Exception) -> Json:
    """What the router says itself: no such path, or not this method."""
    assert isinstance(error, HTTPException)
    request_id = request.state.request_id
    if error.status_code == HTTPStatus.NOT_FOUND:
        return error_reply(NotFound(f"there is nothing at {request.url.path}"), request_id)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        refusal = InvalidRequest(f"{request.method} is not possible at {request.url.path}")
    else:
        refusal = InvalidRequest(str(error.detail))
    return error_reply(refusal, request_id, status=error.status_code, headers=error.headers)


def on_validation_error(request: Request, error: Exception) -> Json:
    """FastAPI's own validation; no route relies on it, but it must not answer in a shape of its own."""
    assert isinstance(error, RequestValidationError)
    first: dict[str, Any] = error.errors()[0]
    param = ".".join(str(part) for part in first["loc"][1:]) or None
    return error_reply(InvalidRequest(first["msg"], param=param), request.state.request_id)


class Net:
    """The outermost layer: gives every request its id and answers everything that was raised below."""

    def __init__(self, app: ASGIApp, ids: Ids) -> None:
        self._app = app
        self._ids = ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Once a reply has begun, an error can only break it off: the client sees that the end is missing."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = self._ids.new("req")
        scope.setdefault("state", {})["request_id"] = request_id
        logs.bind(request_id=request_id)
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", []), (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            return  # it went away while it was still sending; there is nobody to answer
        except Exception as error:  # noqa: BLE001 - the last net
            reply = reply_for(error, request_id, f"{scope['method']} {route_of(scope)}")
            if not started:
                await reply(scope, receive, send_with_id)
