"""What a failing test leaves behind, from outside: pytest runs in copies of the tree, and what failed is replayed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.mutations.catalog import SABOTAGES
from tests.mutations.gate import carry_out, copied_tree
from tests.support import evidence
from tests.support.evidence import PLACE, REPLAY, Case
from tests.support.stores import template

pytestmark = pytest.mark.timeout(240)

SEED = 4711
DELIBERATE = """
import pytest
from hypothesis.stateful import RuleBasedStateMachine, rule
from hypothesis import given, seed, settings, strategies as st
from tests.support import evidence
from tests.support.service import start_service

def test_that_passes():
    evidence.keep("kept.json", [1])

@pytest.mark.parametrize("name", ["a b/../c", "d"])
def test_that_depends_on_the_seed(rng, name):
    drawn = []
    evidence.keep("drawn.json", drawn)
    evidence.keep("late.txt", lambda: f"{len(drawn)} numbers")
    evidence.keep("unwritable", lambda: 1 / 0)
    evidence.keep("huge", bytes(evidence.CASE_BYTES_MAX + 1))
    drawn += [rng.randrange(10**9) for _ in range(3)]
    assert drawn == name

def test_of_a_service(tmp_path):
    with start_service(tmp_path / "data") as service:
        assert service.url == "elsewhere"

@seed(evidence.SEED)
class Machine(RuleBasedStateMachine):
    total = 0

    @rule(by=st.integers(0, 1_000_000))
    def add(self, by):
        self.total += by
        assert self.total < 123_456

TestMachine = Machine.TestCase

@given(st.integers(0, 2**64))
@settings(max_examples=5)
def test_of_examples(number):
    with open("examples.txt", "a") as told:
        told.write(f"{number}\\n")

@given(st.integers(0, 2**64))
def test_of_a_bad_example(number):
    assert number < 10**12

@pytest.mark.timeout(4)
def test_that_never_ends():
    import threading
    evidence.keep("state.txt", "waiting")
    threading.Event().wait()
