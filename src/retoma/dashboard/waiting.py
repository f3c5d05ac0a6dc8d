"""Why a task waits, said only as far as the store and this instance know it.

The store doesn't know how many workers the other instances have, nor which models lie on their hosts. Where an answer
would need that, the sentence says what is true here and that another instance may take the task.
"""

from __future__ import annotations

from dataclasses import dataclass

from retoma.dashboard.words import plural
from retoma.runtime.service import Workers


@dataclass(frozen=True, slots=True)
class Around:
    """What surrounds the queue. `busy`: tasks that this instance works on; `others`: other instances with a lease."""

    workers: Workers
    busy: int
    others: int
    problem: str | None
    """What `Service.not_ready` says."""


def why_waiting(position: int, model: str, around: Around) -> str:
    """One or two sentences; `position` is the number of tasks before this one."""
    return f"{_place(position)} {_obstacle(model, around)}"


def _place(position: int) -> str:
    return "Next in the queue." if position == 0 else f"Behind {plural(position, 'other')}."


def _obstacle(model: str, around: Around) -> str:
    workers = around.workers
    elsewhere = f" {plural(around.others, 'other instance')} may take it." if around.others else ""
    if around.problem is not None:
        return f"Nothing is begun here now: {around.problem.rstrip('.')}.{elsewhere}"
    if workers.paused:
        return f"This instance has paused: it can't confirm that its tasks are still its own.{elsewhere}"
    if workers.total == 0:
        return f"This instance has no workers.{elsewhere or ' Start one that has: retoma serve --workers 2'}"
    if workers.models is not None and model not in workers.models:
        return f"The file of {model} is not on this host.{elsewhere or ' Add it with retoma models add.'}"
    if around.busy >= workers.total:
        return f"{_all(workers.total)} here {'is' if workers.total == 1 else 'are'} busy.{elsewhere}"
    return "A worker is free and will take it in a moment."


def _all(workers: int) -> str:
    if workers == 1:
        return "The only worker"
    return "Both workers" if workers == 2 else f"All {workers} workers"  # noqa: PLR2004 - two have a word of their own
