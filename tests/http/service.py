"""A real instance behind a real uvicorn, in a thread of its own, with the model `scripted`."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from retoma.bootstrap import open_store
from retoma.clock import SystemClock
from retoma.http.app import create_app
from retoma.http.attendance import Attendance
from retoma.http.errors import TYPES
from retoma.http.guard import Context
from retoma.http.stream import KEEP_ALIVE
from retoma.ids import SystemIds
from retoma.runtime.instance import Instance
from retoma.serving import listen
from retoma.settings import Settings
from retoma.store.contract import Store
from retoma.transactions.clients import Client, add_client

BOUND_S = 30.0
TOKEN = "a-token-for-tests"
TOKEN_MS = "5"
# About 20 s of text: what must be stopped by something else than its own end.
NATURAL_TOKENS = "4000"
ALL_SCOPES = frozenset({"responses:write", "responses:read", "tasks:read", "models:read"})


@dataclass
class Server:
    """One running service, and the ways to talk to it."""

    url: str
    store: Store
    instance: Instance
    stop: Callable[[], None]
    attendance: Attendance
    loop: asyncio.AbstractEventLoop

    def on_loop(self, act: Coroutine[Any, Any, None]) -> None:
        """Runs it on the service's event loop."""
        asyncio.run_coroutine_threadsafe(act, self.loop).result(BOUND_S)

    def http(self, token: str | None = TOKEN) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=BOUND_S)

    def openai(self, token: str = TOKEN) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=token, timeout=BOUND_S, max_retries=0)

    def add_client(self, name: str, scopes: frozenset[str] = ALL_SCOPES) -> str:
        """A new client's token."""
        token = f"token-of-{name}"
        client = Client(self.instance.ids.new("cli"), name, scopes)
        digest = hashlib.sha256(token.encode()).digest()
        self.store.transact(partial(add_client, client=client, token_hash=digest, now_ms=0))
        return token


class _Thread:
    """Runs the service on an event loop of its own; `ready` is set once it listens."""

    def __init__(self, settings: Settings, keep_alive_s: float) -> None:
        self._settings, self._keep_alive_s = settings, keep_alive_s
        self.ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.server: Server

    async def _run(self) -> None:
        clock = SystemClock()
        bound = listen(self._settings)
        store = open_store(self._settings, clock)
        instance = Instance(store, self._settings, clock, SystemIds(clock), TOKEN)
        app = create_app(instance, self._settings, keep_alive_s=self._keep_alive_s)
        config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        loop = asyncio.get_running_loop()

        async def drain() -> None:
            await instance.drain()
            server.should_exit = True

        stopping: list[asyncio.Task[None]] = []

        def stop() -> None:
            stopping.append(asyncio.create_task(drain()))

        await instance.start()
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        while not server.started:
            assert not serving.done(), "uvicorn has ended"
            await asyncio.sleep(0.005)
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        context: Context = app.state.context
        self.server = Server(
            url, store, instance, lambda: loop.call_soon_threadsafe(stop) and None, context.attendance, loop
        )
        self.ready.set()
        await serving
        await instance.stop()


@contextmanager
def running(data_dir: Path, keep_alive_s: float = 15.0, **settings: Any) -> Iterator[Server]:
    fields = {"data_dir": data_dir, "scripted": True, "port": 0, "workers": 4} | settings
    thread = _Thread(Settings(**fields), keep_alive_s)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETOMA_SCRIPTED_TOKEN_MS", TOKEN_MS)
        patch.setenv("RETOMA_SCRIPTED_TOKENS", NATURAL_TOKENS)
        thread.thread.start()
        assert thread.ready.wait(BOUND_S), "the service did not start"
        try:
            yield thread.server
        finally:
            thread.server.stop()
            thread.thread.join(BOUND_S)
            assert not thread.thread.is_alive(), "the service did not stop"


@dataclass
class Sse:
    """One event as it came over the line."""

    id: int
    type: str
    data: dict[str, Any]
    raw: bytes


def parse_sse(content: bytes) -> list[Sse]:
    """Every event; fails on anything that is not written exactly as contract §3 has it."""
    assert content == b"" or content.endswith((b"\n\n", KEEP_ALIVE))
    events: list[Sse] = []
    for block in content.replace(KEEP_ALIVE, b"").split(b"\n\n")[:-1]:
        lines = block.split(b"\n")
        assert [line.partition(b": ")[0] for line in lines] == [b"id", b"event", b"data"], block
        seq, kind, data = (line.partition(b": ")[2] for line in lines)
        event = Sse(int(seq), kind.decode(), json.loads(data), block)
        assert event.data["sequence_number"] == event.id
        assert event.data["type"] == event.type
        events.append(event)
    return events


def submit(api: httpx.Client, **changes: Any) -> dict[str, Any]:
    """A background response."""
    body = {"model": "scripted", "input": "Tell me of the sea.", "background": True, "max_output_tokens": 8} | changes
    reply = api.post("/v1/responses", json=body)
    assert reply.status_code == 202, reply.text
    return reply.json()


def events_of(api: httpx.Client, response_id: str, **query: Any) -> list[Sse]:
    """Follows to the end."""
    reply = api.get(f"/v1/responses/{response_id}", params={"stream": "true", **query})
    assert reply.status_code == 200, reply.text
    return parse_sse(reply.content)


def wait_state(api: httpx.Client, response_id: str, *states: str) -> dict[str, Any]:
    """Follows the log until the task is in one of these states; no sleeping, and no longer than the client's bound."""
    with api.stream("GET", f"/v1/responses/{response_id}", params={"stream": "true"}) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if line.startswith("data: "):
                response = json.loads(line[6:]).get("response")
                if response and response["task"]["state"] in states:
                    return response
    pytest.fail(f"{response_id} ended without having been {states}")


def raw_request(server: Server, content: bytes) -> bytes:
    """Sends bytes as they are and returns the whole answer; the request should ask for `Connection: close`."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=BOUND_S) as line:
        line.sendall(content)
        answer = b""
        while piece := line.recv(65536):
            answer += piece
    return answer


def check(reply: httpx.Response, status: int, code: str, param: str | None = None) -> dict[str, Any]:
    """The envelope of contract §5, all of it."""
    body = reply.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "code", "param", "request_id"}
    assert (reply.status_code, error["code"], error["param"]) == (status, code, param), error["message"]
    assert error["type"] == TYPES.get(status, "invalid_request_error")
    assert 0 < len(error["message"]) < 500
    assert reply.headers["x-request-id"] == error["request_id"]
    assert reply.headers["content-type"] == "application/json"
    return error
