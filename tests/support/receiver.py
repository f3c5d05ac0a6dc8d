"""A receiver of webhooks: a real HTTP server in threads that records every delivery as it arrives, whatever it answers.

with Receiver(in_turn(answer(500), answer(200))) as receiver:
    api.create(webhook={"url": receiver.url})
    wait_for(lambda: len(receiver.deliveries) == 2, "the second try")
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from openai import OpenAI
from openai.types.webhooks import UnwrapWebhookEvent
from standardwebhooks import Webhook

from tests.support.waiting import BOUND_S

HANG_S = 60.0


@dataclass(frozen=True)
class Delivery:
    """One request, as it came over the line."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at_ns: int

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def verify(self, secret: str) -> UnwrapWebhookEvent:
        """What the official client makes of it; fails if the signature isn't this client's. Asked two packages."""
        assert Webhook(secret).verify(self.body, self.headers)["id"] == self.id
        with OpenAI(api_key="x", webhook_secret=secret) as client:
            return client.webhooks.unwrap(self.body, self.headers)


@dataclass
class Line:
    """The open connection of one delivery, for whoever answers."""

    handler: BaseHTTPRequestHandler
    free: threading.Event
    number: int
    """Which delivery this is, from 1 on."""
    sent_bytes: list[int]

    def send(self, data: bytes) -> None:
        self.handler.wfile.write(data)
        self.handler.wfile.flush()
        self.sent_bytes[0] += len(data)

    def hang(self, seconds: float = HANG_S) -> None:
        """Until the receiver is freed or the time is over."""
        self.free.wait(seconds)


Behaviour = Callable[[Line], None]


def answer(status: int, body: bytes = b"", **headers: str) -> Behaviour:
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return lambda line: line.send("\r\n".join([*lines, "", ""]).encode() + body)


def hang_up(_: Line) -> None:
    """Closes the connection without an answer."""


def nonsense(line: Line) -> None:
    line.send(b"I am no HTTP server and your secret is safe\r\n\r\n")


def hang_then(behaviour: Behaviour) -> Behaviour:
    """Answers once the receiver is freed."""

    def act(line: Line) -> None:
        line.hang()
        behaviour(line)

    return act


def drip_headers(line: Line) -> None:
    """A header that never ends, byte by byte."""
    line.send(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not line.free.wait(0.02):
        line.send(b"x")


def drip_body(line: Line) -> None:
    """An answer at once, and a body that never ends."""
    line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while not line.free.wait(0.02):
        line.send(b"x")


def endless_body(line: Line) -> None:
    """An answer at once, and a body as fast as it is taken."""
    line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000000\r\n\r\n")
    while not line.free.is_set():
        line.send(b"x" * 65_536)


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """One after the other; the last one for all that follow."""
    return lambda line: behaviours[min(line.number, len(behaviours)) - 1](line)


@dataclass
class Receiver:
    """`deliveries` holds what came, in order. It may be stopped and started again at the same address."""

    behaviour: Behaviour = field(default_factory=lambda: answer(200))
    host: str = "127.0.0.1"
    port: int = 0
    certificate: Path | None = None
    """With its key; then it speaks TLS."""

    def __post_init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.sent_bytes = [0]
        self.server_names: list[str] = []
        """What senders called it in the TLS handshake."""
        self.free = threading.Event()
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/hook"

    def start(self) -> Self:
        self._server = _Server((self.host, self.port), self._handler())
        if self.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)
            context.sni_callback = lambda _socket, name, _context: self.server_names.append(name or "")
            # The handshake belongs to the thread of the connection.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Nobody listens any more; what is open is freed."""
        assert self._server is not None
        assert self._thread is not None
        self.free.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(BOUND_S)
        self._server = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self.stop()

    def of(self, message_id: str) -> list[Delivery]:
        return [delivery for delivery in list(self.deliveries) if delivery.id == message_id]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                receiver._receive(self)

            def do_GET(self) -> None:
                receiver._receive(self)

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        return Handler

    def _receive(self, handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        delivery = Delivery(handler.command, handler.path, headers, body, time.monotonic_ns())
        with self._lock:
            self.deliveries.append(delivery)
            number = len(self.deliveries)
        # The sender may hang up at any moment.
        with contextlib.suppress(OSError):
            self.behaviour(Line(handler, self.free, number, self.sent_bytes))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A sender that hangs up in the middle of its request is no error of the test's."""

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        super().server_bind()
