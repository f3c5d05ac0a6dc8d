"""What is checked before a request reaches a route: where it believes to be, and how large it is. Plain ASGI."""

from __future__ import annotations

import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retoma.errors import InsufficientScope, InvalidRequest, TooLarge
from retoma.limits import REQUEST_BYTES_MAX

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
# A body that is too large is read and thrown away up to here, so that clients that send first and listen then get the
# answer instead of a broken connection.
DRAINED_BYTES_MAX = 4 * REQUEST_BYTES_MAX
_AUTHORITY = re.compile(r"([\w.-]+|\[[0-9a-fA-F:.]+\])(?::\d{1,5})?", re.ASCII)
_ORIGIN = re.compile(r"https?://(.+)", re.IGNORECASE)


def is_loopback(host: str) -> bool:
    """An address that only programs of this machine can reach."""
    return host in {"localhost", "::1", "[::1]"} or host.startswith("127.")


class HostCheck:
    """Refuses pages of other sites: a foreign name that leads to this machine (DNS rebinding), and a foreign Origin.

    Bound to the loopback address, only its names are taken for Host. Elsewhere any name may be right, so there an
    Origin must be that of the request's own Host.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        own = host if host.startswith("[") or ":" not in host else f"[{host}]"
        self._names = LOOPBACK | {own} if is_loopback(host) else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises InvalidRequest for the Host and InsufficientScope for the Origin."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            hosts = headers.getlist("host")
            name = _host_name(hosts[0]) if len(hosts) == 1 else None
            if name is None or (self._names is not None and name not in self._names):
                raise InvalidRequest("the Host header names another server than this one", param="Host")
            for origin in headers.getlist("origin"):
                self._check_origin(origin, name)
        await self._app(scope, receive, send)

    def _check_origin(self, origin: str, own_name: str) -> None:
        found = _ORIGIN.fullmatch(origin)
        name = _host_name(found[1]) if found else None
        if name is None or name not in (self._names or {own_name}):
            raise InsufficientScope("pages of other sites may not use this server", param="Origin")


def _host_name(authority: str) -> str | None:
    found = _AUTHORITY.fullmatch(authority)
    return found[1].lower() if found else None


class BodyLimit:
    """Lets no more than `REQUEST_BYTES_MAX` of a body through, whether its length was announced or not."""

    def __init__(self, app: ASGIApp, bytes_max: int = REQUEST_BYTES_MAX) -> None:
        self._app = app
        self._bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises TooLarge, from here or from where the body is read."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        announced = int(headers.get("content-length") or 0)
        if announced > self._bytes_max:
            if announced <= DRAINED_BYTES_MAX and "expect" not in headers:
                await _drain(receive, 0)
            raise self._refusal()
        taken = 0

        async def receive_within_limit() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._bytes_max:
                if message.get("more_body"):
                    await _drain(receive, taken)
                raise self._refusal()
            return message

        await self._app(scope, receive_within_limit, send)

    def _refusal(self) -> TooLarge:
        return TooLarge(f"a request body may have {self._bytes_max} bytes at most; nothing was accepted")


async def _drain(receive: Receive, taken: int) -> None:
    while taken <= DRAINED_BYTES_MAX:
        message = await receive()
        taken += len(message.get("body", b""))
        if not message.get("more_body"):
            return
