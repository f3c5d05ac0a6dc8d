"""Every command of the pages for people works as it stands there; the few that can't be run here say why."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api import Api
from tests.support.command import run_retoma
from tests.support.gguf_file import write_tiny_model
from tests.support.service import RunningService, environment, start_service

DOCS = Path(__file__).parents[2] / "docs"
# Run by tests of their own, or written from the code.
ELSEWHERE = {"programs.md", "commands.md"}
# Beginning of a command → why it isn't run here.
NOT_RUN = {
    "python3 -m venv /opt/": "writes outside of the test's folder; .ci/run installs the same way",
    "/opt/retoma/bin/pip": "needs an index; .ci/run installs the same way",
    "cp packaging/retoma.service": "writes to /etc; tests/cli/test_supervisor.py has systemd verify the unit",
    "systemctl": "needs systemd as the first process",
    "journalctl": "needs systemd as the first process",
    "podman": "needs a container engine; tests/cli/test_supervisor.py looks at the file",
    "retoma serve": "runs until it is stopped; the service of every test is one",
    "retoma models add hf:": "needs the network; tests/cli/test_hub.py has a server of its own",
    "make ": "run by .ci/run",
    "pip install": "needs an index; .ci/run installs the same way",
}
# These need the store for themselves.
ALONE = ("retoma store compact",)
BOUND_S = 60


def commands(page: Path) -> list[list[str]]:
    """The blocks of a page, each a list of commands, continued lines put together."""
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    found = [re.findall(r"^\$ ((?:.*\\\n)*(?:.*'[^'\n]*\n[^']*'.*|.*))$", block, re.MULTILINE) for block in blocks]
    return [[command.partition("   #")[0].strip() for command in block] for block in found if block]


PAGES = [page for page in sorted(DOCS.glob("*.md")) if page.name not in ELSEWHERE and commands(page)]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    with start_service(tmp_path / "data") as running:
        api = Api(running)
        api.wait_finished(api.create(max_output_tokens=5))
        write_tiny_model(tmp_path / "qwen3-4b-q4_k_m.gguf")  # which docs/models.md adds
        yield running


def filled_in(command: str, service: RunningService, paired: dict[str, str]) -> str:
    """The command with this service's places and ids for those of the page."""
    if "pairings" in command:
        made = run_retoma("clients", "pair", "--json", "--data-dir", str(service.data_dir))
        command = command.replace("qdjy f6h6", json.loads(made.out)["code"].lower())
    command = re.sub(r"http://(127\.0\.0\.1|192\.168\.1\.20):8642", service.url, command)
    command = re.sub(r"~/\.local/share/retoma|/var/lib/retoma", str(service.data_dir), command)
    command = command.replace("/backup/", f"{service.data_dir.parent}/").replace("/opt/retoma/bin/", "")
    return re.sub("(?<!llm-)smollm2", "scripted", command.replace("cli_…", paired.get("id", "")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.timeout(180)
def test_the_commands_of_a_page_work(page: Path, service: RunningService) -> None:
    env = {
        **environment(),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(service.data_dir.parent),
        "RETOMA_DATA_DIR": str(service.data_dir),
        "RETOMA_URL": service.url,
    }
    paired: dict[str, str] = {}
    ran = 0
    later: list[str] = []
    for block in commands(page):
        known = ""
        for command in block:
            if any(command.startswith(beginning) for beginning in NOT_RUN):
                continue
            if command.startswith(ALONE):
                later.append(command)
                continue
            said = run(f"{known}\n{filled_in(command, service, paired)}", env, service.data_dir.parent)
            if re.match(r"(export )?\w+=", command):
                known += f"{filled_in(command, service, paired)}\n"
            if '"client":' in said:
                paired = json.loads(said)["client"]
            ran += 1
    assert service.stop() == 0
    for command in later:
        run(command, env, service.data_dir.parent)
    assert ran + len(later) or all(
        any(command.startswith(beginning) for beginning in NOT_RUN) for block in commands(page) for command in block
    )


def run(script: str, env: dict[str, str], folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-euc", script],
        env=env,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    if "/v1/" in script and "curl" in script:
        assert '"error":{' not in done.stdout, f"{script}\n{done.stdout}"
    return done.stdout


def test_every_link_between_the_pages_leads_somewhere() -> None:
    broken = [
        (page.name, link)
        for page in sorted(DOCS.glob("*.md"))
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        if not (DOCS / link).exists()
    ]
    assert broken == []
