"""Every requirement has a test that says so, and the page that lists them is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.requirement_ids import CHECKS, REQUIREMENTS
from tools.requirement_markers import Marked, markers
from tools.requirements_page import with_checks
from tools.tree import ROOT


def test_every_requirement_has_a_test() -> None:
    tested = {marked.requirement for marked in markers(ROOT / "tests")}
    assert [requirement for requirement in with_checks() if requirement not in tested] == []


def test_every_check_belongs_to_a_requirement() -> None:
    assert with_checks().keys() == REQUIREMENTS.keys() | CHECKS.keys()


def test_every_marker_names_a_requirement_that_exists() -> None:
    assert [marked for marked in markers(ROOT / "tests") if marked.requirement not in with_checks()] == []


def test_markers_are_found_wherever_pytest_takes_them(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_sample.py").write_text(
        "import pytest\n"
        "pytestmark = pytest.mark.requirement('A')\n"
        "@pytest.mark.requirement('B', 'C')\n"
        "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.requirement('D'))])\n"
        "async def test_one(x): ...\n"
        "class TestAll:\n"
        "    @pytest.mark.requirement('E')\n"
        "    def test_two(self): ...\n"
    )
    assert [(marked.requirement, marked.test) for marked in markers(tests)] == [
        ("A", "every test of the file"),
        ("B", "test_one"),
        ("C", "test_one"),
        ("D", "test_one"),
        ("E", "TestAll::test_two"),
    ]
    assert markers(tests)[0] == Marked("A", "tests/test_sample.py", "every test of the file")


def test_an_id_that_is_computed_is_refused(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_sample.py").write_text("import pytest\npytestmark = pytest.mark.requirement(NAME)\n")
    with pytest.raises(SyntaxError, match="write a requirement's id out"):
        markers(tests)
