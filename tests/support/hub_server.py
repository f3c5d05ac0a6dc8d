"""A model hub on the loopback address: the few endpoints that a download asks, and the faults that one may meet."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import unquote

COMMIT = "c0ffee" + "0" * 34
_PIECE = 64 * 1024


class Asked(NamedTuple):
    """One request that came in."""

    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class Hub:
    """What there is (by repository and file), how it answers, and what it was asked."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict[str, dict[str, bytes]])
    refused: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    """Repositories that are answered with this status and X-Error-Code."""
    token: str | None = None
    """Without it nothing is shown."""
    digests: dict[str, str] = field(default_factory=dict[str, str])
    """What is announced for a file instead of its sha256; empty: nothing."""
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    breaks_off_after: list[int] = field(default_factory=list[int])
    """Each answer with content breaks off after so many bytes, the first one first; then they are whole."""
    stands_still_after: int | None = None
    """The next answer with content stops there until `go_on`."""
    go_on: threading.Event = field(default_factory=threading.Event)
    standing: threading.Event = field(default_factory=threading.Event)
    honours_range: bool = True
    elsewhere: str = ""
    """The address of the host that files are redirected to; empty: none."""
    asked: list[Asked] = field(default_factory=list[Asked])
    bytes_sent: int = 0
    url: str = ""

    def gets(self) -> list[Asked]:
        """The requests for content."""
        return [one for one in self.asked if one.method == "GET" and not one.path.startswith("/api/")]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(self.path.partition("?")[0])
        hub = self.hub
        hub.asked.append(Asked(self.command, path, self.headers.get("Range"), self.headers.get("Authorization")))
        parts = path.strip("/").split("/")
        if parts[0] == "elsewhere":
            return self._send_file("/".join(parts[1:3]), "/".join(parts[3:]), {})
        repo = "/".join(parts[2:4]) if parts[0] == "api" else "/".join(parts[:2])
        revision = parts[5] if parts[0] == "api" and len(parts) > 5 else parts[3] if len(parts) > 3 else "main"
        refusal = self._refusal(repo, revision if parts[0] != "api" or len(parts) > 5 else "main")
        if refusal:
            return self._send_error(*refusal)
        return self._send_list(repo) if parts[0] == "api" else self._send_resolved(repo, "/".join(parts[4:]))

    def _refusal(self, repo: str, revision: str) -> tuple[int, str] | None:
        hub = self.hub
        if repo in hub.refused:
            return hub.refused[repo]
        if hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return 401, ""
        if repo not in hub.files:
            return 404, "RepoNotFound"
        if revision not in {"main", "v1", COMMIT}:
            return 404, "RevisionNotFound"
        return None

    def _send_error(self, status: int, code: str) -> None:
        self._send(status, {"X-Error-Code": code, "X-Error-Message": "no"}, b"no")

    def _send_list(self, repo: str) -> None:
        siblings = [{"rfilename": name, "size": len(content)} for name, content in self.hub.files[repo].items()]
        body = json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode()
        self._send(200, {"Content-Type": "application/json"}, body)

    def _send_resolved(self, repo: str, name: str) -> None:
        hub = self.hub
        content = hub.files[repo].get(name)
        if content is None:
            return self._send_error(404, "EntryNotFound")
        digest = hub.digests.get(name, hashlib.sha256(content).hexdigest())
        facts = {"X-Repo-Commit": COMMIT, "ETag": f'"{digest}"'} if digest else {"X-Repo-Commit": COMMIT, "ETag": '"x"'}
        size = hub.sizes.get(name, len(content))
        if hub.elsewhere:
            facts |= {"X-Linked-ETag": f'"{digest}"', "X-Linked-Size": str(size)}
            facts["Location"] = f"{hub.elsewhere}/elsewhere/{repo}/{name}"
            return self._send(302, facts, b"")
        return self._send_file(repo, name, facts)

    def _send_file(self, repo: str, name: str, facts: dict[str, str]) -> None:
        hub = self.hub
        content = hub.files[repo][name]
        asked = self.headers.get("Range")
        status, begin = 200, 0
        if asked and hub.honours_range:
            begin = int(asked.removeprefix("bytes=").removesuffix("-"))
            status, facts = 206, {**facts, "Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"}
        size = hub.sizes.get(name, len(content)) if self.command == "HEAD" else len(content) - begin
        self._send(status, {**facts, "Accept-Ranges": "bytes"}, content[begin:], size)

    def _send(self, status: int, headers: dict[str, str], body: bytes, size: int | None = None) -> None:
        hub = self.hub
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if size is None else size))
        self.end_headers()
        if self.command == "HEAD":
            return
        is_file = status in {200, 206} and "Accept-Ranges" in headers
        stop = hub.breaks_off_after.pop(0) if is_file and hub.breaks_off_after else None
        for begin in range(0, len(body), _PIECE):
            if stop is not None and begin >= stop:
                self.close_connection = True
                return
            if is_file and hub.stands_still_after is not None and begin >= hub.stands_still_after:
                hub.stands_still_after = None
                hub.standing.set()
                hub.go_on.wait(60)
            piece = body[begin : begin + _PIECE]
            try:
                self.wfile.write(piece)
            except OSError:  # whoever asked has been killed
                self.close_connection = True
                return
            hub.bytes_sent += len(piece) if is_file else 0


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """A hub that answers until the block ends."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.go_on.set()
        server.shutdown()
        thread.join(10)
        server.server_close()
