"""Many kills at random moments: what a client saw stays true, and every task reaches the end it would have had."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.support import evidence
from tests.support.api import Api, text_of
from tests.support.audit import assert_store_is_sound
from tests.support.service import RunningService, launch_service, start_service

KILLS = 14
SLOW = {"RETOMA_SCRIPTED_TOKEN_MS": "8", "RETOMA_WORKERS": "3"}
QUICK = {"RETOMA_SCRIPTED_TOKEN_MS": "1", "RETOMA_WORKERS": "3"}
PROMPTS = ("the first story", "the second story", "a third one, 漢字 and all")


class Kills:
    """Kills at random moments, and when they were."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.moments: list[dict[str, float]] = []
        evidence.keep("kills.json", self.moments)

    def kill(self, service: RunningService, start_s: float) -> None:
        """Somewhere between its first instruction and some hundred tokens later, by how long a start takes here."""
        rng = self._rng
        after_s = start_s * rng.choice((0.1, 0.5, 1.0, 1.5, 2.0)) * rng.uniform(0.5, 1.0)
        engines_too = rng.random() < 0.5
        self.moments.append({"pid": service.pid, "start_s": start_s, "after_s": after_s, "engines_too": engines_too})
        with contextlib.suppress(subprocess.TimeoutExpired):
            service.process.wait(after_s)
        service.kill(engines_too=engines_too)


@pytest.mark.requirement("P-11.2-seq")
@pytest.mark.requirement("S-002")
@pytest.mark.requirement("S-005", "S-002b")
@pytest.mark.timeout(240)
def test_texts_survive_a_storm_of_kills_and_no_event_is_ever_contradicted(
    tmp_path: Path, data_dir: Path, rng: Random
) -> None:
    with start_service(tmp_path / "calm", env=QUICK) as service:
        api = Api(service)
        expected = [text_of(api.wait_finished(api.create(prompt))) for prompt in PROMPTS]

    kills = Kills(rng)
    began = time.monotonic()
    with start_service(data_dir, env=SLOW) as service:
        start_s = time.monotonic() - began
        api = Api(service)
        tasks = [api.create(prompt) for prompt in PROMPTS]
        readers = [threading.Thread(target=api.follow, args=(task,)) for task in tasks]
        for reader in readers:
            reader.start()
        kills.kill(service, start_s)
        for reader in readers:
            reader.join(30)
    interrupted = 0
    for _ in range(KILLS - 1):
        with launch_service(data_dir, env=SLOW) as service:
            kills.kill(service, start_s)
    with start_service(data_dir, env=QUICK) as service:
        api.attach(service)
        for task, text in zip(tasks, expected, strict=True):
            ended = api.wait_finished(task)
            assert (ended["status"], text_of(ended)) == ("completed", text)
            interrupted += len(ended["task"]["restarts"])
            api.follow(task)  # from 0 on: compares with what was seen before the first kill
            deltas = [event["delta"] for event in api.events(task) if event["type"] == "response.output_text.delta"]
            assert "".join(deltas) == text
        assert service.stop() == 0
    assert interrupted >= KILLS // 4, "the kills came too late to interrupt anything"
    assert_store_is_sound(data_dir)


def count_tasks(api: Api) -> int:
    found: list[str] = []
    while True:
        after = {"after": found[-1]} if found else {}
        page = api.http.get("/v1/tasks", params={"limit": 100, **after}).json()
        found += [task["id"] for task in page["data"]]
        if not page["has_more"]:
            return len(set(found))


@pytest.mark.requirement("P-11.2-persist", "S-005c")
@pytest.mark.timeout(240)
def test_whoever_got_a_202_finds_the_response_after_a_kill(data_dir: Path, rng: Random) -> None:
    """Clients submit as fast as they can during the kill; acknowledged ids exist, keys never double (I1, I5, I11)."""
    acknowledged: dict[str, str] = {}
    tried: set[str] = set()

    def submit(api: Api, name: str) -> None:
        for number in range(10_000):
            key = f"{name}-{number}"
            tried.add(key)
            try:
                acknowledged[key] = api.create(key, key=key, max_output_tokens=2)
            except httpx.HTTPError:
                return

    kills = Kills(rng)
    evidence.keep("acknowledged.json", acknowledged)
    for round_number in range(4):
        with start_service(data_dir, env=QUICK) as service:
            api = Api(service)
            threads = [threading.Thread(target=submit, args=(api, f"r{round_number}c{c}")) for c in range(4)]
            for thread in threads:
                thread.start()
            kills.kill(service, start_s=0.6)
            for thread in threads:
                thread.join(30)
    assert acknowledged, "nothing was accepted before the kills"
    with start_service(data_dir, env=QUICK) as service:
        api = Api(service)
        assert len(acknowledged) <= count_tasks(api) <= len(tried)
        sample = rng.sample(sorted(acknowledged), min(60, len(acknowledged)))
        for key in sample:
            assert api.get(acknowledged[key])["id"] == acknowledged[key]
        unsure = sorted(tried - acknowledged.keys())
        for key in [*sample[:20], *unsure]:
            again = [api.create(key, key=key, max_output_tokens=2) for _ in range(2)]
            assert again[0] == again[1]
            assert acknowledged.get(key, again[0]) == again[0]
        assert service.stop() == 0
    assert_store_is_sound(data_dir)
