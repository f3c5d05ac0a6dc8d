"""Runs the tests that must notice a sabotage, in a copy of the tree in which it has been carried out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mutations.catalog import Edit, Sabotage
from tests.support.evidence import PLACE, REPLAY

ROOT = Path(__file__).parents[2]
COPIED = ("src", "tests", "tools", "docs", "pyproject.toml")
BOUND_S = 240
# A copy keeps its evidence to itself: what is replayed is the test of the gate.
_NOT_PASSED_ON = ("PYTEST_", "COV_", "LD_PRELOAD", PLACE, REPLAY)
_FAILED = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the tests made of it. `noticed_by` is empty when nobody noticed."""

    sabotage: Sabotage
    status: int
    seconds: float
    noticed_by: list[str]
    output: str

    @property
    def caught(self) -> bool:
        """Tests ran and failed; a tree that pytest can't even load is no proof of anything."""
        return self.status == 1 and bool(self.noticed_by)


def occurrences(edit: Edit, root: Path = ROOT) -> int:
    """How often the text to be replaced stands in its file."""
    path = root / "src" / "retoma" / edit.file
    return path.read_text().count(edit.old) if path.exists() else 0


def carry_out(sabotage: Sabotage, root: Path) -> None:
    """Changes the tree; an edit that does not fit exactly once is an error."""
    for edit in sabotage.edits:
        assert occurrences(edit, root) == 1, f"{sabotage.name}: the text is not there exactly once in {edit.file}"
        path = root / "src" / "retoma" / edit.file
        path.write_text(path.read_text().replace(edit.old, edit.new))


@contextmanager
def copied_tree() -> Iterator[Path]:
    """A copy in which everything that the tests start is this copy's as well."""
    with TemporaryDirectory(prefix="retoma-sabotage-") as name:
        for part in COPIED:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, Path(name) / part, ignore=shutil.ignore_patterns("__pycache__", ".ruff_cache"))
            else:
                shutil.copy(source, Path(name) / part)
        yield Path(name)


def attempt(sabotage: Sabotage) -> Outcome:
    """Carries a sabotage out in a copy, and runs its tests there."""
    with copied_tree() as root:
        carry_out(sabotage, root)
        return run_tests(sabotage, root)


def run_tests(sabotage: Sabotage, root: Path) -> Outcome:
    """Runs the sabotage's tests in this tree, up to the first that fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_PASSED_ON)}
    environment = kept | {"PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-rf", "--no-header", "-p", "no:cacheprovider"]
    began = time.monotonic()
    done = subprocess.run(
        [*command, *sabotage.tests],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    seconds = time.monotonic() - began
    return Outcome(sabotage, done.returncode, seconds, _FAILED.findall(done.stdout), done.stdout)
