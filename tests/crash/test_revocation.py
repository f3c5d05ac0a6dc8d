"""A revocation counts everywhere at once: on every instance of the store, whoever makes it, also for open streams."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.api import Api
from tests.support.audit import assert_store_is_sound
from tests.support.command import run_retoma
from tests.support.places import another_host
from tests.support.service import RunningService, start_service

SLOW = {"RETOMA_SCRIPTED_TOKEN_MS": "20", "RETOMA_SCRIPTED_TOKENS": "3000"}
# A revoked client's streams end within a second and a little; this is far below the minute that the text takes.
SOON_S = 10.0
Revoke = Callable[[RunningService, str], None]


def pair(service: RunningService, name: str) -> tuple[dict[str, str], str]:
    """A new client's headers and id, by the command line and the service's own route."""
    printed = run_retoma("clients", "pair", "--json", "--url", service.url, "--data-dir", service.data_dir)
    assert printed.status == 0, printed
    code = json.loads(printed.out)["code"]
    made = httpx.post(f"{service.url}/v1/pairings", json={"code": code, "name": name}, timeout=30).json()
    return {"Authorization": f"Bearer {made['token']}"}, made["client"]["id"]


def over_http(service: RunningService, client_id: str) -> None:
    reply = httpx.delete(f"{service.url}/v1/clients/{client_id}", headers=service.headers, timeout=30)
    assert reply.status_code == 200, reply.text


def in_a_shell(service: RunningService, client_id: str) -> None:
    ended = run_retoma("clients", "revoke", client_id, "--data-dir", service.data_dir)
    assert (ended.status, ended.out) == (0, f"{client_id} is revoked\n"), ended


def read(url: str, headers: dict[str, str], begun: threading.Event) -> str:
    try:
        with httpx.stream("GET", url, headers=headers, params={"stream": "true"}, timeout=60) as reply:
            assert reply.status_code == 200
            for line in reply.iter_lines():
                if "output_text.delta" in line:
                    begun.set()
    except httpx.RemoteProtocolError:
        return "broken off"
    return "complete"


@pytest.mark.requirement("S-002")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("revoke", [over_http, in_a_shell])
def test_a_stream_through_one_instance_ends_when_its_client_is_revoked_at_another(
    data_dir: Path, revoke: Revoke
) -> None:
    with (
        start_service(data_dir, env=SLOW) as here,
        start_service(another_host(data_dir), env={**SLOW, "RETOMA_WORKERS": "0"}) as there,
        ThreadPoolExecutor(4) as pool,
    ):
        headers, client_id = pair(there, "phone")
        operator = Api(here)
        body = {"model": "scripted", "input": "x", "background": True}
        task = httpx.post(f"{here.url}/v1/responses", json=body, headers=headers, timeout=30).json()["id"]
        streams: list[Future[str]] = []
        for instance in (here, there):
            begun = threading.Event()
            streams.append(pool.submit(read, f"{instance.url}/v1/responses/{task}", headers, begun))
            assert begun.wait(30)
        revoke(there, client_id)
        for instance in (here, there):
            assert httpx.get(f"{instance.url}/v1/models", headers=headers, timeout=30).status_code == 401
        assert [stream.result(SOON_S) for stream in streams] == ["broken off"] * 2
        assert operator.get(task)["status"] == "in_progress"
        operator.cancel(task)
        assert (here.stop(), there.stop()) == (0, 0)
    assert_store_is_sound(data_dir)


@pytest.mark.timeout(120)
def test_what_was_paired_stays_paired_over_a_kill(data_dir: Path) -> None:
    with start_service(data_dir, env=SLOW) as service:
        kept, _ = pair(service, "kept")
        revoked, client_id = pair(service, "revoked")
        over_http(service, client_id)
        service.kill()
    with start_service(data_dir, env=SLOW) as service:
        answers = [httpx.get(f"{service.url}/v1/models", headers=one, timeout=30) for one in (kept, revoked)]
        assert [answer.status_code for answer in answers] == [200, 401]
    assert_store_is_sound(data_dir)
