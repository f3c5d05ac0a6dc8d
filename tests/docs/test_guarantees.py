"""What docs/guarantees.md points to is there."""

from __future__ import annotations

import re

import pytest

from tools.tree import ROOT

PAGE = ROOT / "docs" / "guarantees.md"
LINKS = sorted(set(re.findall(r"\]\(([^)#:]+)\)", PAGE.read_text())))


@pytest.mark.parametrize("link", LINKS)
def test_a_suite_that_is_named_exists(link: str) -> None:
    assert (PAGE.parent / link).exists()


def test_every_promise_names_a_suite() -> None:
    promises = re.findall(r"^\| (I\d+) \| (.+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert len(promises) > 12
    assert [name for name, _, suite in promises if "](../tests/" not in suite and "checker" not in suite] == []
