"""The gate itself is kept in order, and a sample of it is run every time."""

from __future__ import annotations

import ast
from pathlib import Path
from random import Random

import pytest

from tests.conftest import SEED
from tests.mutations.catalog import SABOTAGES, Edit, Sabotage
from tests.mutations.gate import ROOT, attempt, carry_out, occurrences
from tests.support import evidence

SAMPLE = 2
sampled = Random(SEED).sample(SABOTAGES, SAMPLE)


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.name)
def test_a_sabotage_fits_into_the_source_exactly_once(sabotage: Sabotage) -> None:
    for edit in sabotage.edits:
        assert occurrences(edit) == 1, f"{edit.file} has changed; the sabotage must be written again:\n{edit.old}"
        assert edit.new != edit.old


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.name)
def test_the_tests_of_a_sabotage_are_there(sabotage: Sabotage) -> None:
    for node in sabotage.tests:
        file, _, test = node.partition("::")
        names = {one.name for one in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(one, ast.FunctionDef)}
        assert not test or test.partition("[")[0] in names, node


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.name)
def test_a_sabotaged_module_can_still_be_loaded(sabotage: Sabotage, tmp_path: Path) -> None:
    for file in {edit.file for edit in sabotage.edits}:
        path = tmp_path / "src" / "retoma" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((ROOT / "src" / "retoma" / file).read_text())
    carry_out(sabotage, tmp_path)
    for path in (tmp_path / "src").rglob("*.py"):
        compile(path.read_text(), str(path), "exec")


def test_the_names_of_the_sabotages_are_different() -> None:
    assert len({sabotage.name for sabotage in SABOTAGES}) == len(SABOTAGES) >= 20


def test_a_text_that_is_not_there_is_an_error() -> None:
    wrong = Sabotage("none", (Edit("errors.py", "no such text", ""),), ())
    with pytest.raises(AssertionError, match="not there exactly once"):
        carry_out(wrong, ROOT)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("sabotage", sampled, ids=lambda sabotage: sabotage.name)
def test_a_sabotage_is_noticed(sabotage: Sabotage) -> None:
    """Two of them, by the printed seed; `make mutations` runs all."""
    outcome = attempt(sabotage)
    evidence.keep("output.txt", outcome.output)
    assert outcome.caught, outcome.output
