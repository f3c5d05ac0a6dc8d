"""The log: one line a record, with the ids of what it is about, and never a word of what a client has sent or got."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.api import Api, text_of
from tests.support.command import run_retoma
from tests.support.service import RunningService, environment, start_service
from tests.support.waiting import wait_for

MARKER = "Xanadu"
SECRETS = [f"{MARKER}-{part}" for part in ("prompt", "key", "token", "path", "query", "field", "agent", "name", "json")]
PROMPT, KEY, TOKEN, PATH, QUERY, FIELD, AGENT, NAME, JSON = SECRETS
FIELDS = {"time", "level", "logger", "message", "instance", "request_id", "task_id", "trace_id", "client_id"} | {
    *("method", "route", "status", "duration_ms", "bytes", "stream", "exception")
}
ID = "[0-9a-f]{32}"


def lines(service: RunningService) -> list[dict[str, Any]]:
    """The whole log; fails on a line that isn't a JSON object."""
    found = [json.loads(line) for line in service.log.splitlines()]
    assert all(isinstance(line, dict) for line in found)
    return found


def begin(folder: Path, *args: str, **env: str) -> RunningService:
    fields = {"RETOMA_SCRIPTED_TOKENS": "60", "RETOMA_SCRIPTED_TOKEN_MS": "2"} | env
    return start_service(folder, env=fields, args=["--log-level", "debug", "--log-format", "json", *args])


def bad_requests(service: RunningService) -> None:
    """Everything that a client can get wrong, with a secret in it."""
    with httpx.Client(base_url=service.url, headers={**service.headers, "User-Agent": AGENT}) as api:
        api.post("/v1/responses", content=f'{{"model": "{JSON}', headers={"Content-Type": "application/json"})
        api.post("/v1/responses", json={"model": NAME, "input": PROMPT, FIELD: FIELD})
        api.post("/v1/responses", json={"model": NAME, "input": PROMPT})
        api.post("/v1/responses", json={"model": "scripted", "input": [{"type": FIELD, "content": PROMPT}]})
        api.get(f"/v1/responses/{PATH}")
        api.get(f"/{PATH}", params={QUERY: QUERY})
        api.get("/v1/tasks", params={"state": QUERY})
        api.get("/v1/models", headers={"Authorization": f"Bearer {TOKEN}"})
        api.get("/v1/models", headers={"Host": NAME})
        api.get("/v1/models", headers={"Origin": f"https://{NAME}"})
        api.get("/v1/models", headers={"traceparent": TOKEN})
        api.post("/v1/models", json={"file": PATH, "name": NAME})
        api.post("/v1/responses", content=PROMPT.encode() * 1_000_000)
        api.patch("/v1/service", json={FIELD: FIELD}, headers={"If-Match": '"1"'})
    host, port = service.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as line:
        line.sendall(f"GET /{PATH} NONSENSE/{TOKEN}\r\n{FIELD}\r\n\r\n".encode())
        line.recv(4096)


def leaks(service: RunningService, *texts: str) -> list[str]:
    """Lines that hold a secret, a token, or a stretch of an output."""
    stretches = [text[start : start + 12] for text in texts for start in range(0, len(text) - 12, 4)]
    pieces = [MARKER, service.token, *stretches]
    return [line for line in service.log.splitlines() for piece in pieces if piece.lower() in line.lower()]


def test_every_line_is_json_with_ids_and_nothing_that_a_client_has_sent_or_got(tmp_path: Path) -> None:
    with begin(tmp_path) as service:
        api = Api(service)
        bad_requests(service)
        fields = {"instructions": PROMPT, "metadata": {FIELD: FIELD}, "key": KEY, "user": NAME}
        crashed = api.create(f"[[crash]] {PROMPT}", **fields)
        assert api.wait_finished(crashed)["error"]["code"] == "engine_crashed"
        assert api.create(f"[[crash]] {PROMPT}", **fields) == crashed, "the task of the key"
        conflict = api.http.post(
            "/v1/responses", json={"model": "scripted", "input": QUERY}, headers={"Idempotency-Key": KEY}
        )
        assert conflict.status_code == 422
        cancelled = api.create(PROMPT)
        api.wait_tokens(cancelled, 3)
        api.cancel(cancelled)
        whole = api.create(PROMPT)
        api.follow(whole)
        texts = [text_of(api.get(task)) for task in (whole, cancelled, crashed)]
        assert len(texts[0]) > 100
        assert service.stop() == 0
        assert lines(service)
        assert leaks(service, *texts) == []
        assert "Traceback" not in service.log
        for line in lines(service):
            assert line.keys() <= FIELDS
            assert list(line)[:4] == ["time", "level", "logger", "message"]
            assert datetime.fromisoformat(line["time"]).utcoffset() is not None
            assert line["level"] in {"debug", "info", "warning", "error"}
            assert line["logger"].startswith(("retoma", "uvicorn"))


