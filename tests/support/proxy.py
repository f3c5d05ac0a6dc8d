"""A line to PostgreSQL that can be cut, stopped and slowed at chosen places. It reads the protocol's frames.

    with Proxy(url) as line:
        line.cut_at_commit("after")        # the next COMMIT is carried out, and its answer never arrives
        …
        assert line.commits_cut == 1

Every fault is counted when it has happened. Two threads stand by each connection, one a direction.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

_CHUNK = 65536
_WRITES = b"READ WRITE"
_COMMIT_TAG = b"C\x00\x00\x00\x0bCOMMIT\x00"
When = Literal["before", "after"]


class Proxy:
    """Listens on the loopback address; `url` is the store's URL by way of it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        host, port = query.pop("host", parts.hostname or "127.0.0.1"), parts.port or 5432
        self._upstream: str | tuple[str, int] = (
            f"{unquote(host)}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
        )
        self._listening = socket.create_server(("127.0.0.1", 0))
        user = parts.netloc.rpartition("@")[0]
        own = self._listening.getsockname()[1]
        query["sslmode"] = "disable"
        self.url = f"{parts.scheme}://{user}@127.0.0.1:{own}{parts.path}?{urlencode(query, quote_via=quote)}"
        self.commits_cut = 0
        self.lines_cut = 0
        self.bytes_swallowed = 0
        self.bytes_held = 0
        self._armed: When | None = None
        self._lock = threading.Lock()
        self._lines: set[_Line] = set()
        self._flowing = threading.Event()
        self._flowing.set()
        self._swallowing = False
        self._ended = False
        threading.Thread(target=self._accept, daemon=True).start()

    # Faults

    def cut_all(self) -> int:
        """Cuts every connection; how many there were."""
        with self._lock:
            lines, self._lines = list(self._lines), set()
        for line in lines:
            line.cut()
        self.lines_cut += len(lines)
        return len(lines)

    def cut_at_commit(self, when: When) -> None:
        """Cuts the next writing connection right before its COMMIT is passed on, or right before the answer is."""
        self._armed = when

    def swallow(self) -> None:
        """From now on nothing arrives, in neither direction, and nobody is told; new connections are taken and mute."""
        self._swallowing = True

    def hold(self) -> None:
        """From now on everything is kept back, until `release` lets it arrive late."""
        self._flowing.clear()

    def release(self) -> None:
        """Lets everything flow again; connections that have lost something are cut, as by a network that is back."""
        if self._swallowing:
            self._swallowing = False
            self.cut_all()
        self._flowing.set()

    # The line's questions

    def may_pass(self, data: bytes) -> bool:
        """Waits while the line is held; False for what is swallowed."""
        if not self._flowing.is_set():
            self.bytes_held += len(data)
            self._flowing.wait()
        if self._swallowing:
            self.bytes_swallowed += len(data)
            return False
        return True

    def take_armed(self) -> When | None:
        """What to do at this COMMIT; once."""
        with self._lock:
            armed, self._armed = self._armed, None
        return armed

    def note_commit_cut(self) -> None:
        """A connection was cut at a COMMIT."""
        with self._lock:
            self.commits_cut += 1

    def _accept(self) -> None:
        while not self._ended:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = self._connect()
            except OSError:  # the server is away: so is the line
                client.close()
                continue
            line = _Line(self, client, server)
            with self._lock:
                self._lines = {one for one in self._lines if not one.is_cut} | {line}
            line.begin()

    def _connect(self) -> socket.socket:
        if isinstance(self._upstream, str):
            made = socket.socket(socket.AF_UNIX)
            made.connect(str(Path(self._upstream)))
            return made
        return socket.create_connection(self._upstream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._ended = True
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._swallowing = False
        self._flowing.set()
        self.cut_all()


class _Line:
    """One connection. It knows the texts of prepared statements, and so sees a COMMIT of a writing transaction."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._texts: dict[bytes, bytes] = {}
        self._writing = False
        self._answers_lost = False
        self.is_cut = False

    def begin(self) -> None:
        threading.Thread(target=self._ask, daemon=True).start()
        threading.Thread(target=self._answer, daemon=True).start()

    def cut(self) -> None:
        self.is_cut = True
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _ask(self) -> None:
        """From the client to the server, message by message."""
        waiting, started = b"", False
        with contextlib.suppress(OSError):
            while data := self._client.recv(_CHUNK):
                waiting += data
                while (message := _first_message(waiting, typed=started)) is not None:
                    started, waiting = True, waiting[len(message) :]
                    if not self._passed_on(message):
                        return
        self.cut()

    def _passed_on(self, message: bytes) -> bool:
        if self._is_commit(message):
            armed = self._proxy.take_armed()
            if armed == "before":
                self.cut()
                self._proxy.note_commit_cut()
                return False
            self._answers_lost = armed == "after"
        if self._proxy.may_pass(message):
            self._server.sendall(message)
        return True

    def _is_commit(self, message: bytes) -> bool:
        """Notes what the message says of statements; true for the COMMIT of a transaction that may have written."""
        text = b""
        match message[:1]:
            case b"Q":
                text = message[5:-1]
            case b"P":
                name, text_of_name, _ = message[5:].split(b"\0", 2)
                self._texts[name] = text_of_name
            case b"B":
                _, name, _ = message[5:].split(b"\0", 2)
                text = self._texts.get(name, b"")
            case _:
                pass
        if text.startswith(b"BEGIN"):
            self._writing = _WRITES in text
        if text != b"COMMIT" or not self._writing:
            return False
        self._writing = False
        return True

    def _answer(self) -> None:
        """From the server to the client, as it comes."""
        heard = b""
        with contextlib.suppress(OSError):
            while data := self._server.recv(_CHUNK):
                if self._answers_lost:
                    heard += data
                    if _COMMIT_TAG in heard:  # it is committed, and nobody will ever say so
                        self.cut()
                        self._proxy.note_commit_cut()
                        return
                elif self._proxy.may_pass(data):
                    self._client.sendall(data)
        self.cut()


def _first_message(waiting: bytes, *, typed: bool) -> bytes | None:
    """The first whole message; before the start of a session messages have no type."""
    head = 1 if typed else 0
    if len(waiting) < head + 4:
        return None
    (length,) = struct.unpack("!I", waiting[head : head + 4])
    return waiting[: head + length] if len(waiting) >= head + length else None
