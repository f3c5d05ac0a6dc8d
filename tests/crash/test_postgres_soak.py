"""Three services on one PostgreSQL under the monkey of tools/soak.py, with the whole server restarted in the middle."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tools.soak
from tests.conftest import SEED
from tests.support import evidence
from tests.support.places import place_on
from tests.support.postgres import NoServer, PostgresServer, dump, new_schema
from tools.soak import SOMETIMES, report, soak

SECONDS = 25.0
SEEN_IN_TIME = tuple(name for name in SOMETIMES if name != "deleted")  # which clients do too seldom for a short run


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    try:
        made = PostgresServer()
    except NoServer as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no PostgreSQL of our own to stop: {missing}")
    yield made
    made.close()


class Restarts:
    """Restarts the server once, in the middle of the run."""

    def __init__(self, server: PostgresServer) -> None:
        self.done = 0
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        if not self._over.wait(SECONDS / 2):
            self._server.stop("fast")
            self._server.start()
            self.done += 1

    def end(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.mark.requirement("S-002", "S-003", "S-005", "S-006", "P-11.2-persist")
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("soak")
def test_three_services_on_postgresql_contradict_nothing_whatever_the_monkey_does(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tools.soak, "SERVICES", 3)
    monkeypatch.setattr(tools.soak, "SOMETIMES", SEEN_IN_TIME)
    url = new_schema(server.url)
    data_dir = place_on(url, tmp_path / "data")
    evidence.keep("rows.json", lambda: dump(url))
    restarts = Restarts(server)
    try:
        ledger = soak(data_dir, SEED, SECONDS)
    finally:
        restarts.end()
    assert ledger.problems == []
    assert restarts.done == 1, "the server was never restarted"
    assert all(ledger.counts[name] for name in SEEN_IN_TIME), report(ledger)
    shutil.rmtree(data_dir)