def test_a_request_and_its_attempt_can_be_found_by_their_ids(tmp_path: Path) -> None:
    with begin(tmp_path) as service:
        api = Api(service)
        body = {"model": "scripted", "input": PROMPT, "background": True}
        reply = api.http.post("/v1/responses", json=body)
        task = reply.json()["id"]
        api.follow(task)
        wait_for(lambda: any(line.get("stream") for line in lines(service)), "the line of the stream")
        about = [line for line in lines(service) if line.get("task_id") == task]
        (accepted,) = [line for line in about if line.get("route") == "/v1/responses"]
        assert accepted["request_id"] == reply.headers["x-request-id"]
        assert accepted.items() >= {"level": "info", "method": "POST", "status": 202, "client_id": "cli_local"}.items()
        assert accepted["duration_ms"] > 0
        assert accepted["bytes"] == len(reply.content)
        (stream,) = [line for line in about if line.get("stream")]
        assert (stream["route"], stream["status"]) == ("/v1/responses/{response_id}", 200)
        assert stream["bytes"] > 1000
        attempt = [line for line in about if line["logger"] == "retoma.runtime.observing"]
        assert [line["message"].split(",")[0] for line in attempt] == [
            "attempt 1 begins",
            "attempt 1 generates",
            "completed after 61 tokens of this attempt",
        ]
        instance = api.instance
        assert {line["instance"] for line in about} == {instance}
        assert all(re.fullmatch(f"req_{ID}", line["request_id"]) for line in lines(service) if "route" in line)
        api.http.get(f"/v1/chat/completions/chatcmpl-{task.removeprefix('resp_')}")
        wait_for(lambda: "/v1/chat/completions/{completion_id}" in service.log, "its line")
        (chat,) = [line for line in lines(service) if line.get("route") == "/v1/chat/completions/{completion_id}"]
        assert (chat["task_id"], chat["level"]) == (task, "info")
        for path in ("/healthz", "/readyz", "/metrics", "/dashboard/overview"):
            api.http.get(path)
            wait_for(lambda path=path: path in service.log, "its line")
            assert {line["level"] for line in lines(service) if line.get("route") == path} == {"debug"}


def test_what_was_recovered_after_a_kill_is_told_under_its_id(tmp_path: Path) -> None:
    with begin(tmp_path, RETOMA_SCRIPTED_TOKEN_MS="20") as service:
        api = Api(service)
        task = api.create(PROMPT)
        api.wait_tokens(task, 5)
        service.kill()
    with begin(tmp_path) as service:
        api.attach(service)
        api.wait_finished(task)
        about = [line for line in lines(service) if line.get("task_id") == task and line["level"] == "info"]
        assert about[0]["message"] == "moved from running to running by the policy resume: server_restarted"
        assert {line["instance"] for line in about} == {api.instance}
        assert leaks(service, text_of(api.get(task))) == []


