"""The audit of one task's log: every rule that the log alone can show to be broken (reliability.md, I2 to I6).

It reads the events in their order and never stops at a finding, except where the log can't be folded any further.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from retoma.core import events
from retoma.core.fold import Folded, fold
from retoma.core.task import State
from retoma.core.transitions import TRANSITIONS

LoggedEvent = tuple[int, str, str, bytes, str]
"""Sequence number, type, body, packed tokens, operation id."""

_MOVES = frozenset((state, reached) for (state, _), reached in TRANSITIONS.items())
_STATES_OF_TYPE = {
    events.CREATED: {State.QUEUED},
    events.QUEUED: {State.QUEUED},
    events.IN_PROGRESS: {State.LOADING, State.RUNNING, State.CANCELLING},
    events.COMPLETED: {State.COMPLETED},
    events.INCOMPLETE: {State.COMPLETED},
    events.FAILED: {State.FAILED},
    events.CANCELLED: {State.CANCELLED},
}
_BEGINNING = (events.CREATED, events.QUEUED)


@dataclass(frozen=True, slots=True)
class Problem:
    """A rule that the log breaks; `invariant` names it as reliability.md does."""

    invariant: str
    seq: int | None
    message: str


@dataclass(slots=True)
class Audited:
    """A log's sum and what is wrong with it. `folded` is None for a log that can't be folded."""

    folded: Folded | None = None
    problems: list[Problem] = field(default_factory=list[Problem])
    grants: int = 0
    """How often the log shows the ownership to have passed on; each time the fencing token rose by one."""


def audit(log: Iterable[LoggedEvent]) -> Audited:
    """Reads a whole log from number 0 on."""
    walk = _Walk()
    try:
        walk.audited.folded = fold(walk.through(log))
    except (ValueError, KeyError, TypeError) as error:
        walk.audited.problems.append(Problem("I2", walk.seq, f"the log can't be folded: {error}"))
    if walk.seq is None:
        walk.audited.problems.append(Problem("I3", None, "the task has no events"))
    return walk.audited


@dataclass(slots=True)
class _Walk:
    audited: Audited = field(default_factory=Audited)
    seq: int | None = None
    task: dict[str, Any] | None = None
    """The object `task` of the last response that the log showed."""
    op_id: str | None = None
    earlier_ops: set[str] = field(default_factory=set[str])

    def through(self, log: Iterable[LoggedEvent]) -> Iterator[tuple[int, str, str, bytes]]:
        """Hands each event to the fold, and looks at it once the fold has found it sound."""
        for seq, event_type, body, tokens, op_id in log:
            self.seq = seq
            yield seq, event_type, body, tokens
            self._look_at_op(op_id)
            if seq < len(_BEGINNING) and event_type != _BEGINNING[seq]:
                self._report("I2", f"a log begins with {' and '.join(_BEGINNING)}, not with {event_type}")
            if event_type in _STATES_OF_TYPE:
                self._look_at_move(event_type, json.loads(body)["response"]["task"])
            elif self.task is None or self.task["state"] != State.RUNNING:
                self._report("I3", f"{event_type} is the output of a task that does not run")

    def _report(self, invariant: str, message: str) -> None:
        self.audited.problems.append(Problem(invariant, self.seq, message))

    def _look_at_op(self, op_id: str) -> None:
        if op_id == self.op_id:
            return
        if op_id in self.earlier_ops:
            self._report("I5", f"operation {op_id} has written twice")
        self.earlier_ops.add(op_id)
        self.op_id = op_id

    def _look_at_move(self, event_type: str, task: dict[str, Any]) -> None:
        before, self.task = self.task, task
        if State(task["state"]) not in _STATES_OF_TYPE[event_type]:
            self._report("I3", f"{event_type} shows a {task['state']} task")
        if before is None or (event_type == events.QUEUED and self.seq == 1):
            return
        if (State(before["state"]), State(task["state"])) not in _MOVES:
            self._report("I4", f"no command moves a {before['state']} task to {task['state']}")
        if task["version"] != before["version"] + 1:
            self._report("I3", f"version {task['version']} follows version {before['version']}")
        if task["attempt"] < before["attempt"]:
            self._report("I6", f"attempt {task['attempt']} follows attempt {before['attempt']}")
        granted = _passed_on(event_type, before, task)
        if task["instance"] != before["instance"] and not granted:
            self._report("I6", f"{task['instance']} owns the task without a new fencing token")
        self.audited.grants += granted


def _passed_on(event_type: str, before: dict[str, Any], task: dict[str, Any]) -> bool:
    """True where a claim or a recovery wrote: those, and no other, raise the fencing token."""
    claimed = before["state"] == State.QUEUED and task["state"] == State.LOADING
    recovered = event_type == events.QUEUED or task["attempt"] > before["attempt"]
    # A recovery that ends the task shows in the list of its restarts alone.
    return claimed or recovered or _entries(task) != _entries(before)


def _entries(task: dict[str, Any]) -> list[Any]:
    """What tells restarts apart; the way a text came back is filled in later, by the owner."""
    return [(entry["at"], entry["from"], entry["cause"]) for entry in task["restarts"]]
