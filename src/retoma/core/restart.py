"""What a restart does to a task that was left behind: the 4 × 3 table of P-11.3."""

from __future__ import annotations

from types import MappingProxyType

from retoma.core.task import Command, OnRestart, State
from retoma.core.transitions import next_state

RESTART = MappingProxyType(
    {
        State.QUEUED: {
            OnRestart.FAIL: Command.FAIL,
            OnRestart.RETRY: Command.REQUEUE,
            OnRestart.RESUME: Command.REQUEUE,
        },
        State.LOADING: {
            OnRestart.FAIL: Command.FAIL,
            OnRestart.RETRY: Command.REQUEUE,
            OnRestart.RESUME: Command.REQUEUE,
        },
        State.RUNNING: {
            OnRestart.FAIL: Command.FAIL,
            OnRestart.RETRY: Command.REQUEUE,
            OnRestart.RESUME: Command.CONTINUE,
        },
        State.CANCELLING: {
            OnRestart.FAIL: Command.CONFIRM_CANCEL,
            OnRestart.RETRY: Command.CONFIRM_CANCEL,
            OnRestart.RESUME: Command.CONFIRM_CANCEL,
        },
    }
)


def decide_restart(state: State, policy: OnRestart) -> tuple[Command, State]:
    """The command for a left-behind task and the state it leads to; `state` must be unfinished."""
    command = RESTART[state][policy]
    return command, next_state(state, command)
