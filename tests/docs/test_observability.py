"""docs/observability.md lists exactly the metrics that there are, and its queries and alerts name only those."""

from __future__ import annotations

import re

import pytest

from retoma.http.guard import SCOPES
from retoma.metrics import Metrics
from tools.tree import ROOT

PAGE = (ROOT / "docs" / "observability.md").read_text()
DESCRIBED = Metrics().described


def test_every_metric_is_listed_with_its_type_labels_and_meaning() -> None:
    expected = [
        f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {meaning} |"
        for name, kind, labels, meaning in DESCRIBED
    ]
    assert [line for line in PAGE.splitlines() if line.startswith("| `retoma_")] == expected


@pytest.mark.parametrize("named", sorted(set(re.findall(r"\bretoma_[a-z_]+", PAGE))))
def test_a_metric_that_is_named_anywhere_exists(named: str) -> None:
    names = {one.name for one in DESCRIBED}
    histograms = [one.name for one in DESCRIBED if one.kind == "histogram"]
    parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "count", "sum")}
    assert named in names | parts


def test_a_route_that_is_named_in_a_query_exists() -> None:
    routes = re.findall(r'method="(\w+)", route="([^"]+)"', PAGE)
    assert routes
    assert set(routes) <= SCOPES.keys()
