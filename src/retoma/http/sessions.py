"""Open requests, each tied to the client that has sent it: a request ends when its client is revoked.

A route is told in the words it knows already, that its client has gone away: `receive` says `http.disconnect`. Streams
and waiting requests listen for that; a short request never asks and simply ends. What a route says after it was told is
kept back. A reply that has begun is broken off, as a line would be, so that nobody takes the part for the whole; one
that hasn't is the 401 that the next request would get as well.

Each request is authenticated before it is tied, so one that is revoked in between is found by the next look of
runtime/clients.py. Rejected: cancelling the route, which could be in the middle of a commit.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retoma.errors import InvalidToken
from retoma.http.errors import error_reply
from retoma.http.stream import stop
from retoma.runtime.clients import Clients

UNKNOWN_CLIENT = "the bearer token is unknown or revoked"
_GONE: Message = {"type": "http.disconnect"}


class Session:
    """One request under way; as `request.state.session`."""

    def __init__(self, receive: Receive, until_end: ExitStack) -> None:
        self._receive = receive
        self._until_end = until_end
        self._revoked: asyncio.Future[None] | None = None
        self.told = False
        """The route knows that it has to end."""

    def belongs_to(self, client_id: str, clients: Clients) -> None:
        """From now on the request ends with its client."""
        self._revoked = asyncio.get_running_loop().create_future()
        self._until_end.enter_context(clients.attending(client_id, self._revoke))

    def _revoke(self) -> None:
        if self._revoked is not None and not self._revoked.done():
            self._revoked.set_result(None)

    async def receive(self) -> Message:
        """The next message from the client, or that it is gone."""
        if self._revoked is None:
            return await self._receive()
        coming = asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait({coming, self._revoked}, return_when=asyncio.FIRST_COMPLETED)
            if not self._revoked.done():
                return coming.result()
        finally:
            await stop(coming)
        self.told = True
        return _GONE


class Sessions:
    """Gives every request its session. Plain ASGI; the innermost layer, right before the routes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers for a route that was told to end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_unless_told(message: Message) -> None:
            nonlocal started
            if not session.told:
                started = True
                await send(message)

        with ExitStack() as until_end:
            session = Session(receive, until_end)
            scope["state"]["session"] = session
            try:
                await self._app(scope, session.receive, send_unless_told)
            except ClientDisconnect:  # told while it was reading the body
                if not session.told:
                    raise
        if session.told and not started:
            reply = error_reply(
                InvalidToken(UNKNOWN_CLIENT), scope["state"]["request_id"], headers={"Connection": "close"}
            )
            await reply(scope, receive, send)
