"""Every test of the transactions that asks for a store, or for a world around one, is run on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from retoma.store.migrate_postgres import prepare
from tests.support.postgres import empty
from tests.support.stores import new_file, new_store

if TYPE_CHECKING:
    from retoma.store.contract import Store


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "sqlite":
        made = new_store(tmp_path)
        yield made
        made.close()
        return
    shared = request.getfixturevalue("shared_postgres_store")
    empty(shared)
    shared.listen(lambda thunk: thunk(), lambda _: None)
    yield shared


@pytest.fixture(params=["sqlite", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The file or the URL of an empty store, for tests with several processes."""
    if request.param == "sqlite":
        return str(new_file(tmp_path))
    url: str = request.getfixturevalue("postgres_url")
    prepare(url, 0)
    return url
