"""Shared by all tests: a seed that is printed, evidence of what fails, a store, and a world around it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from retoma.store.postgres import PostgresStore
from retoma.store.sqlite import SqliteStore
from tests.support.evidence import SEED
from tests.support.postgres import NoServer, find_server, new_postgres_store, new_schema
from tests.support.stores import new_store
from tests.support.world import World

__all__ = ["SEED"]
pytest_plugins = ["tests.support.evidence_plugin"]


@pytest.fixture
def rng() -> Random:
    """Random choices of one test; another seed comes from RETOMA_TEST_SEED."""
    return Random(SEED)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    made = new_store(tmp_path)
    yield made
    made.close()


@pytest.fixture
def world(store: SqliteStore) -> World:
    return World(store)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server: RETOMA_TEST_POSTGRES, else one of this test process's own."""
    try:
        with find_server() as url:
            yield url
    except NoServer as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no PostgreSQL: {missing}")


@pytest.fixture
def postgres_url(postgres: str) -> str:
    """The URL of an empty schema."""
    return new_schema(postgres)


@pytest.fixture
def postgres_store(postgres_url: str) -> Iterator[PostgresStore]:
    made = new_postgres_store(postgres_url)
    yield made
    made.close()


@pytest.fixture(scope="session")
def shared_postgres_store(postgres: str) -> Iterator[PostgresStore]:
    """One store for many short tests; whoever uses it empties it."""
    made = new_postgres_store(new_schema(postgres))
    yield made
    made.close()
