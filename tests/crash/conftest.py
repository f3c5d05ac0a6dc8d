"""Tests of real processes run on both stores when they ask for `data_dir`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.places import place_on
from tests.support.postgres import wait_past_grace


@pytest.fixture(params=["sqlite", "postgres"])
def data_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A data directory of its own, on a store of its own."""
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        wait_past_grace(url)
        return place_on(url, tmp_path / "data")
    return tmp_path / "data"
