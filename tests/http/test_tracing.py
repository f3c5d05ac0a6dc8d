"""Spans, as the SDK's own exporter in memory has them; a real instance behind the real application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from retoma import failpoints
from retoma.bootstrap import open_store
from retoma.clock import SystemClock
from retoma.http.app import create_app
from retoma.ids import SystemIds
from retoma.otel import OtelTracing
from retoma.runtime.instance import Instance
from retoma.settings import Settings
from retoma.telemetry import Telemetry
from retoma.tracing import Commit
from tests.http.service import BOUND_S, TOKEN

MARKER = "Xanadu"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@dataclass
class Traced:
    api: httpx.AsyncClient
    exporter: InMemorySpanExporter

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span

    async def ended(self, name: str, count: int = 1) -> list[ReadableSpan]:
        async with asyncio.timeout(BOUND_S):
            while len(found := self.spans(name)) < count:  # noqa: ASYNC110 - the exporter tells nobody
                await asyncio.sleep(0.005)
            return found

    async def create(self, prompt: str, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        body = {"model": "scripted", "input": prompt, "background": True, "max_output_tokens": 30, **fields}
        return await self.api.post("/v1/responses", json=body, headers=headers)

    async def finished(self, task: str) -> dict[str, Any]:
        async with asyncio.timeout(BOUND_S):
            while True:
                found = (await self.api.get(f"/v1/responses/{task}")).json()
                if found["status"] not in {"queued", "in_progress"}:
                    return found
                await asyncio.sleep(0.005)


@asynccontextmanager
async def traced(folder: Path, **changes: Any) -> AsyncGenerator[Traced]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    clock = SystemClock()
    settings = Settings(data_dir=folder, scripted=True, **changes)
    telemetry = Telemetry(tracing=OtelTracing(provider, clock))
    instance = Instance(open_store(settings, clock), settings, clock, SystemIds(clock), TOKEN, telemetry=telemetry)
    await instance.start()
    transport = httpx.ASGITransport(create_app(instance, settings))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as api:
            yield Traced(api, exporter)
    finally:
        await instance.stop()
        telemetry.tracing.close()


def context_of(span: ReadableSpan) -> tuple[str, str]:
    assert span.context is not None
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


def parent_of(span: ReadableSpan) -> str | None:
    return f"{span.parent.span_id:016x}" if span.parent is not None else None


def test_a_request_goes_on_with_its_clients_trace_down_to_the_commit(tmp_path: Path) -> None:
    async def run() -> None:
        async with traced(tmp_path, snapshots=False) as service:
            reply = await service.create("hello", {"traceparent": f"00-{TRACE}-{PARENT}-01"})
            task = reply.json()["id"]
            await service.ended("attempt")
        # Stopped, so that the writer has told of its last commit.
        request, accept = service.one("POST /v1/responses"), service.one("accept")
        assert context_of(request)[0] == context_of(accept)[0] == TRACE
        assert parent_of(request) == PARENT
        assert request.kind is SpanKind.SERVER
        assert request.attributes == {
            "http.request.method": "POST",
            "http.route": "/v1/responses",
            "http.response.status_code": 202,
        }
        assert parent_of(accept) == context_of(request)[1]
        assert accept.attributes == {"retoma.task.id": task, "retoma.replayed": False}
        commits = [span for span in service.spans("store commit") if parent_of(span) == context_of(accept)[1]]
        (commit,) = commits
        assert commit.start_time is not None
        assert commit.end_time is not None
        assert commit.end_time > commit.start_time
        assert commit.attributes is not None
        assert commit.attributes.keys() == {"retoma.commit.transactions"}

        attempt = service.one("attempt")
        assert parent_of(attempt) is None
        assert [f"{link.context.trace_id:032x}" for link in attempt.links] == [TRACE]
        assert attempt.attributes == {
            "retoma.task.id": task,
            "retoma.attempt": 1,
            "retoma.resume.path": "prompt",
            "retoma.outcome": "incomplete",
            "retoma.output_tokens": 30,
        }
        assert attempt.status.status_code is StatusCode.UNSET
        # Of start and end; there is none for each token.
        of_attempt = [span for span in service.spans("store commit") if parent_of(span) == context_of(attempt)[1]]
        assert len(of_attempt) == 2

    asyncio.run(run())


def test_a_commit_has_its_span_also_when_the_step_that_waited_for_it_is_over_by_then() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = OtelTracing(provider, SystemClock())
    with tracing.span("accept"):
        within = copy_context()
    tracing.committed(Commit([1, 2, 3], [within, copy_context(), within], began_ns=5_000, ended_ns=7_000, now_ns=8_000))
    accept, *commits = exporter.get_finished_spans()
    assert [span.name for span in commits] == ["store commit"] * 2, "one for each that was handed in within a span"
    for span in commits:
        assert parent_of(span) == context_of(accept)[1]
        assert span.attributes == {"retoma.commit.transactions": 3}
        assert (span.end_time or 0) - (span.start_time or 0) == 2_000


@pytest.mark.parametrize("header", ["", "00-zero-zero-01", f"00-{'0' * 32}-{PARENT}-01", "\x80" * 55])
def test_a_request_without_a_trace_that_can_be_read_begins_one(header: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with traced(tmp_path) as service:
            headers = {"traceparent": header.encode("latin-1")}
            assert (await service.api.get("/healthz", headers=headers)).status_code == 200  # pyright: ignore[reportArgumentType]
            request = service.one("GET /healthz")
            assert request.parent is None
            assert int(context_of(request)[0], 16) > 0

    asyncio.run(run())


def test_the_frameworks_own_telemetry_is_off_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would tell paths and queries, and what exceptions say."""
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)

    async def run() -> None:
        async with traced(tmp_path) as service:
            await service.api.get(f"/v1/responses/{MARKER}", params={MARKER: MARKER})
            assert len(service.spans("GET /v1/responses/{response_id}")) == 1

    asyncio.run(run())
    assert exporter.get_finished_spans() == ()


