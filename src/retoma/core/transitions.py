"""Which command moves which state where. The diagram in docs/state-machine.md is printed from this table."""

from __future__ import annotations

from types import MappingProxyType

from retoma.core.task import Command, State
from retoma.errors import IllegalTransition

TRANSITIONS = MappingProxyType(
    {
        (State.QUEUED, Command.CLAIM): State.LOADING,
        (State.QUEUED, Command.REQUEUE): State.QUEUED,
        (State.QUEUED, Command.FAIL): State.FAILED,
        (State.QUEUED, Command.CANCEL): State.CANCELLED,
        (State.LOADING, Command.START): State.RUNNING,
        (State.LOADING, Command.REQUEUE): State.QUEUED,
        (State.LOADING, Command.FAIL): State.FAILED,
        (State.LOADING, Command.CANCEL): State.CANCELLING,
        (State.RUNNING, Command.CONTINUE): State.RUNNING,
        (State.RUNNING, Command.APPEND): State.RUNNING,
        (State.RUNNING, Command.COMPLETE): State.COMPLETED,
        (State.RUNNING, Command.REQUEUE): State.QUEUED,
        (State.RUNNING, Command.FAIL): State.FAILED,
        (State.RUNNING, Command.CANCEL): State.CANCELLING,
        (State.CANCELLING, Command.CONFIRM_CANCEL): State.CANCELLED,
    }
)


def next_state(state: State, command: Command) -> State:
    """The state that `command` leads to; raises IllegalTransition, which says what would be allowed."""
    try:
        return TRANSITIONS[state, command]
    except KeyError:
        allowed = ", ".join(c for s, c in TRANSITIONS if s is state) or "nothing"
        raise IllegalTransition(f"a {state} task can't {command}; allowed: {allowed}") from None
