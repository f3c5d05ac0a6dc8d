"""docs/state.md names every durable state there is."""

from __future__ import annotations

import re
from pathlib import Path

import apsw
import pytest

from retoma.failpoints import Failpoint
from tests.support.stores import template

PAGE = Path(__file__).parents[2] / "docs" / "state.md"
FILES = ("retoma.db", "models/sha256/", "models/incoming/", "snapshots/", "instances/", "admin.token", "retoma.toml")


@pytest.mark.requirement("S-001")
@pytest.mark.requirement("P-11.1-tables")
def test_the_state_page_has_a_row_for_every_table_of_the_schema() -> None:
    connection = apsw.Connection(str(template()))
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    connection.close()
    described = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE))
    assert described == {table for table in tables if not table.startswith("sqlite_")}


@pytest.mark.requirement("S-001")
def test_the_state_page_has_a_row_for_every_kind_of_file() -> None:
    text = PAGE.read_text()
    assert [file for file in FILES if f"| `{file}" not in text] == []


@pytest.mark.requirement("S-005")
@pytest.mark.requirement("S-007")
def test_every_failpoint_of_the_service_stands_in_the_table_of_steps() -> None:
    text = PAGE.read_text()
    missing = [
        point.label
        for point in Failpoint
        if f"`{point.label}`" not in text and f"`{point.label.partition('.')[0]}.*`" not in text
    ]
    assert missing == ["register.committed", "engine.prefilled", "engine.token"], "no step of an operation on the store"
