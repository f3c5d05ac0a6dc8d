"""`/metrics`: open to everybody, true after a kill, and silent on who asked for what."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from retoma.metrics import Metrics
from tests.http.service import Server, events_of, raw_request, submit, wait_state
from tests.support.api import Api
from tests.support.scrape import Scrape
from tests.support.service import start_service
from tests.support.waiting import wait_for

MARKER = "Xanadu"


def scrape(url: str, headers: dict[str, str] | None = None) -> Scrape:
    reply = httpx.get(f"{url}/metrics", headers=headers)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    return Scrape(reply.text)


def test_every_metric_is_shown_as_it_is_described(server: Server, api: httpx.Client) -> None:
    events_of(api, submit(api)["id"])
    found = scrape(server.url)
    described = {one.name: one for one in Metrics().described}
    shown = {
        f"{family.name}_total" if family.type == "counter" else family.name: family
        for family in found.families
        if not family.name.startswith("process_")
    }
    assert shown.keys() <= described.keys()
    assert described.keys() - shown.keys() == set()
    for name, family in shown.items():
        one = described[name]
        assert (family.type, family.documentation) == (one.kind, one.meaning)
        assert all(sample.labels.keys() - {"le"} == set(one.labels) for sample in family.samples)
    assert {"process_cpu_seconds", "process_resident_memory_bytes"} <= {family.name for family in found.families}


def test_names_follow_the_practice_of_prometheus() -> None:
    for name, kind, labels, meaning in Metrics().described:
        assert re.fullmatch(r"retoma_[a-z_]+", name)
        assert (kind == "counter") == name.endswith("_total")
        assert not re.search(r"_(ms|milliseconds|minutes|kb|mb|count|sum)(_|$)", name)
        assert all(re.fullmatch(r"[a-z_]+", label) for label in labels)
        assert re.fullmatch(r"[A-Z0-9].*\.", meaning)


def test_requests_are_counted_by_the_template_of_their_route(server: Server, api: httpx.Client) -> None:
    before = scrape(server.url).of("retoma_http_requests_total")
    unknown = f"resp_{MARKER}"
    api.get(f"/v1/responses/{unknown}", params={MARKER: MARKER})
    api.get(f"/{MARKER}/{MARKER}")
    api.put(f"/v1/models/{MARKER}")
    api.post("/v1/responses", content=f"{{{MARKER}")
    api.get("/v1/models", headers={"Authorization": f"Bearer {MARKER}"})
    raw_request(
        server, f"{MARKER.upper()} /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    )
    raw_request(server, f"GET / HTTP/1.1\r\nHost: {MARKER}\r\nConnection: close\r\n\r\n".encode())
    found = scrape(server.url)
    after = found.of("retoma_http_requests_total")
    # By method, route and status.
    grown = {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}
    assert grown.pop(("GET", "/metrics", "200")) == 1
    assert grown == {
        ("GET", "/v1/responses/{response_id}", "400"): 1,
        ("GET", "unmatched", "404"): 1,
        ("PUT", "/v1/models/{model:path}", "405"): 1,
        ("POST", "/v1/responses", "400"): 1,
        ("GET", "/v1/models", "401"): 1,
        ("other", "/v1/models", "405"): 1,
        ("GET", "unmatched", "400"): 1,
    }
    assert MARKER.lower() not in found.text.lower()


def test_a_stream_is_open_until_its_reader_has_gone(server: Server, api: httpx.Client) -> None:
    task = submit(api, max_output_tokens=None)["id"]
    wait_state(api, task, "running")
    wait_for(lambda: scrape(server.url)["retoma_http_open_streams"] == 0, "the earlier streams to be over")
    with api.stream("GET", f"/v1/responses/{task}", params={"stream": "true"}) as reply:
        lines = reply.iter_lines()
        next(lines)
        assert scrape(server.url)["retoma_http_open_streams"] == 1
    wait_for(lambda: scrape(server.url)["retoma_http_open_streams"] == 0, "the stream to be over")
    api.post(f"/v1/responses/{task}/cancel")


def test_a_client_that_leaves_before_its_reply_is_counted_as_gone(server: Server, api: httpx.Client) -> None:
    def gone() -> float:
        return scrape(server.url).of("retoma_http_requests_total").get(("POST", "/v1/responses", "499"), 0)

    before = gone()
    body = {"model": "scripted", "input": "x", "max_output_tokens": None}
    with pytest.raises(httpx.ReadTimeout):
        api.post("/v1/responses", json=body, timeout=0.3)
    wait_for(lambda: gone() == before + 1, "the request to be over")


def test_it_needs_no_token_on_any_address_and_names_nobody_and_no_file(tmp_path: Path) -> None:
    folder = tmp_path / MARKER
    with start_service(folder, args=["--host", "0.0.0.0"]) as service:  # noqa: S104 - that is the question
        api = Api(service)
        task = api.create(f"{MARKER} [[crash]]", metadata={MARKER: MARKER}, user=MARKER, key=MARKER, on_restart="retry")
        api.wait_finished(task)
        found = scrape(service.url, {"Host": "retoma.example:8642"})
        assert found["retoma_engine_crashes_total", "engine_crashed"] == 3
        text = found.text.lower()
        for secret in (MARKER, str(tmp_path), service.token, "scripted", "cli_local", task):
            assert secret.lower() not in text


@pytest.mark.requirement("P-11.3-table")
def test_after_a_kill_the_numbers_tell_what_became_of_every_task(tmp_path: Path) -> None:
    slow = {"RETOMA_SCRIPTED_TOKEN_MS": "10", "RETOMA_SCRIPTED_TOKENS": "300", "RETOMA_SNAPSHOT_EVERY_TOKENS": "10"}
    with start_service(tmp_path, env=slow, args=["--workers", "1"]) as service:
        api = Api(service)
        running = api.create(key="once")
        assert api.create(key="once") == running, "a repetition, which is no new task"
        api.wait_tokens(running, 40)
        lost, again = api.create(on_restart="fail"), api.create(on_restart="retry")
        before = scrape(service.url)
        assert before.of("retoma_tasks") == {("queued",): 2, ("running",): 1}
        assert before["retoma_tasks_accepted_total"] == 3
        assert before["retoma_snapshots_written_total"] >= 2
        service.kill()
    with start_service(tmp_path, env=slow, args=["--workers", "1"]) as service:
        api.attach(service)
        api.wait_finished(running)
        api.wait_state(again, {"running"})
        api.cancel(again)
        after = scrape(service.url)
        # By cause, old state, policy and new state.
        assert after.of("retoma_recoveries_total") == {
            ("server_restarted", "running", "resume", "running"): 1,
            ("server_restarted", "queued", "fail", "failed"): 1,
            ("server_restarted", "queued", "retry", "queued"): 1,
        }
        ends = {("completed",): 1, ("failed",): 1, ("cancelled",): 1}
        assert after.of("retoma_tasks_finished_total") == ends
        assert api.get(lost)["error"]["code"] == "server_restarted"
        assert after["retoma_tasks_accepted_total"] == 0, "this process has accepted none"
        (restart,) = api.get(running)["task"]["restarts"]
        assert restart["path"] == "snapshot"
        assert after["retoma_snapshots_used_total"] == after["retoma_attempts_started_total", "snapshot"] == 1
        decoded = api.get(running)["usage"]["output_tokens"]
        cancelled = api.http.get(f"/v1/tasks/{again}").json()["output_tokens"]
        assert after["retoma_output_tokens_total"] == decoded - restart["resumed_at_token"] + cancelled
        assert after.of("retoma_tasks") == {}
        assert after.of("retoma_instances") == {("alive",): 1}
        assert after["retoma_store_problem"] == 0
