"""Chat completions with real processes: what a client that repeats its request gets after `kill -9`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from retoma.http.stream import KEEP_ALIVE
from tests.support.api import Api, text_of
from tests.support.audit import assert_store_is_sound
from tests.support.chat import Message, error_of, messages_in, text_of_chunks
from tests.support.service import RunningService, environment, free_port, start_service
from tests.support.waiting import wait_for

PAGE = Path(__file__).parents[2] / "docs" / "chat-completions.md"
PATH = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "model": "scripted",
    "messages": [{"role": "user", "content": "tell me about the sea"}],
    "temperature": 0,
    "seed": 1,
}
KEY = {"Idempotency-Key": "the-only-one"}
SLOW = {"RETOMA_SCRIPTED_TOKEN_MS": "20"}
QUICK = {"RETOMA_SCRIPTED_TOKEN_MS": "1"}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text that every one of these requests leads to."""
    with start_service(tmp_path_factory.mktemp("reference"), env=QUICK) as service:
        api = Api(service)
        made = api.http.post(PATH, json=BODY).json()["choices"][0]
        assert made["finish_reason"] == "stop"
        return made["message"]["content"]


def read_and_kill(service: RunningService, api: Api, body: dict[str, Any], chunks: int) -> bytes:
    """The messages that a client has when its service is killed, after so many of them; the last may be cut off."""
    seen: list[bytes] = []
    with api.http.stream("POST", PATH, json=body, headers=KEY) as reply:
        pieces = reply.iter_bytes()
        while len(messages_in(whole(b"".join(seen)))) < chunks:
            seen.append(next(pieces))
        service.kill()
        with pytest.raises(httpx.RemoteProtocolError):
            seen.extend(pieces)
    return whole(b"".join(seen))


def whole(seen: bytes) -> bytes:
    """Without comments and without what is cut off."""
    return seen[: seen.rfind(b"\n\n") + 2 if b"\n\n" in seen else 0].replace(KEEP_ALIVE, b"")


def repeat(api: Api, body: dict[str, Any]) -> httpx.Response:
    reply = api.http.post(PATH, json=body, headers=KEY)
    assert reply.headers["idempotency-replayed"] == "true"
    assert len(api.http.get("/v1/tasks").json()["data"]) == 1
    return reply


def goes_on(seen: bytes, again: bytes) -> None:
    """The text was resumed, so the repeated stream begins with every byte that was sent before the kills."""
    assert again.startswith(seen)


def begins_anew(seen: bytes, again: bytes) -> None:
    """The text was retried, so of what was sent before only the beginning stands."""
    assert again.startswith(first_of(seen))
    assert messages_in(again)[1].id > messages_in(seen)[-1].id


def first_of(content: bytes) -> bytes:
    return content.partition(b"\n\n")[0]


@pytest.mark.requirement("S-002")
@pytest.mark.requirement("S-005", "S-005b")
@pytest.mark.timeout(180)
@pytest.mark.parametrize(("policy", "check"), [("resume", goes_on), ("retry", begins_anew)])
def test_a_client_whose_service_was_killed_twice_repeats_its_request_and_gets_the_whole_text(
    policy: str, check: Callable[[bytes, bytes], None], data_dir: Path, uninterrupted: str
) -> None:
    body = BODY | {"stream": True, "on_restart": policy}
    with start_service(data_dir, env=SLOW) as service:
        api = Api(service)
        first = read_and_kill(service, api, body, chunks=9)
    with start_service(data_dir, env=SLOW) as service:
        api.attach(service)
        second = read_and_kill(service, api, body, chunks=20)
        check(first, second)
    with start_service(data_dir, env=QUICK) as service:
        api.attach(service)
        reply = repeat(api, body)
        again = whole(reply.content)
        check(second, again)
        assert text_of_chunks(messages_in(again)) == uninterrupted
        response = api.http.get(reply.headers["location"]).json()
        assert text_of(response) == uninterrupted
        assert [entry["policy"] for entry in response["task"]["restarts"]] == [policy] * 2
        assert whole(repeat(api, body).content) == again
        assert service.stop() == 0
    assert_store_is_sound(data_dir)


