"""What becomes of a task whose instance, or whose engine, has died."""

from __future__ import annotations

import pytest

from retoma.core.crash import CrashCount, decide_after_crash
from retoma.core.restart import RESTART, decide_restart
from retoma.core.task import UNFINISHED, Command, OnRestart, State
from retoma.limits import CRASHES_WITHOUT_PROGRESS_MAX

# The table of P-11.3 as it stands in the specification: found state; fail, retry, resume.
SPECIFIED = {
    "queued": ("failed", "queued", "queued"),
    "loading": ("failed", "queued", "queued"),
    "running": ("failed", "queued", "running"),
    "cancelling": ("cancelled", "cancelled", "cancelled"),
}
CELLS = [
    (State(found), OnRestart(policy), State(reached))
    for found, row in SPECIFIED.items()
    for policy, reached in zip(("fail", "retry", "resume"), row, strict=True)
]


@pytest.mark.requirement("P-11.3-table")
@pytest.mark.parametrize(("found", "policy", "reached"), CELLS)
def test_a_left_behind_task_moves_as_the_specification_says(found: State, policy: OnRestart, reached: State) -> None:
    command, state = decide_restart(found, policy)
    assert state is reached
    assert (command is Command.CONTINUE) == (found is State.RUNNING and policy is OnRestart.RESUME)


@pytest.mark.requirement("P-11.2-startup")
def test_the_restart_table_knows_every_unfinished_state_and_policy() -> None:
    assert {state: set(row) for state, row in RESTART.items()} == {state: set(OnRestart) for state in UNFINISHED}


def test_crashes_at_the_same_place_are_counted() -> None:
    count = CrashCount(0, 0)
    for expected in (1, 2, 3):
        count = count.after_crash_at(0)
        assert count == CrashCount(expected, 0)


def test_progress_beyond_the_furthest_place_starts_the_count_again() -> None:
    count = CrashCount(2, 10).after_crash_at(11)
    assert count == CrashCount(1, 11)


@pytest.mark.parametrize("tokens", [0, 9, 10])
def test_a_repetition_that_gets_no_further_is_no_progress(tokens: int) -> None:
    assert CrashCount(2, 10).after_crash_at(tokens) == CrashCount(3, 10)


@pytest.mark.parametrize("state", UNFINISHED)
@pytest.mark.parametrize("policy", OnRestart)
def test_a_text_that_kills_its_engine_again_and_again_fails_unless_it_is_being_cancelled(
    state: State, policy: OnRestart
) -> None:
    below = CrashCount(CRASHES_WITHOUT_PROGRESS_MAX - 1, 5)
    assert decide_after_crash(state, policy, below) is RESTART[state][policy]
    expected = Command.CONFIRM_CANCEL if state is State.CANCELLING else Command.FAIL
    assert decide_after_crash(state, policy, CrashCount(CRASHES_WITHOUT_PROGRESS_MAX, 5)) is expected
