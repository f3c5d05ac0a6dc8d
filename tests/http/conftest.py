"""Fixtures of the HTTP tests."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.http.service import Server, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("service"), keep_alive_s=0.5) as started:
        yield started


@pytest.fixture
def api(server: Server) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


@pytest.fixture
def ai(server: Server) -> Iterator[openai.OpenAI]:
    with server.openai() as client:
        yield client
