"""A stream of Server-Sent Events: the log after a number, then what is committed meanwhile, to the terminal event.

One loop for live, resumed and two-day-old streams. Each page of the log goes out in one write, so no event is ever cut
in two by us. Backpressure is the connection's own: the loop waits in `send`, and with it only this reader.

The loop watches the connection itself instead of letting the framework cancel it, because it must tell a client that
went away (its foreground task is cancelled) from a server that stops (nothing may be cancelled).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from retoma.errors import NotFound, Unavailable

Event = tuple[int, str, str]
Page = list[Event]
# A line and no more: an empty line behind it would end an event, and clients that remember the last id as the standard
# says (the `openai` package among them) would take it for one without data, and fail.
KEEP_ALIVE = b": keep-alive\n"


def encode_sse(event: Event) -> str:
    """One event as it is sent; its JSON has no line break (contract §3)."""
    seq, event_type, data = event
    return f"id: {seq}\nevent: {event_type}\ndata: {data}\n\n"


async def until_gone(receive: Receive) -> None:
    """Returns when the client has closed the connection. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def stop(*waiting: asyncio.Future[Any]) -> None:
    """Cancels what still runs and waits for its end."""
    for future in waiting:
        future.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def close(pages: AsyncIterator[Page]) -> None:
    """Ends the reading, if whoever reads has not come to its end."""
    if isinstance(pages, AsyncGenerator):
        await cast("AsyncGenerator[Page]", pages).aclose()


async def _next(pages: AsyncIterator[Page]) -> Page | None:
    """None at the end; also when the task is deleted or the service stops: the client finds out when it comes back."""
    try:
        return await anext(pages, None)
    except (NotFound, Unavailable):
        return None


class EventStream(Response):
    """A reply that streams `pages`, inside `attending`; `on_gone` is awaited if the client leaves before the end.

    `encode` makes of each event what is sent.
    """

    def __init__(
        self,
        pages: AsyncIterator[Page],
        *,
        keep_alive_s: float,
        headers: dict[str, str] | None = None,
        attending: Callable[[], AbstractContextManager[None]] = nullcontext,
        on_gone: Callable[[], Awaitable[None]] | None = None,
        encode: Callable[[Event], str] = encode_sse,
    ) -> None:
        self._pages = pages
        self._encode = encode
        self._keep_alive_s = keep_alive_s
        self._attending = attending
        self._on_gone = on_gone
        self.status_code = 200
        self.background = None
        # X-Accel-Buffering: a proxy that gathers events would undo the point of them.
        fixed = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        self.init_headers({**fixed, **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """Runs to the end of the log, of the connection or of the service."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        gone = asyncio.ensure_future(until_gone(receive))
        try:
            with self._attending():
                finished = await self._send_pages(send, gone)
        finally:
            await stop(gone)
        if finished:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif self._on_gone is not None:
            await self._on_gone()

    async def _send_pages(self, send: Send, gone: asyncio.Future[None]) -> bool:
        """True at the end of the log, False if the client went away before."""
        waiting = asyncio.ensure_future(_next(self._pages))
        try:
            while True:
                await asyncio.wait({waiting, gone}, timeout=self._keep_alive_s, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    return False
                if not waiting.done():
                    await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
                    continue
                page = waiting.result()
                if page is None:
                    return True
                body = "".join(map(self._encode, page)).encode()
                await send({"type": "http.response.body", "body": body, "more_body": True})
                waiting = asyncio.ensure_future(_next(self._pages))
        finally:
            await stop(waiting)
            await close(self._pages)
