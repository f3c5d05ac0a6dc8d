"""When a snapshot pays."""

from __future__ import annotations

import pytest

from retoma.core.snapshot_rule import WriteCost, decide_snapshot
from retoma.limits import SNAPSHOT_BYTES_MAX, SNAPSHOT_GAIN_MIN, SNAPSHOT_TIME_SHARE_MAX

WRITE_MS = 10.0
PAYS_MS = WRITE_MS * SNAPSHOT_GAIN_MIN
LONG_MS = WRITE_MS / SNAPSHOT_TIME_SHARE_MAX


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"unsaved_ms": PAYS_MS - 1}, False),
        ({"elapsed_ms": LONG_MS - 1}, False),
        ({"spent_ms": 1.0}, False),
        ({"state_bytes": SNAPSHOT_BYTES_MAX}, True),
        ({"state_bytes": SNAPSHOT_BYTES_MAX + 1}, False),
    ],
)
def test_a_snapshot_is_taken_when_it_saves_enough_and_its_share_of_time_and_disk_is_small(
    changes: dict[str, float], expected: bool
) -> None:
    facts = {"state_bytes": 1_000, "write_ms": WRITE_MS, "unsaved_ms": PAYS_MS, "spent_ms": 0.0, "elapsed_ms": LONG_MS}
    assert decide_snapshot(**(facts | changes)) is expected


def test_the_first_write_is_expected_to_be_slow_and_the_next_like_the_last() -> None:
    assert WriteCost().expected_ms(1_000_000) == pytest.approx(7.0)
    last = WriteCost(last_ms=8.0, last_bytes=1_000)
    assert last.expected_ms(500) == 8.0
    assert last.expected_ms(3_000) == 24.0
    assert WriteCost(last_ms=2.0, last_bytes=0).expected_ms(3) == 6.0
