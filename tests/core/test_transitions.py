"""Every state with every command, against a table written down a second time."""

from __future__ import annotations

from itertools import product

import pytest

from retoma.core.task import FINISHED, UNFINISHED, WIRE_STATUS, Command, State
from retoma.core.transitions import TRANSITIONS, next_state
from retoma.errors import IllegalTransition

# One line per state, one column per command in the order of the enum; `-`: forbidden.
#            claim    start    continue append   complete   fail    requeue  cancel      confirm_cancel
EXPECTED = """
queued       loading  -        -        -        -          failed  queued   cancelled   -
loading      -        running  -        -        -          failed  queued   cancelling  -
running      -        -        running  running  completed  failed  queued   cancelling  -
cancelling   -        -        -        -        -          -       -        -           cancelled
completed    -        -        -        -        -          -       -        -           -
failed       -        -        -        -        -          -       -        -           -
cancelled    -        -        -        -        -          -       -        -           -
"""
TABLE = {
    (State(line.split()[0]), command): cell
    for line in EXPECTED.strip().splitlines()
    for command, cell in zip(Command, line.split()[1:], strict=True)
}


@pytest.mark.parametrize(("state", "command"), list(product(State, Command)))
def test_a_command_leads_where_the_table_says_or_is_refused(state: State, command: Command) -> None:
    cell = TABLE[state, command]
    if cell != "-":
        assert next_state(state, command) is State(cell)
        return
    with pytest.raises(IllegalTransition) as refused:
        next_state(state, command)
    allowed = [verb for verb in Command if TABLE[state, verb] != "-"]
    message = refused.value.message
    assert message.startswith(f"a {state} task can't {command}; allowed: ")
    assert set(message.partition("allowed: ")[2].split(", ")) == (set(allowed) or {"nothing"})


def test_the_second_table_covers_every_state_and_command() -> None:
    assert set(TABLE) == set(product(State, Command))
    assert {pair for pair, cell in TABLE.items() if cell != "-"} == set(TRANSITIONS)


@pytest.mark.requirement("P-11.2-cancel")
def test_nothing_leads_from_cancelling_to_anything_but_cancelled() -> None:
    assert {reached for (state, _), reached in TRANSITIONS.items() if state is State.CANCELLING} == {State.CANCELLED}


def test_nothing_leaves_a_finished_state() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] in FINISHED]
    assert {state for state in State if state.finished} == FINISHED
    assert set(UNFINISHED) == set(State) - FINISHED


def test_every_state_has_a_word_that_clients_know() -> None:
    assert set(WIRE_STATUS) == set(State)
    assert set(WIRE_STATUS.values()) == {"queued", "in_progress", "completed", "failed", "cancelled"}
