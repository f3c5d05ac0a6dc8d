"""The short soak: two services, clients and a monkey for three quarters of a minute; `make soak` runs it for longer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import SEED
from tools.soak import SOMETIMES, report, soak

SECONDS = 45.0


@pytest.mark.requirement("P-11.2-startup", "S-002", "S-005", "S-006", "S-002a", "S-002b", "S-006a", "S-006b")
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("soak")
def test_nothing_that_a_client_was_told_is_ever_contradicted_whatever_the_monkey_does(tmp_path: Path) -> None:
    ledger = soak(tmp_path / "data", SEED, SECONDS)
    assert ledger.problems == []
    assert all(ledger.counts[name] for name in SOMETIMES), report(ledger)
    shutil.rmtree(tmp_path / "data")
