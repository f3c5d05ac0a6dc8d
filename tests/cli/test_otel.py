"""Traces of the real service: sent to a collector when they are asked for, and nobody needs the packages otherwise."""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.api import Api
from tests.support.command import run_retoma
from tests.support.service import SOURCE, start_service


class Collector:
    """Takes what an OTLP exporter sends over HTTP."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[str | None] = []
        self.url = ""

    def spans(self) -> list[str]:
        return [
            span.name
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def resources(self) -> list[dict[str, str]]:
        return [
            {one.key: one.value.string_value for one in resource.resource.attributes}
            for request in self.requests
            for resource in request.resource_spans
        ]


@contextmanager
def collector() -> Iterator[Collector]:
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            found.requests.append(ExportTraceServiceRequest.FromString(body))
            found.headers.append(self.headers.get("X-Of-Mine"))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_traces_go_where_the_variables_of_opentelemetry_say(tmp_path: Path) -> None:
    with collector() as found:
        env = {
            "RETOMA_OTEL": "yes",
            "RETOMA_SCRIPTED_TOKENS": "8",
            "OTEL_EXPORTER_OTLP_ENDPOINT": found.url,
            "OTEL_EXPORTER_OTLP_HEADERS": "x-of-mine=yes",
            "OTEL_SERVICE_NAME": "my retoma",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=tests",
        }
        with start_service(tmp_path, env=env) as service:
            api = Api(service)
            api.wait_finished(api.create())
            assert service.stop() == 0
        assert set(found.spans()) >= {"POST /v1/responses", "accept", "attempt", "store commit"}
        assert set(found.headers) == {"yes"}
        for about in found.resources():
            assert about["service.name"] == "my retoma"
            assert about["deployment.environment.name"] == "tests"
            assert about["service.version"]


def test_without_the_setting_nothing_is_sent_whatever_the_variables_say(tmp_path: Path) -> None:
    with collector() as found:
        with start_service(tmp_path, env={"OTEL_EXPORTER_OTLP_ENDPOINT": found.url}) as service:
            api = Api(service)
            api.wait_finished(api.create())
            assert service.stop() == 0
        assert found.requests == []


def test_a_collector_that_is_away_costs_no_request_and_no_orderly_stop(tmp_path: Path) -> None:
    with collector() as gone:
        pass
    env = {"RETOMA_OTEL": "yes", "OTEL_EXPORTER_OTLP_ENDPOINT": gone.url, "RETOMA_SCRIPTED_TOKENS": "8"}
    with start_service(tmp_path, env=env) as service:
        api = Api(service)
        assert api.wait_finished(api.create())["status"] == "completed"
        assert service.stop() == 0


ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {"opentelemetry.sdk", "opentelemetry.exporter"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
"""


def without_opentelemetry(folder: Path) -> dict[str, str]:
    """An installation without the extra; OpenTelemetry's bare API comes with FastAPI all the same."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(ABSENT)
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(SOURCE)])}


def test_a_base_installation_serves_and_counts(tmp_path: Path) -> None:
    env = without_opentelemetry(tmp_path / "packages")
    with start_service(tmp_path / "data", env=env) as service:
        api = Api(service)
        api.wait_finished(api.create())
        assert "retoma_tasks_accepted_total 1.0" in httpx.get(f"{service.url}/metrics").text


def test_traces_without_the_extra_are_refused_with_what_to_do(tmp_path: Path) -> None:
    env = without_opentelemetry(tmp_path / "packages")
    ended = run_retoma("serve", "--otel", "--data-dir", tmp_path / "data", "--port", "0", env=env)
    assert ended.status == 3
    assert ended.err.splitlines()[-1] == "Error: the setting `otel` needs the extra: pip install 'retoma[otel]'"
