"""What the client can't mend: told without details, logged without the prompt, and the server goes on."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest

from retoma.errors import LeaseLost, QueueFull, RetomaError, ShuttingDown, StoreFull, StoreUnavailable
from retoma.http.edge import HostCheck
from retoma.http.errors import Net
from retoma.ids import SystemIds
from tests.http.service import Server

GOOD: dict[str, Any] = {"model": "scripted", "input": "a secret", "max_output_tokens": 1}


def raising(error: Exception) -> Any:
    async def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (QueueFull(), (429, "queue_full", "rate_limit_error")),
        (StoreUnavailable(), (503, "store_unavailable", "server_error")),
        (StoreFull(), (503, "store_full", "server_error")),
        (ShuttingDown(), (503, "shutting_down", "server_error")),
    ],
)
def test_what_may_be_tried_again_says_when(
    api: httpx.Client,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    error: RetomaError,
    expected: tuple[int, str, str],
) -> None:
    monkeypatch.setattr(server.instance, "accept", raising(error))
    reply = api.post("/v1/responses", json=GOOD)
    told = reply.json()["error"]
    assert (reply.status_code, told["code"], told["type"]) == expected
    assert int(reply.headers["retry-after"]) >= 1


@pytest.mark.parametrize("error", [ValueError("a secret"), AssertionError("a secret"), LeaseLost("a secret")])
def test_an_error_of_our_own_is_told_without_details_and_logged_under_its_request_id(
    api: httpx.Client,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    with monkeypatch.context() as patch, caplog.at_level(logging.DEBUG, "retoma"):
        patch.setattr(server.instance, "accept", raising(error))
        reply = api.post("/v1/responses", json=GOOD)
    body = reply.json()["error"]
    assert (reply.status_code, body["code"], body["type"]) == (500, "internal", "server_error")
    assert "secret" not in reply.text
    lines = [record.getMessage() for record in caplog.records if body["request_id"] in record.getMessage()]
    assert len(lines) == 1
    assert type(error).__name__ in lines[0]
    assert "secret" not in caplog.text
    assert reply.headers["x-request-id"] == body["request_id"]
    assert api.post("/v1/responses", json=GOOD).status_code == 200


def test_a_reply_that_has_begun_is_broken_off(caplog: pytest.LogCaptureFixture) -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("a secret")

    sent = asyncio.run(through(Net(app, SystemIds(StoppedClock()))))
    assert [message["type"] for message in sent] == ["http.response.start"]
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("box.example", None, 200),
        ("box.example", "https://box.example", 200),
        ("box.example", "https://evil.example", 403),
        ("box.example", "null", 403),
    ],
)
def test_off_the_loopback_address_an_origin_must_be_that_of_the_host(
    host: str, origin: str | None, status: int
) -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    headers = [(b"host", host.encode())] + ([(b"origin", origin.encode())] if origin else [])
    net = Net(HostCheck(app, "0.0.0.0"), SystemIds(StoppedClock()))  # noqa: S104 - not bound, only named
    assert asyncio.run(through(net, headers))[0]["status"] == status


async def through(net: Net, headers: list[tuple[bytes, bytes]] | None = None) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    await net({"type": "http", "method": "GET", "path": "/", "headers": headers or []}, receive, send)
    return sent


class StoppedClock:
    def wall_ms(self) -> int:
        return 0

    def boot_ms(self) -> int:
        return 0

    def boot_id(self) -> str:
        return "boot"
