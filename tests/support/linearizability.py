"""Is there an order of these operations that explains every answer? One history per task (Wing and Gong, with memory).

An operation takes effect at one instant between its beginning and its end. One whose answer was lost may take effect at
any later time, or never.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Operation:
    """`ended` and `outcome` are None when the answer was lost."""

    began: int
    ended: int | None
    verb: str
    outcome: str | None


TaskHistory = list[Operation]


def linearizable(history: TaskHistory, first_state: str = "running") -> bool:
    """True if some order within the operations' times leads from the first state through all answers."""
    answered = frozenset(number for number, one in enumerate(history) if one.ended is not None)
    seen: set[tuple[frozenset[int], str]] = set()
    waiting = [(frozenset[int](), first_state)]
    while waiting:
        done, state = waiting.pop()
        if answered <= done:
            return True
        if (done, state) in seen:
            continue
        seen.add((done, state))
        left = [number for number in range(len(history)) if number not in done]
        # Whatever is next must have begun before the first of the others ended.
        horizon = min(ended for number in left if (ended := history[number].ended) is not None)
        for number in left:
            if history[number].began <= horizon:
                waiting += [(done | {number}, reached) for reached in _explained(state, history[number])]
    return False


def _explained(state: str, operation: Operation) -> Iterator[str]:
    """The states after the operation that agree with its answer."""
    reached, answer = _model(state, operation.verb)
    if operation.outcome in {None, answer}:
        yield reached


def _model(state: str, verb: str) -> tuple[str, str]:
    """The state after a verb, and its answer, when nothing else happens at the time."""
    match verb:
        case "cancel":
            reached = "cancelling" if state == "running" else state
            return reached, reached
        case "complete":
            return ("completed", "completed") if state == "running" else (state, "IllegalTransition")
        case _:
            return state, state