@pytest.mark.parametrize(
    "failpoint",
    [
        *("accept.written=error", "claim.written=error", "start.written=error", "append.written@2=error"),
        *("finish.written=error", "cancel.written=error", "append.committed=error", "delete.written=error"),
        *("engine.prefilled=error", "engine.token@5=kill"),
    ],
)
def test_an_error_inside_is_told_by_its_type_and_its_places_only(failpoint: str, tmp_path: Path) -> None:
    with begin(tmp_path, RETOMA_FAILPOINT=failpoint) as service:
        api = Api(service)
        body = {"model": "scripted", "input": PROMPT, "background": True}
        reply = api.http.post("/v1/responses", json=body, headers={"Idempotency-Key": KEY})
        if reply.status_code == 500:
            reply = api.http.post("/v1/responses", json=body, headers={"Idempotency-Key": KEY})
        task = reply.json()["id"]
        api.http.post(f"/v1/responses/{task}/cancel") if "cancel" in failpoint else api.wait_finished(task)
        api.wait_finished(task)
        text = text_of(api.get(task))
        api.http.delete(f"/v1/responses/{task}")
        if failpoint.startswith("engine"):  # whose engine now dies with what the exception said as its last words
            api.wait_finished(api.create(f"[[crash]] {PROMPT}", on_restart="fail"))
        service.stop()
        assert leaks(service, text) == []
        assert "failpoint " not in service.log, "that is what the exception says"
        if ".written" in failpoint:
            assert '"FailpointError"' in service.log or "ended with FailpointError at" in service.log
        for line in lines(service):
            if "exception" in line:
                assert re.fullmatch(r"\w+", line["exception"]["type"])
                assert all(re.fullmatch(r"\S+\.py:\d+ \S+", place) for place in line["exception"]["places"])


FAILURES = f"""
import asyncio, logging, sys, threading, warnings
from retoma import logs
logs.set_up(10, sys.argv[1])
logger = logging.getLogger("retoma.somewhere")

def fail():
    try:
        raise KeyError("{MARKER}")
    except KeyError:
        raise ValueError("{MARKER}")

try:
    fail()
except ValueError:
    logger.exception("it failed")
    logging.getLogger("a.library").error("it failed\\nin two lines", exc_info=True)
thread = threading.Thread(target=fail)
thread.start()
thread.join()

class Bad:
    def __del__(self):
        fail()
Bad()

async def main():
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(logs.on_loop_error)
    loop.call_soon(lambda text: fail(), "{MARKER}")
    async def forgotten():
        fail()
    forgotten_task = asyncio.create_task(forgotten())
    await asyncio.sleep(0.01)
    del forgotten_task
    await asyncio.sleep(0.01)
asyncio.run(main())
with logs.bound(task_id="resp_1", instance=""):
    logger.warning("é\\u2028漢", extra={{logs.FIELDS: {{"status": 0, "client_id": None}}}})
logger.debug("outside")
logging.getLogger("a.library").info("{MARKER}")
"""


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_exception_says_anything_however_it_comes_to_the_log(form: str) -> None:
    command = [sys.executable, "-c", FAILURES, form]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""
    assert MARKER not in done.stderr
    found = done.stderr.splitlines()
    assert len(found) == 8
    if form == "text":
        assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ \S+: ", line) for line in found)
        assert "[ValueError at <string>:" in found[0]
        assert found[0].endswith(" fail]")
        assert found[6].endswith("é | 漢 task_id=resp_1 status=0")
        return
    told = [json.loads(line) for line in found]
    assert [line["message"] for line in told] == [
        "it failed",
        "it failed\nin two lines",
        "a thread ended with an error",
        "an error was ignored",
        "event loop: Exception",
        "event loop: Task exception was never retrieved",
        "é\u2028漢",
        "outside",
    ]
    for line in told[:6]:
        assert line["exception"]["type"] == "ValueError"
        assert line["exception"]["cause"]["type"] == "KeyError"
        assert line["exception"]["places"][-1].endswith(" fail")
    assert told[6].items() >= {"task_id": "resp_1", "status": 0}.items()
    assert told[6].keys() == {"time", "level", "logger", "message", "task_id", "status"}
    assert "task_id" not in told[7]


def test_a_format_that_is_none_is_bad_usage(tmp_path: Path) -> None:
    ended = run_retoma("serve", "--data-dir", tmp_path, "--log-format", "xml")
    assert ended.status == 2
    assert "it takes text or json" in ended.err


def test_the_page_on_observability_names_every_field_of_a_line() -> None:
    page = (Path(__file__).parents[2] / "docs" / "observability.md").read_text()
    section = page.partition("\n## Logs\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == FIELDS
