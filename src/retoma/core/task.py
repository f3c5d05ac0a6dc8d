"""The words of the domain: states, commands, restart policies."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a task is in its life."""

    QUEUED = "queued"
    LOADING = "loading"
    RUNNING = "running"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def finished(self) -> bool:
        """Nothing changes a task in this state any more."""
        return self in FINISHED


FINISHED = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})
UNFINISHED = tuple(state for state in State if state not in FINISHED)


class Command(StrEnum):
    """What can be asked of a task."""

    CLAIM = "claim"
    START = "start"
    CONTINUE = "continue"
    APPEND = "append"
    COMPLETE = "complete"
    FAIL = "fail"
    REQUEUE = "requeue"
    CANCEL = "cancel"
    CONFIRM_CANCEL = "confirm_cancel"


class OnRestart(StrEnum):
    """What becomes of an unfinished task when the instance that owned it is gone."""

    FAIL = "fail"
    RETRY = "retry"
    RESUME = "resume"


WIRE_STATUS = {
    State.QUEUED: "queued",
    State.LOADING: "in_progress",
    State.RUNNING: "in_progress",
    State.CANCELLING: "in_progress",
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
}
