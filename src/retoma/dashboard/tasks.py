"""The list of all tasks, newest first, a page at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from retoma.core.task import State
from retoma.dashboard.people import names_of
from retoma.http.guard import Caller
from retoma.store.contract import Tx
from retoma.transactions.survey import Brief, read_briefs

TASKS_SHOWN = 50


@dataclass(frozen=True, slots=True)
class TaskPage:
    """A page. `state` and `after` are what was asked for; `next_after` is empty on the last one."""

    state: str
    after: str
    tasks: list[Brief]
    next_after: str
    names: Mapping[str, str]
    now_ms: int
    states: tuple[str, ...] = tuple(State)


async def see_tasks(caller: Caller, state: str, after: str) -> TaskPage:
    """Tasks in this state, or in any, older than the id `after`."""
    now_ms = caller.service.clock.wall_ms()

    def look(tx: Tx) -> TaskPage:
        found = read_briefs(tx, state=state, before=after, limit=TASKS_SHOWN + 1)
        shown = found[:TASKS_SHOWN]
        next_after = shown[-1].id if len(found) > TASKS_SHOWN else ""
        names = names_of(tx, (task.client_id for task in shown))
        return TaskPage(state, after, shown, next_after, names, now_ms)

    return await caller.service.read(look)