def test_a_trace_that_is_not_sampled_leaves_no_span(tmp_path: Path) -> None:
    async def run() -> None:
        async with traced(tmp_path) as service:
            reply = await service.create("hello", {"traceparent": f"00-{TRACE}-{PARENT}-00"})
            await service.finished(reply.json()["id"])
            assert [span for span in service.exporter.get_finished_spans() if context_of(span)[0] == TRACE] == []

    asyncio.run(run())


def test_failures_are_told_by_code_and_type_and_no_span_holds_what_a_client_has_sent_or_got(tmp_path: Path) -> None:
    async def run() -> None:
        async with traced(tmp_path) as service:
            headers = {"Idempotency-Key": MARKER, "User-Agent": MARKER, "tracestate": "a=b"}
            reply = await service.create(f"[[crash]] {MARKER}", headers, instructions=MARKER, metadata={MARKER: MARKER})
            failed = await service.finished(reply.json()["id"])
            assert failed["error"]["code"] == "engine_crashed"
            attempts = await service.ended("attempt", 3)
            assert [span.attributes["retoma.attempt"] for span in attempts if span.attributes] == [1, 2, 3]
            assert {span.status.status_code for span in attempts} == {StatusCode.ERROR}
            assert {span.attributes["error.type"] for span in attempts if span.attributes} == {"engine_crashed"}
            await service.api.get(f"/v1/responses/{MARKER}", params={MARKER: MARKER})
            await service.api.get(f"/{MARKER}")
            await service.api.request(MARKER, "/healthz")
            failpoints.arm("accept.written=error")
            reply = await service.create(MARKER)
            assert reply.status_code == 500
            accept = service.spans("accept")[-1]
            assert accept.attributes == {"error.type": "FailpointError"}
            assert (accept.status.status_code, accept.status.description) == (StatusCode.ERROR, None)
            request = service.spans("POST /v1/responses")[-1]
            assert request.attributes is not None
            assert request.attributes["error.type"] == "500"
            spans = service.exporter.get_finished_spans()
            assert [span.name for span in spans if span.events] == []
            text = json.dumps([json.loads(span.to_json()) for span in spans])
            assert MARKER.lower() not in text.lower()
            output = failed["output"][0]["content"][0]["text"] if failed["output"] else "the sea"
            assert output[:12] not in text
            assert TOKEN not in text

    try:
        asyncio.run(run())
    finally:
        failpoints.arm(None)
