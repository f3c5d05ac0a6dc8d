"""When a wall clock is believed: a table of sightings, one after another."""

from __future__ import annotations

import pytest

from retoma.core.clock_watch import DOUBTED_FOR_MS, FAR_AHEAD_MS, JUMP_MS, Sighting, Watch, is_far_ahead, look_again

NOW, MINUTE, YEAR = 1_800_000_000_000, 60_000, 365 * 86_400_000
Step = tuple[int, int, int | None]
"""How far the boot clock went on, how far the wall clock did, and when the last task ended (before `NOW`)."""


def believed(*steps: Step) -> list[bool]:
    boot, wall, watch, found = 0, NOW, None, []
    for boot_step, wall_step, newest in steps:
        boot, wall = boot + boot_step, wall + wall_step
        watch = look_again(watch, Sighting(wall, boot, None if newest is None else NOW + newest))
        found.append(watch.believed)
    return found


STEADY: Step = (MINUTE, MINUTE, 0)
CASES: dict[str, tuple[list[Step], list[bool]]] = {
    "a steady clock": ([STEADY] * 3, [True] * 3),
    "an empty store": ([(0, 0, None), (MINUTE, MINUTE, None)], [True, True]),
    "a service that sleeps with its machine": ([STEADY, (YEAR, YEAR, 0)], [True, True]),
    "a small correction": ([STEADY, (MINUTE, MINUTE + JUMP_MS, 0)], [True, True]),
    "a jump ahead": ([STEADY, (MINUTE, 10 * YEAR, 0), STEADY], [True, False, False]),
    "a jump ahead and back": ([STEADY, (MINUTE, 10 * YEAR, 0), (MINUTE, -10 * YEAR, 0)], [True, False, True]),
    "a jump ahead that stands": ([STEADY, (MINUTE, YEAR, 0), (DOUBTED_FOR_MS, DOUBTED_FOR_MS, 0)], [True, False, True]),
    "a jump back": ([STEADY, (MINUTE, -YEAR, 0), STEADY], [True, True, True]),
    "a correction after a start in the past": ([(0, -YEAR, -YEAR), (MINUTE, YEAR, -YEAR)], [True, False]),
    "a start far ahead": ([(0, 0, -FAR_AHEAD_MS - 1), STEADY], [False, False]),
    "a start after a day": ([(0, 0, -FAR_AHEAD_MS)], [True]),
    "a start far ahead that stands": (
        [(0, 0, -YEAR), (DOUBTED_FOR_MS - 1, DOUBTED_FOR_MS - 1, -YEAR), (1, 1, -YEAR)],
        [False, False, True],
    ),
    "another instance whose clock is right goes on": (
        [(0, 0, -YEAR), (DOUBTED_FOR_MS, DOUBTED_FOR_MS, MINUTE - YEAR), (MINUTE, MINUTE, MINUTE - YEAR)],
        [False, False, False],
    ),
    "its own labels are no evidence": ([(0, 0, -YEAR), STEADY], [False, False]),
    "the newest is deleted": (
        [(0, 0, 0), (2 * FAR_AHEAD_MS, 2 * FAR_AHEAD_MS, -YEAR), (MINUTE, MINUTE, -YEAR)],
        [True, True, True],
    ),
}


@pytest.mark.requirement("P-11.2-retain")
@pytest.mark.parametrize("case", CASES)
def test_a_clock_is_believed_by_what_was_seen_of_it(case: str) -> None:
    steps, expected = CASES[case]
    assert believed(*steps) == expected


def test_a_doubt_says_why() -> None:
    first = look_again(None, Sighting(NOW, 0, NOW - YEAR))
    assert "ahead of everything" in first.doubt
    assert "jumped" in look_again(Watch(Sighting(NOW, 0, NOW)), Sighting(NOW + YEAR, 0, NOW)).doubt


def test_a_store_without_a_finished_task_is_behind_no_clock() -> None:
    assert not is_far_ahead(NOW, None)
