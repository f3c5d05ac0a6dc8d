"""Renders docs/requirements.md: each requirement and the tests that check it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from tools.requirement_ids import CHECKS, REQUIREMENTS
from tools.requirement_markers import Marked, markers
from tools.tree import ROOT

_HEAD = """\
# Requirements and the tests that check them

Written by `make docs` from the markers in `tests/`; a test fails when this page is stale or a requirement has no test.
Ids that begin with P are from chapter 11, persistence, of the local AI service specification; those that begin with S
are from the BE-STATE profile for stateful backends, which also names the checks with letters.
"""


def render() -> str:
    """The page as it should be now."""
    rules = with_checks()
    by_id: dict[str, list[Marked]] = {requirement: [] for requirement in rules}
    for marked in markers(ROOT / "tests"):
        by_id.setdefault(marked.requirement, []).append(marked)
    sections = [_section(requirement, rule, by_id[requirement]) for requirement, rule in rules.items()]
    return "\n".join([_HEAD, *sections])


def with_checks() -> dict[str, str]:
    """Every id that must have a test, each requirement before the checks that are asked for it."""
    rules: dict[str, str] = {}
    for requirement, rule in REQUIREMENTS.items():
        rules[requirement] = rule
        rules |= {check: asked for check, asked in CHECKS.items() if check[:-1] == requirement}
    return rules


def _section(requirement: str, rule: str, tests: Iterable[Marked]) -> str:
    lines = [f"##{'#' * (requirement in CHECKS)} {requirement}", "", rule, ""]
    for path, group in groupby(tests, key=lambda marked: marked.path):
        lines.append(f"* [{path}](../{path})")
        lines += [f"  * `{marked.test}`" for marked in group]
    if lines[-1] == "":
        lines.append("*No test yet.*")
    return "\n".join([*lines, ""])
