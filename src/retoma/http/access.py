"""What is told of every request: one line in the log, its numbers, its span. Plain ASGI, the outermost layer.

Nothing here shows what a client has sent: of the path only the route's template, of ids only those that look like ours.
"""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retoma import logs
from retoma.runtime.service import Service
from retoma.tracing import Span

logger = logging.getLogger("retoma.http.access")
UNMATCHED = "unmatched"
"""The route of a request that was answered before, or without, finding one."""
CLIENT_GONE = 499
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_ASKED_ALL_THE_TIME = frozenset({"/healthz", "/readyz", "/metrics"})
# The dashboard asks every two seconds for as long as somebody looks.
_OF_DASHBOARD = "/dashboard/"
_OUR_ID = re.compile(r"(?:resp_|chatcmpl-)([0-9a-f]{32})")
_SERVER_ERROR = 500


def route_of(scope: Scope) -> str:
    """The template of the route that was found, never the path itself: that is the client's own text."""
    return getattr(scope.get("route"), "path", UNMATCHED)


@dataclass(slots=True)
class _Reply:
    """What was seen of a reply. `head_ns`: when it began."""

    began_ns: int
    head_ns: int = 0
    status: int = CLIENT_GONE
    streams: bool = False
    body_bytes: int = 0


class Access:
    """Watches each request to its last byte."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._tracing = service.telemetry.tracing
        self._metrics = service.telemetry.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Changes nothing on the way."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in _METHODS else "other"
        reply = _Reply(time.monotonic_ns())

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._begun(reply, message)
            elif message["type"] == "http.response.body":
                reply.body_bytes += len(message.get("body", b""))
            await send(message)

        logs.bind(instance=self._service.instance_id)
        with self._tracing.request(method, scope["headers"]) as span:
            try:
                await self._app(scope, receive, watched)
            finally:
                self._over(scope, method, reply, span)

    def _begun(self, reply: _Reply, message: Message) -> None:
        reply.head_ns, reply.status = time.monotonic_ns(), message["status"]
        reply.streams = any(
            name == b"content-type" and value.startswith(b"text/event-stream")
            for name, value in message.get("headers", [])
        )
        if reply.streams:
            self._metrics.open_streams.inc()

    def _over(self, scope: Scope, method: str, reply: _Reply, span: Span) -> None:
        ended_ns = time.monotonic_ns()
        route, status = route_of(scope), reply.status
        if reply.streams:
            self._metrics.open_streams.dec()
        self._metrics.requests.labels(method, route, status).inc()
        self._metrics.request_s.labels(method, route).observe(((reply.head_ns or ended_ns) - reply.began_ns) / 1e9)
        span.rename(f"{method} {route}")
        span.set("http.route", route)
        span.set("http.response.status_code", status)
        if status >= _SERVER_ERROR:
            span.fail(str(status))
        quiet = route in _ASKED_ALL_THE_TIME or route.startswith(_OF_DASHBOARD)
        level = logging.DEBUG if quiet else logging.INFO
        if logger.isEnabledFor(level):
            duration_ms = round((ended_ns - reply.began_ns) / 1e6, 1)
            fields = {**_about(scope), "method": method, "route": route, "status": status, "duration_ms": duration_ms}
            fields |= {"bytes": reply.body_bytes, "stream": reply.streams}
            logger.log(level, "request over", extra={logs.FIELDS: fields})


def _about(scope: Scope) -> dict[str, Any]:
    """Who asked, and about which response."""
    caller = scope.get("state", {}).get("caller")
    found = (_OUR_ID.fullmatch(str(value)) for value in scope.get("path_params", {}).values())
    ids = [f"resp_{one[1]}" for one in found if one]
    return {"client_id": caller.client.id if caller is not None else None, **({"task_id": ids[0]} if ids else {})}