"""


@dataclass(frozen=True)
class Tree:
    """A copy of the project in which tests may fail."""

    root: Path

    def run(self, *command: str, **switches: str) -> tuple[int, str]:
        """The status and the output of one command there."""
        ours = {PLACE, REPLAY, "RETOMA_TEST_SEED", "CI"}
        kept = {name: text for name, text in os.environ.items() if name not in ours and not name.startswith("PYTEST_")}
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=self.root,
            env=kept | {"PYTHONPATH": str(self.root / "src"), **switches},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout

    def test(self, *arguments: str, **switches: str) -> tuple[int, str]:
        switches = {"RETOMA_TEST_SEED": str(SEED)} | switches
        return self.run("pytest", "-p", "no:cacheprovider", "-q", *arguments, **switches)

    def replay(self, folder: Path) -> tuple[int, str]:
        return self.run("tests.support.replay", str(folder))

    def kept(self) -> dict[str, Path]:
        """The evidence by the name of the test."""
        records = self.root.glob("evidence/*/replay.json")
        return {json.loads(path.read_text())["what"].partition("::")[2]: path.parent for path in records}


@pytest.fixture(scope="module")
def tree() -> Iterator[Tree]:
    with copied_tree() as root:
        (root / "tests" / "test_deliberate.py").write_text(DELIBERATE)
        yield Tree(root)


@pytest.fixture(scope="module")
def failed(tree: Tree) -> tuple[str, dict[str, Path]]:
    """What pytest said, and the evidence of each test that failed."""
    status, said = tree.test("tests/test_deliberate.py", "-k", "not never_ends", RETOMA_LEASE_S="3")
    assert status == 1, said
    return said, tree.kept()


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "replay.json").read_text())


OF_HYPOTHESIS = ("TestMachine::runTest", "test_of_a_bad_example")
A_B_C = "test_that_depends_on_the_seed[a b/../c]"


def test_only_what_fails_leaves_something_and_the_report_says_where_and_how_to_replay_it(
    failed: tuple[str, dict[str, Path]], tree: Tree
) -> None:
    said, kept = failed
    assert kept.keys() == {A_B_C, "test_that_depends_on_the_seed[d]", "test_of_a_service", *OF_HYPOTHESIS}
    for folder in kept.values():
        assert re.fullmatch(r"[A-Za-z0-9-]+-[0-9a-f]{6}-4711", folder.name)
        assert f"kept in {folder}\nagain: make replay FROM=evidence/{folder.name}\n" in said
    assert {path.name for path in (tree.root / "evidence").iterdir()} == {folder.name for folder in kept.values()}


def test_a_record_says_all_that_the_failure_may_depend_on(failed: tuple[str, dict[str, Path]]) -> None:
    found = record(failed[1][A_B_C])
    assert found["command"] == ["pytest", f"tests/test_deliberate.py::{A_B_C}"]
    assert found["seed"] == SEED
    assert found["switches"] == {"RETOMA_LEASE_S": "3", "RETOMA_TEST_SEED": str(SEED)}
    assert found["failed"].startswith("AssertionError: assert [")
    assert found["versions"].keys() >= {"python", "sqlite", "system"}
    assert found["commit"]


def test_what_was_handed_over_is_as_it_was_when_the_test_failed_and_has_a_bound(
    failed: tuple[str, dict[str, Path]],
) -> None:
    folder = failed[1][A_B_C]
    drawn = json.loads((folder / "drawn.json").read_text())
    assert len(drawn) == 3
    assert (folder / "late.txt").read_text() == "3 numbers"
    assert str(drawn[0]) in record(folder)["failed"]
    assert str(drawn[0]) in (folder / "failure.txt").read_text()
    huge, unwritable = sorted(record(folder)["left_out"])
    assert huge.startswith("huge: ")
    assert "ZeroDivisionError" in unwritable


def test_the_log_and_the_store_of_a_service_are_kept(failed: tuple[str, dict[str, Path]]) -> None:
    folder = failed[1]["test_of_a_service"]
    (log,) = folder.glob("service-*.log")
    assert "http://127.0.0.1" in log.read_text()
    assert (folder / "data-data" / "retoma.db").read_bytes().startswith(b"SQLite format 3")
    assert not list(folder.rglob("*.token"))


@pytest.mark.parametrize(("name", "step"), [(OF_HYPOTHESIS[0], "state.add(by="), (OF_HYPOTHESIS[1], "number=")])
def test_an_example_of_hypothesis_is_kept_with_what_reproduces_it(
    failed: tuple[str, dict[str, Path]], name: str, step: str
) -> None:
    folder = failed[1][name]
    notes = (folder / "notes.txt").read_text()
    assert step in notes
    assert "@reproduce_failure(" in notes
    assert any(path.is_file() for path in (folder / "hypothesis").rglob("*"))


@pytest.mark.parametrize("name", [A_B_C, *OF_HYPOTHESIS])
def test_a_replay_fails_in_the_same_way_whatever_the_seed_is_now(
    failed: tuple[str, dict[str, Path]], tree: Tree, name: str
) -> None:
    folder = failed[1][name]
    before = sorted(folder.rglob("*"))
    status, said = tree.replay(folder)
    assert status == 1, said
    assert "it failed in the same way" in said
    assert f"RETOMA_TEST_SEED={SEED}" in said
    assert sorted(folder.rglob("*")) == before
    assert tree.kept() == failed[1], "a replay has left evidence of its own"


def test_hypothesis_draws_from_the_printed_seed(failed: tuple[str, dict[str, Path]], tree: Tree) -> None:
    examples = tree.root / "examples.txt"
    drawn: list[str] = [examples.read_text()]
    for seed in (SEED, SEED + 1):
        examples.unlink()
        status, said = tree.test("tests/test_deliberate.py::test_of_examples", RETOMA_TEST_SEED=str(seed))
        assert status == 0, said
        drawn.append(examples.read_text())
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_test_that_hangs_leaves_its_evidence_before_it_takes_its_process_with_it(tree: Tree) -> None:
    status, said = tree.test("tests/test_deliberate.py", "-k", "never_ends")
    assert status == 1
    folder = tree.kept()["test_that_never_ends"]
    assert record(folder)["failed"] == "not ended after 4 s"
    assert (folder / "state.txt").read_text() == "waiting"
    assert f"again: make replay FROM=evidence/{folder.name}" in said
    shutil.rmtree(folder)


# An image


POWER = "test_whatever_a_power_cut_leaves_behind_holds_what_was_acknowledged"


@pytest.mark.requirement("S-005")
def test_the_image_of_a_power_cut_is_kept_and_a_replay_looks_at_that_very_image() -> None:
    (normal,) = (one for one in SABOTAGES if one.name == "synchronous = NORMAL")
    with copied_tree() as sabotaged, copied_tree() as sound:
        carry_out(normal, sabotaged)
        status, said = Tree(sabotaged).test(f"tests/transactions/test_power_loss.py::{POWER}")
        assert status == 1, said
        folder = Tree(sabotaged).kept()[POWER]
        assert (folder / "image" / "retoma.db").is_file()
        where = json.loads((folder / "image.json").read_text())["where"]
        assert where[:6] in record(folder)["failed"]
        # The code is as it should be here; what is looked at is the image, which is as it was.
        status, said = Tree(sound).replay(folder)
        assert (status, "it failed in the same way" in said) == (1, True), said
        # In the place of the image a store that nobody was told anything of.
        shutil.rmtree(folder / "image")
        (folder / "image").mkdir()
        shutil.copy(template(), folder / "image" / "retoma.db")
        (folder / "image.json").write_text(json.dumps({"where": where, "facts": {"told": {}}}))
        status, said = Tree(sound).replay(folder)
        assert (status, "it does not fail any more" in said) == (0, True), said


# Commands


def test_a_soak_that_fails_is_kept_in_the_same_form(tree: Tree) -> None:
    """One second is too short for all that must have happened, so it fails."""
    place = tree.root / "elsewhere"
    status, said = tree.run("tools.soak", "--seed", "5", "--seconds", "1", **{PLACE: str(place)})
    assert status == 1, said
    (folder,) = place.iterdir()
    assert f"kept in {folder}\nagain: make replay FROM={folder.relative_to(tree.root)}\n" in said
    found = record(folder)
    assert (found["command"], found["seed"]) == (["tools.soak", "--seed", "5", "--seconds", "1"], 5)
    assert found["failed"].startswith("it never happened: ")
    assert {"ledger.json", "monkey.txt", "problems.txt", "data-data"} <= {path.name for path in folder.iterdir()}
    assert len(list(folder.glob("service-*.log"))) >= 2
    again, said = tree.replay(folder)
    assert again == 1
    assert "it never happened: " in said


def test_a_folder_without_a_record_is_bad_usage(tree: Tree) -> None:
    status, said = tree.replay(tree.root / "docs")
    assert status == 2
    assert "make replay FROM=evidence/NAME" in said


def test_make_replay_replays() -> None:
    """Said, not done: the target would set up an environment first where there is none."""
    makefile = evidence.ROOT / "Makefile"
    if not makefile.is_file() or shutil.which("make") is None:
        pytest.skip("no make, or a copy without a Makefile")
    command = ["make", "-C", str(evidence.ROOT), "--dry-run", "--touch", "replay", "FROM=evidence/x y"]
    done = subprocess.run(command[:4] + command[5:], capture_output=True, text=True, timeout=30, check=False)
    assert '-m tests.support.replay "evidence/x y"' in done.stdout


def test_a_password_is_not_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLACE, str(tmp_path))
    monkeypatch.setenv(evidence.POSTGRES, "postgresql://me:secret@db.example/retoma")
    monkeypatch.delenv(REPLAY, raising=False)
    present = evidence._case
    evidence.begin(Case("a case", ["none"]))
    try:
        folder = evidence.write("it failed", {})
    finally:
        assert present is not None
        evidence.begin(present)
    assert folder is not None
    assert record(folder)["switches"][evidence.POSTGRES] == "postgresql://me:***@db.example/retoma"
