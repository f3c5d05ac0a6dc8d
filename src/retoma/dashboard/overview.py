"""The overview: what runs, what waits and why, what has ended, and how the service is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import retoma
from retoma.core.task import State
from retoma.dashboard.people import names_of
from retoma.dashboard.sizes import Sizes
from retoma.dashboard.waiting import Around, why_waiting
from retoma.http.guard import Caller
from retoma.limits import QUEUED_TASKS_MAX
from retoma.runtime.service import ServiceInfo, Workers
from retoma.store.contract import Tx
from retoma.store.rows import InstanceRow
from retoma.transactions import survey
from retoma.transactions.instances import read_instances_and_owners
from retoma.transactions.log import queue_length
from retoma.transactions.survey import Brief, Pace

UNDER_WAY_SHOWN = 50
WAITING_SHOWN = 20
ENDED_SHOWN = 10
# After so long without a token a rate says nothing any more.
_SILENT_AFTER_MS = 5_000


@dataclass(frozen=True, slots=True)
class SeenInstance:
    """An instance with what its lease says now."""

    row: InstanceRow
    mine: bool
    lease_left_ms: int
    tasks: int

    @property
    def alive(self) -> bool:
        """Nobody may take over from it yet."""
        return self.row.state == "alive" and self.lease_left_ms >= 0


@dataclass(frozen=True, slots=True)
class Look:
    """One consistent view of the store."""

    instances: list[SeenInstance]
    under_way: list[Brief]
    paces: Mapping[str, Pace]
    waiting: list[Brief]
    queued: int
    ended: list[Brief]
    names: Mapping[str, str]
    schema: int

    @property
    def more_under_way(self) -> bool:
        """There may be more than are shown."""
        return len(self.under_way) == UNDER_WAY_SHOWN

    def busy(self, instance_id: str) -> int:
        """On how many tasks an instance works, as far as they are shown."""
        return sum(task.instance_id == instance_id for task in self.under_way)


@dataclass(frozen=True, slots=True)
class Overview:
    """What the template shows. `service` is read first: it refuses while the service recovers."""

    look: Look
    service: ServiceInfo
    instance_id: str
    workers: Workers
    problem: str | None
    sizes: Sizes
    place: str
    now_ms: int
    release: str = retoma.__version__

    @property
    def around(self) -> Around:
        """What decides whether the next task is begun here."""
        others = sum(instance.alive and not instance.mine for instance in self.look.instances)
        return Around(self.workers, self.look.busy(self.instance_id), others, self.problem)

    def why(self, position: int, task: Brief) -> str:
        """Why a task of the queue waits."""
        return why_waiting(position, task.model, self.around)

    def speed(self, task: Brief) -> str:
        """How quick a text comes, or since when it doesn't."""
        return speed_of(task.state, self.look.paces[task.id], self.now_ms)


async def overview(caller: Caller, sizes: Sizes) -> Overview:
    """Raises Unavailable."""
    service = caller.service
    info = await service.describe()
    look = await service.read(lambda tx: look_around(tx, service.instance_id))
    return Overview(
        look=look,
        service=info,
        instance_id=service.instance_id,
        workers=await service.workers(),
        problem=service.not_ready(),
        sizes=sizes,
        place=caller.context.settings.shown_store,
        now_ms=service.clock.wall_ms(),
    )


def look_around(tx: Tx, instance_id: str) -> Look:
    """Reads all of it; `instance_id` is the one that answers."""
    under_way = survey.read_under_way(tx, UNDER_WAY_SHOWN)
    waiting, ended = survey.read_waiting(tx, WAITING_SHOWN), survey.read_ended(tx, ENDED_SHOWN)
    return Look(
        instances=see_instances(tx, instance_id, under_way),
        under_way=under_way,
        paces={task.id: survey.read_pace(tx, task.id) for task in under_way},
        waiting=waiting,
        queued=queue_length(tx, QUEUED_TASKS_MAX),
        ended=ended,
        names=names_of(tx, (task.client_id for task in (*under_way, *waiting, *ended))),
        schema=survey.read_schema_version(tx),
    )


def see_instances(tx: Tx, instance_id: str, under_way: list[Brief]) -> list[SeenInstance]:
    """Every instance, the answering one first. Leases are counted by the store's time."""
    rows, _ = read_instances_and_owners(tx)
    now_ms, tasks = tx.now_ms(), Counter(task.instance_id for task in under_way)
    seen = [SeenInstance(row, row.id == instance_id, row.lease_until_ms - now_ms, tasks[row.id]) for row in rows]
    return sorted(seen, key=lambda instance: (not instance.mine, instance.row.id))


def speed_of(state: State, pace: Pace, now_ms: int) -> str:
    """Tokens per second over the last events; for a silent text, how long it has been silent."""
    if state is not State.RUNNING:
        return "–"
    silent_ms = now_ms - pace.last_at_ms
    if silent_ms > _SILENT_AFTER_MS:
        return "none lately"
    return "–" if pace.tokens_per_s is None else f"{pace.tokens_per_s:.1f}"
