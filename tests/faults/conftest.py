"""The server of processes whose disk fails, and what is looked at after each of them."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from retoma.store.migrate import prepare
from tests.faults.flow import MODEL_BYTES, Plan, Seen, fill, look, state_before
from tests.support import processes, shim
from tests.support.shim import Action, Fault


class Faults:
    """A data directory, put back to what it is before a step, and the server that forks those who work on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.data_dir.mkdir()
        prepare(self.data_dir / "retoma.db", 0)
        fill(self.data_dir / "retoma.db")
        (folder / "source.gguf").write_bytes(MODEL_BYTES)
        self._server = _server(self.data_dir, shim.built())
        assert self.ask("plan")["status"] == 0
        self.plan: Plan = pickle.loads((folder / "plan").read_bytes())  # noqa: S301 - written by the line before

    def ask(self, verb: str, *arguments: Any) -> dict[str, Any]:
        processes.tell(self._server, json.dumps([verb, *arguments]))
        return json.loads(processes.line(self._server))

    def put_back(self, step: int = 0) -> None:
        """The directory as it is before this step."""
        self.put(state_before(self.data_dir, step))

    def put(self, folder: Path) -> None:
        """The directory as a copy of another."""
        shutil.rmtree(self.data_dir, ignore_errors=True)
        shutil.copytree(folder, self.data_dir)

    def end_of(self, step: int) -> int:
        """One more step is done behind the one that the fault is in: a store that was hurt must go on."""
        return min(step + 2, len(self.plan.steps))

    def drive(self, step: int, end: int, fault: Fault | None = None) -> dict[str, Any]:
        fault = fault or Fault(Action.COUNT, 0)
        return self.ask("drive", step, end, [fault.action, fault.at, fault.for_good])

    def crashed(self) -> Path:
        """A copy of the directory, as it is found after a crash: without SQLite's shared index."""
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.data_dir, copy, ignore=shutil.ignore_patterns("*-shm"))
        return copy

    def seen(self) -> Seen:
        """What somebody finds who opens the directory as it is now."""
        return look(self.crashed())

    def close(self) -> None:
        assert processes.end(self._server) == 0


def _server(data_dir: Path, library: Path) -> subprocess.Popen[str]:
    assert "LD_PRELOAD" not in os.environ
    os.environ["LD_PRELOAD"] = str(library)
    try:
        return processes.python("tests.faults.server", str(data_dir))
    finally:
        del os.environ["LD_PRELOAD"]


@pytest.fixture(scope="module")
def faults() -> Iterator[Faults]:
    with TemporaryDirectory(prefix="retoma-faults-") as folder:
        made = Faults(Path(folder))
        yield made
        made.close()
