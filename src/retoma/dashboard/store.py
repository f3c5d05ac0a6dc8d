"""The store's page: where it is, how large, how healthy, and what lies in it. Counting reads all tasks: not polled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from retoma.core.task import State
from retoma.dashboard.sizes import Sizes
from retoma.http.guard import Caller
from retoma.runtime.service import ServiceInfo
from retoma.store.contract import Tx
from retoma.transactions.read import count_states
from retoma.transactions.survey import read_schema_version


@dataclass(frozen=True, slots=True)
class SeenStore:
    """The store and the settings that it holds for all instances."""

    place: str
    on_server: bool
    problem: str | None
    schema: int
    sizes: Sizes
    counts: Mapping[str, int]
    models_bytes: int
    service: ServiceInfo
    states: tuple[str, ...] = tuple(State)


async def see_store(caller: Caller, sizes: Sizes) -> SeenStore:
    """Raises Unavailable."""
    service, settings = caller.service, caller.context.settings
    info = await service.describe()

    def look(tx: Tx) -> tuple[int, Mapping[str, int]]:
        return read_schema_version(tx), count_states(tx)

    schema, counts = await service.read(look)
    of_files = {model.digest: model.size_bytes for model in await service.models()}
    return SeenStore(
        place=settings.shown_store,
        on_server=settings.on_postgres,
        problem=service.not_ready(),
        schema=schema,
        sizes=sizes,
        counts=counts,
        models_bytes=sum(of_files.values()),
        service=info,
    )
