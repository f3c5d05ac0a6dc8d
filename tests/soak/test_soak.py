"""The short soak: two services, clients and a monkey for three quarters of a minute; `make soak` runs it for longer."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.conftest import SEED
from tools.soak import SOMETIMES, replay_command, report, soak

SECONDS = 45.0


@pytest.mark.requirement("P-11.2-startup", "S-002", "S-005", "S-006", "S-002a", "S-002b", "S-006a", "S-006b")
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("soak")
def test_nothing_that_a_client_was_told_is_ever_contradicted_whatever_the_monkey_does() -> None:
    folder = Path(mkdtemp(prefix="retoma-soak-"))
    ledger = soak(folder / "data", SEED, SECONDS)
    again = f"the data is in {folder}; the same again: {replay_command(SEED, SECONDS)}"
    assert ledger.problems == [], again
    assert all(ledger.counts[name] for name in SOMETIMES), f"{report(ledger)}; {again}"
    shutil.rmtree(folder)