@pytest.mark.requirement("P-11.3-table")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "reply"])
def test_a_client_that_asked_for_no_more_than_its_connection_is_told_of_the_restart(
    streaming: bool, data_dir: Path
) -> None:
    body = BODY | {"stream": streaming}
    seen: list[Message] = []
    with start_service(data_dir, env=SLOW) as service:
        api = Api(service)
        if streaming:
            seen = messages_in(read_and_kill(service, api, body, chunks=5))
        else:
            kill_while_it_waits(service, api, body)
    with start_service(data_dir, env=QUICK) as service:
        api.attach(service)
        reply = repeat(api, body)
        if streaming:
            said = messages_in(whole(reply.content))
            assert said[: len(seen)] == seen
            error = error_of(said)
        else:
            error = reply.json()["error"]
            assert reply.headers["x-should-retry"] == "false"
        assert (reply.status_code, error["code"]) == (200 if streaming else 500, "server_restarted")
        assert api.http.get(reply.headers["location"]).json()["error"]["code"] == "server_restarted"
        raises_for_the_official_package(service, body)
        assert service.stop() == 0
    assert_store_is_sound(data_dir)


@pytest.mark.requirement("S-002")
@pytest.mark.timeout(180)
def test_the_program_of_the_documents_prints_the_whole_text_whatever_happens_to_the_service(
    tmp_path: Path, uninterrupted: str
) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    program = program.replace('"smollm2"', '"scripted"').replace("Write a long story.", BODY["messages"][0]["content"])
    program = program.replace('"stream": True,', '"stream": True, "temperature": 0, "seed": 1,')
    port = ["--port", str(free_port())]
    with start_service(tmp_path, env=SLOW, args=port) as service:
        env = environment() | {"OPENAI_BASE_URL": f"{service.url}/v1", "OPENAI_API_KEY": service.token}
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=env) as running:
            try:
                said = restart_twice(service, port, running)
            finally:
                running.kill()
    assert (running.returncode, said) == (0, uninterrupted + "\n")


def restart_twice(service: RunningService, port: list[str], running: subprocess.Popen[str]) -> str:
    """Kills the service, then stops the next one in good order; what the program has printed in the end."""
    api = Api(service)
    wait_for(lambda: api.http.get("/v1/tasks", params={"state": "running"}).json()["data"], "a running text")
    service.kill()
    with start_service(service.data_dir, env=SLOW, args=port) as second:
        api.attach(second)
        (task,) = api.http.get("/v1/tasks").json()["data"]
        api.wait_tokens(task["id"], task["output_tokens"] + 20)
        assert second.stop() == 0
    with start_service(service.data_dir, env=QUICK, args=port) as third:
        api.attach(third)
        said, _ = running.communicate(timeout=120)
        assert len(api.http.get("/v1/tasks").json()["data"]) == 1
        return said


def kill_while_it_waits(service: RunningService, api: Api, body: dict[str, Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.http.post, PATH, json=body, headers=KEY)
        with httpx.Client(base_url=service.url, headers=service.headers) as other:
            while not (tasks := other.get("/v1/tasks", params={"state": "running"}).json()["data"]):
                assert not waiting.done()
        api.wait_tokens(tasks[0]["id"], 3)
        service.kill()
        assert isinstance(waiting.exception(), httpx.RemoteProtocolError)


def raises_for_the_official_package(service: RunningService, body: dict[str, Any]) -> None:
    with (
        openai.OpenAI(base_url=f"{service.url}/v1", api_key=service.token, timeout=30) as client,
        pytest.raises(openai.APIError) as raised,
    ):
        list(client.chat.completions.create(**body, extra_headers=KEY))
    assert raised.value.code == "server_restarted"
