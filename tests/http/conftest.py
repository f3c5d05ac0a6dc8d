"""Fixtures of the HTTP tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.http.service import Server, running
from tests.support.gguf_file import write_tiny_model
from tests.support.postgres import new_schema

# What the others check is decided before the store is asked.
ON_BOTH_STORES = {"test_openai_client", "test_routes", "test_service", "test_stream"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in ON_BOTH_STORES and "server" in metafunc.fixturenames:
        metafunc.parametrize("server", ["sqlite", "postgres"], indirect=True, scope="module")


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("service"), keep_alive_s=0.5, store=store_of(request)) as started:
        yield started


def store_of(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store of the kind that the test is for; nothing for the data directory's own."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return ""
    return new_schema(request.getfixturevalue("postgres"))


@pytest.fixture
def api(server: Server) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


@pytest.fixture
def ai(server: Server) -> Iterator[openai.OpenAI]:
    with server.openai() as client:
        yield client


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "model.gguf")
