"""One try of a webhook over HTTP: to a checked address, within a time, and with nothing carried over to the next.

The name is resolved here, every address that it has is checked, and the connection goes to one of exactly those: a name
that changes its address in between (DNS rebinding) finds nobody who asks again. The name stays in the Host header and
in the TLS handshake, so the certificate is the name's. There are no cookies, no proxies and no redirects, and no
connection is used twice: one that is kept to an address would be taken for another name at the same address.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from typing import Any

import httpx

import retoma
from retoma.clock import Clock
from retoma.core.webhook import Answer, Url, parse_url
from retoma.errors import InvalidRequest
from retoma.limits import WEBHOOK_ANSWER_BYTES_MAX, WEBHOOK_TRIES_MAX
from retoma.runtime.webhook_address import is_global

_SENDING = "http11.send_request_headers.started"
_CONNECT_S_MAX = 5.0
# How long the body of an answer may take whose status is known.
_DROP_S = 1.0
_HEADERS = {"Content-Type": "application/json", "User-Agent": f"Retoma/{retoma.__version__}"}
_WITH_RETRY_AFTER = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}


class _NotSent(Exception):
    """Nothing of the message can have left this machine; the text says why."""


@dataclass(slots=True)
class _Progress:
    """How far a try has come, for when its time runs out."""

    sending: bool = False
    answer: Answer | None = None

    async def note(self, event: str, _: Mapping[str, Any]) -> None:
        """What httpx tells of a connection."""
        self.sending = self.sending or event == _SENDING


class WebhookClient:
    """Sends messages; used on one event loop."""

    def __init__(self, clock: Clock, *, timeout_s: float, allow_private: bool) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._allow_private = allow_private
        # Of its own, because a lookup can't be interrupted: a dead name server must not hold up the service's files.
        self._resolvers = ThreadPoolExecutor(WEBHOOK_TRIES_MAX, "retoma-resolve")
        self._tls: ssl.SSLContext | None = None

    async def post(self, url: str, headers: Mapping[str, str], body: str) -> Answer:
        """Sends the body once; what came of it. Takes the client's time at most and raises nothing of the network's."""
        progress = _Progress()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._post(parse_url(url), {**_HEADERS, **headers}, body.encode(), progress)
        except TimeoutError:
            if progress.answer is not None:
                return progress.answer
            if progress.sending:
                return Answer(f"no answer within {self._timeout_s:g} s")
            return Answer(f"not sent: no connection within {self._timeout_s:g} s", sent=False)
        except (_NotSent, InvalidRequest, httpx.InvalidURL) as why:
            return Answer(f"not sent: {why}", sent=False)
        except httpx.TransportError as error:
            return progress.answer or Answer(_reason(error), sent=progress.sending)

    def close(self) -> None:
        """Lookups that are under way are left to themselves."""
        self._resolvers.shutdown(wait=False, cancel_futures=True)

    async def _post(self, url: Url, headers: Mapping[str, str], body: bytes, progress: _Progress) -> Answer:
        addresses = await self._resolve(url)
        if self._tls is None:
            self._tls = await asyncio.to_thread(httpx.create_ssl_context, trust_env=False)
        extensions = {
            "timeout": {"connect": min(_CONNECT_S_MAX, self._timeout_s / len(addresses))},
            "sni_hostname": url.host,
            "trace": progress.note,
        }
        failed = ""
        for address in addresses:
            target = httpx.URL(
                scheme=url.scheme, host=address, port=url.port, raw_path=f"{url.path}{url.query}".encode()
            )
            request = httpx.Request(
                "POST", target, headers={"Host": url.place, **headers}, content=body, extensions=extensions
            )
            try:
                return await self._exchange(self._tls, request, progress)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failed = _reason(error)
        raise _NotSent(failed)

    async def _resolve(self, url: Url) -> list[str]:
        """The addresses of the host, each once and each allowed; raises _NotSent."""
        look_up = partial(socket.getaddrinfo, url.host, url.port, type=socket.SOCK_STREAM)
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._resolvers, look_up)
        except (OSError, UnicodeError):
            raise _NotSent(f"the host {url.host} can't be resolved") from None
        addresses = list(dict.fromkeys(str(place[0]) for *_, place in found))
        if not self._allow_private and not all(map(is_global, addresses)):
            raise _NotSent("the host has a private address, which the setting webhook_private would allow")
        return addresses

    async def _exchange(self, tls: ssl.SSLContext, request: httpx.Request, progress: _Progress) -> Answer:
        async with httpx.AsyncHTTPTransport(verify=tls, trust_env=False) as transport:
            response = await transport.handle_async_request(request)
            try:
                progress.answer = self._answer(response)
                await _drop(response)
            finally:
                await response.aclose()
        return progress.answer

    def _answer(self, response: httpx.Response) -> Answer:
        retry_after_ms = None
        if response.status_code in _WITH_RETRY_AFTER:
            retry_after_ms = _retry_after_ms(response.headers.get("retry-after", ""), self._clock.wall_ms())
        return Answer(f"HTTP {response.status_code}", response.status_code, retry_after_ms=retry_after_ms)


async def _drop(response: httpx.Response) -> None:
    """Takes in the rest of the answer, so that its sender isn't cut off, but not for long and not much of it."""
    assert isinstance(response.stream, httpx.AsyncByteStream)
    seen = 0
    with suppress(TimeoutError, httpx.TransportError):
        async with asyncio.timeout(_DROP_S):
            async for piece in response.stream:
                seen += len(piece)
                if seen > WEBHOOK_ANSWER_BYTES_MAX:
                    return


def _reason(error: httpx.TransportError) -> str:
    """In words of our own: what a library says may quote the receiver."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"no TLS connection: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return "no TLS connection"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return "nobody takes the connection"
    return "the connection broke off before an answer"


def _retry_after_ms(header: str, now_ms: int) -> int | None:
    """What a Retry-After header asks for, in seconds or as a date; None if it asks for nothing that can be read."""
    if header.isascii() and header.isdecimal():
        return int(header[:9]) * 1000
    try:
        until = parsedate_to_datetime(header)
    except (TypeError, ValueError):
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0, round(until.timestamp() * 1000) - now_ms)
