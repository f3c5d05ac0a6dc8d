"""A revocation ends what the client has open: streams, waiting requests and half-sent ones, and nobody else's."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import openai
import pytest

from retoma.transactions.clients import revoke_client
from tests.http.conftest import store_of
from tests.http.service import ALL_SCOPES, BOUND_S, Server, running, submit
from tests.support.waiting import wait_for

LONG: dict[str, Any] = {"model": "scripted", "input": "Tell me of the sea.", "max_output_tokens": 3000}


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("service"), store=store_of(request), workers=8) as started:
        yield started


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def client_of(server: Server, name: str) -> tuple[str, str]:
    """A paired client's token and id."""
    token = server.add_client(name, ALL_SCOPES)
    with server.http() as api:
        found = api.get("/v1/clients?limit=100").json()["data"]
    return token, next(one["id"] for one in found if one["name"] == name)


def revoke_here(server: Server, client_id: str) -> None:
    with server.http() as api:
        assert api.delete(f"/v1/clients/{client_id}").status_code == 200


def revoke_elsewhere(server: Server, client_id: str) -> None:
    """Past the service, as the command line and another instance do."""
    server.store.transact(partial(revoke_client, client_id=client_id, now_ms=0))


WAYS = pytest.mark.parametrize("revoke", [revoke_here, revoke_elsewhere])
Revoke = Callable[[Server, str], None]


def read_to_the_end(reply: httpx.Response, begun: threading.Event) -> str:
    """The type of the last event of a stream that ended well, or the error with which it broke off."""
    last = ""
    try:
        for line in reply.iter_lines():
            if line.startswith("data: "):
                last = json.loads(line[6:])["type"]
                if "delta" in last:
                    begun.set()
    except httpx.HTTPError as error:
        return type(error).__name__
    return last


def streaming(server: Server, pool: ThreadPoolExecutor, token: str, how: Callable[[httpx.Client], Any]) -> Future[str]:
    """A stream that has begun, being read."""
    begun = threading.Event()

    def read() -> str:
        with server.http(token) as client, how(client) as reply:
            assert reply.status_code == 200
            return read_to_the_end(reply, begun)

    future = pool.submit(read)
    assert begun.wait(BOUND_S)
    return future


def tasks_of(server: Server, client_id: str) -> list[str]:
    with server.http() as api:
        found = api.get("/v1/tasks?limit=100").json()["data"]
    return [task["state"] for task in found if task["client_id"] == client_id]


@WAYS
def test_a_stream_of_a_background_response_breaks_off_and_the_text_goes_on(
    server: Server, pool: ThreadPoolExecutor, revoke: Revoke
) -> None:
    token, client_id = client_of(server, f"background {revoke.__name__}")
    with server.http(token) as client:
        task = submit(client, max_output_tokens=3000)["id"]
    stream = streaming(server, pool, token, lambda client: client.stream("GET", f"/v1/responses/{task}?stream=true"))
    revoke(server, client_id)
    assert stream.result(BOUND_S) == "RemoteProtocolError"
    with server.http(token) as client:
        assert client.get(f"/v1/responses/{task}").status_code == 401
    with server.http() as api:
        assert api.get(f"/v1/responses/{task}").json()["status"] == "in_progress"
        assert api.post(f"/v1/responses/{task}/cancel").json()["status"] == "cancelled"


@WAYS
def test_a_foreground_stream_breaks_off_and_ends_its_task_as_if_its_client_had_gone(
    server: Server, pool: ThreadPoolExecutor, revoke: Revoke
) -> None:
    token, client_id = client_of(server, f"foreground {revoke.__name__}")
    body = {**LONG, "stream": True}
    stream = streaming(server, pool, token, lambda client: client.stream("POST", "/v1/responses", json=body))
    revoke(server, client_id)
    assert stream.result(BOUND_S) == "RemoteProtocolError"
    wait_for(lambda: tasks_of(server, client_id) == ["cancelled"], "the end of the task")


@WAYS
def test_a_request_that_waits_gets_the_answer_of_the_next_one(
    server: Server, pool: ThreadPoolExecutor, revoke: Revoke
) -> None:
    token, client_id = client_of(server, f"waiting {revoke.__name__}")

    def ask() -> httpx.Response:
        with server.http(token) as client:
            return client.post("/v1/responses", json=LONG)

    waiting = pool.submit(ask)
    wait_for(lambda: tasks_of(server, client_id) == ["running"], "the task to run")
    revoke(server, client_id)
    answer = waiting.result(BOUND_S)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_token")
    assert answer.headers["connection"] == "close"
    assert answer.headers["x-request-id"] == answer.json()["error"]["request_id"]
    assert tasks_of(server, client_id) == ["cancelled"]


def test_a_request_that_is_still_being_sent_is_refused(server: Server) -> None:
    token, client_id = client_of(server, "half sent")
    host, port = server.url.removeprefix("http://").split(":")
    head = (
        f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=BOUND_S) as line:
        line.sendall(head.encode() + b'{"model": ')
        wait_for(lambda: client_id in server.instance.clients._open, "the request to be let in")
        revoke_here(server, client_id)
        answer = b""
        while piece := line.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"invalid_token" in answer
    assert tasks_of(server, client_id) == []


def test_the_openai_client_sees_that_its_stream_was_not_the_whole(server: Server) -> None:
    token, client_id = client_of(server, "openai")
    seen: list[str] = []

    def read(ai: openai.OpenAI) -> None:
        for event in ai.responses.create(**LONG, stream=True):
            seen.append(event.type)
            if len(seen) == 10:
                revoke_here(server, client_id)

    with server.openai(token) as ai, pytest.raises(openai.APIConnectionError):
        read(ai)
    assert len(seen) < 1000
    assert not {"response.completed", "response.incomplete", "response.cancelled"} & set(seen)


def test_other_clients_streams_and_the_operators_go_on(server: Server, pool: ThreadPoolExecutor) -> None:
    token, client_id = client_of(server, "revoked one")
    other, _ = client_of(server, "another")
    with server.http() as api, server.http(other) as client:
        mine, theirs = submit(api, max_output_tokens=200)["id"], submit(client, max_output_tokens=200)["id"]
    kept = [
        streaming(server, pool, owner, lambda client, task=task: client.stream("GET", f"/v1/responses/{task}?stream=1"))
        for owner, task in (("a-token-for-tests", mine), (other, theirs))
    ]
    with server.http(token) as client:
        task = submit(client, max_output_tokens=3000)["id"]
    cut = streaming(server, pool, token, lambda client: client.stream("GET", f"/v1/responses/{task}?stream=true"))
    revoke_here(server, client_id)
    assert cut.result(BOUND_S) == "RemoteProtocolError"
    assert [stream.result(BOUND_S) for stream in kept] == ["response.incomplete"] * 2


def test_nothing_of_a_request_is_kept_once_it_is_over(server: Server, pool: ThreadPoolExecutor) -> None:
    token, client_id = client_of(server, "tidy")
    with server.http(token) as client:
        for _ in range(20):
            client.get("/v1/models")
            client.get("/v1/responses/nonsense")
            client.post("/v1/responses", json={})
    wait_for(lambda: client_id not in server.instance.clients._open, "the end of every request")
    assert not server.instance.clients._any_open.is_set()
