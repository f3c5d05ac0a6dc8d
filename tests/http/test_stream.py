"""Server-Sent Events: the bytes, the cursor, and what happens when one side leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from retoma.errors import NotFound
from retoma.http.stream import EventStream
from tests.http.service import Server, events_of, parse_sse, running, submit, wait_state

QUIET: dict[str, Any] = {"keep_alive_s": 15.0}


@pytest.mark.requirement("P-11.2-seq")
def test_events_are_numbered_from_zero_without_gaps(api: httpx.Client) -> None:
    made = submit(api, max_output_tokens=20)
    events = events_of(api, made["id"])
    assert [event.id for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.incomplete")


def test_every_reader_gets_the_same_bytes(api: httpx.Client) -> None:
    made = submit(api, max_output_tokens=40)
    live, later = (events_of(api, made["id"]) for _ in range(2))
    assert [event.raw for event in live] == [event.raw for event in later]


def test_a_stream_has_the_headers_that_keep_it_a_stream(api: httpx.Client) -> None:
    reply = api.post("/v1/responses", json={"model": "scripted", "input": "x", "max_output_tokens": 1, "stream": True})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("after", [0, 3, 7])
def test_the_cursor_and_last_event_id_mean_the_same(api: httpx.Client, after: int) -> None:
    made = submit(api, max_output_tokens=20)
    whole = events_of(api, made["id"])
    assert [e.raw for e in events_of(api, made["id"], starting_after=after)] == [e.raw for e in whole[after + 1 :]]
    path = f"/v1/responses/{made['id']}?stream=true"
    by_header = api.get(path, headers={"Last-Event-ID": str(after)})
    assert [e.raw for e in parse_sse(by_header.content)] == [e.raw for e in whole[after + 1 :]]
    both = api.get(f"{path}&starting_after={after}", headers={"Last-Event-ID": "0"})
    assert both.content == by_header.content


@pytest.mark.parametrize("beyond", [0, 1, 10**17])
def test_a_cursor_at_or_beyond_the_end_gives_an_empty_stream(api: httpx.Client, beyond: int) -> None:
    made = submit(api, max_output_tokens=2)
    last = events_of(api, made["id"])[-1].id
    assert events_of(api, made["id"], starting_after=last + beyond) == []


def test_a_client_that_leaves_does_not_stop_a_background_stream(api: httpx.Client, server: Server) -> None:
    body = {"model": "scripted", "input": "x", "max_output_tokens": 60, "background": True, "stream": True}
    with server.http() as client, client.stream("POST", "/v1/responses", json=body) as reply:
        first = next(reply.iter_bytes())
    response_id = parse_sse(first)[0].data["response"]["id"]
    assert events_of(api, response_id)[-1].type == "response.incomplete"


def test_a_client_that_leaves_ends_a_foreground_stream(api: httpx.Client, server: Server) -> None:
    body = {"model": "scripted", "input": "x", "stream": True}
    with server.http() as client, client.stream("POST", "/v1/responses", json=body) as reply:
        first = next(reply.iter_bytes())
    response_id = parse_sse(first)[0].data["response"]["id"]
    assert events_of(api, response_id)[-1].type == "response.cancelled"


def test_a_reader_that_leaves_stops_nothing(api: httpx.Client, server: Server) -> None:
    made = submit(api, max_output_tokens=60)
    with server.http() as client, client.stream("GET", f"/v1/responses/{made['id']}?stream=true") as reply:
        next(reply.iter_bytes())
    assert events_of(api, made["id"])[-1].type == "response.incomplete"


def test_a_cancel_ends_the_streams_of_all_readers(api: httpx.Client, server: Server) -> None:
    made = submit(api, max_output_tokens=None)
    with server.http() as client, client.stream("GET", f"/v1/responses/{made['id']}?stream=true") as reply:
        wait_state(api, made["id"], "running")
        api.post(f"/v1/responses/{made['id']}/cancel")
        assert parse_sse(reply.read())[-1].type == "response.cancelled"


def test_streams_end_when_the_service_stops(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.http() as api:
        made = submit(api, max_output_tokens=None)
        with api.stream("GET", f"/v1/responses/{made['id']}?stream=true") as reply:
            wait_state(server.http(), made["id"], "running")
            server.stop()
            assert parse_sse(reply.read())[-1].type != "response.cancelled"


def run(
    stream: EventStream,
    gone: asyncio.Event | None = None,
    on_sent: Callable[[list[dict[str, Any]]], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """The messages that the stream sends; `gone` tells when its client leaves, `on_sent` hears of each message."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(dict(message))
        on_sent(sent)

    async def bounded() -> None:
        async with asyncio.timeout(10):
            await stream({"type": "http"}, receive, send)

    asyncio.run(bounded())
    return sent


def test_an_event_is_written_in_one_piece() -> None:
    async def pages() -> Any:
        yield [(0, "a", "{}"), (1, "b", "{}")]
        yield [(2, "c", '{"é":"\\n"}')]

    bodies = [message["body"] for message in run(EventStream(pages(), **QUIET))[1:]]
    expected = [
        "id: 0\nevent: a\ndata: {}\n\nid: 1\nevent: b\ndata: {}\n\n",
        'id: 2\nevent: c\ndata: {"é":"\\n"}\n\n',
        "",
    ]
    assert bodies == [text.encode() for text in expected]


def test_silence_is_filled_with_comments() -> None:
    enough = asyncio.Event()

    async def pages() -> Any:
        await enough.wait()
        yield [(0, "a", "{}")]

    def count(messages: list[dict[str, Any]]) -> None:
        if len(messages) == 3:  # the head and two comments
            enough.set()

    bodies = [message["body"] for message in run(EventStream(pages(), keep_alive_s=0.01), on_sent=count)[1:]]
    assert bodies[:2] == [b": keep-alive\n"] * 2
    assert bodies[-2:] == [b"id: 0\nevent: a\ndata: {}\n\n", b""]


def test_a_stream_whose_task_is_deleted_ends() -> None:
    async def pages() -> Any:
        yield [(0, "a", "{}")]
        raise NotFound

    assert run(EventStream(pages(), **QUIET))[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


def test_a_client_that_leaves_is_reported_once_and_the_reading_ends() -> None:
    log: list[str] = []
    gone = asyncio.Event()

    async def pages() -> Any:
        try:
            yield [(0, "a", "{}")]
            gone.set()
            await asyncio.Event().wait()
        finally:
            log.append("closed")

    async def on_gone() -> None:
        log.append("gone")

    sent = run(EventStream(pages(), on_gone=on_gone, **QUIET), gone)
    assert log == ["closed", "gone"]
    assert sent[-1]["more_body"]
