"""The generated pages and the locks fit what they are made from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import docs
from tools.lock import locks
from tools.tree import ROOT


@pytest.mark.parametrize("page", docs.PAGES)
def test_a_generated_page_is_fresh(page: str) -> None:
    assert (ROOT / page).read_text() == docs.PAGES[page](), "run `make docs`"


def test_a_page_that_was_edited_by_hand_is_stale(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "state-machine.md"
    page.parent.mkdir()
    page.write_text(docs.PAGES["docs/state-machine.md"]() + "by hand\n")
    assert "docs/state-machine.md" in docs.stale_pages(tmp_path)


@pytest.mark.parametrize("lock", locks(), ids=lambda lock: lock.path.name)
def test_a_lock_was_made_from_the_present_requirements(lock) -> None:
    assert lock.fresh, "run `make lock`"


@pytest.mark.parametrize("lock", locks(), ids=lambda lock: lock.path.name)
def test_a_lock_pins_and_names_no_address(lock) -> None:
    text = lock.path.read_text()
    pins = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert pins
    assert all("==" in pin for pin in pins)
    assert text.count("--hash=sha256:") >= len(pins)
    assert "://" not in text
    assert "--index" not in text
    assert "--find-links" not in text
