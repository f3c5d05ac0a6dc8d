"""What the HTTP layer may ask of a running instance."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from retoma.clock import Clock
from retoma.ids import Ids
from retoma.runtime.clients import Clients
from retoma.runtime.webhooks import Webhooks
from retoma.store.contract import Tx
from retoma.telemetry import Telemetry
from retoma.transactions.accept import Accept, Accepted
from retoma.transactions.cancel import Cancel
from retoma.transactions.delete import Delete
from retoma.transactions.read import SeenResponse
from retoma.transactions.service import ChangeService

T = TypeVar("T")

RECOVERING = "the service is still recovering what an earlier start left behind"
STOPPING = "the service is stopping"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that this instance can be asked for."""

    name: str
    created_at_ms: int
    digest: str
    size_bytes: int
    engine: str
    state: str
    facts: dict[str, Any]
    version: int = 1


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """What all instances of this store have in common; `stored` settings go before an instance's own."""

    id: str
    version: int
    stored: Mapping[str, Any]
    in_force: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Workers:
    """What this instance can work on. `paused`: nothing now. `models`: those whose files it has; None: every one."""

    total: int
    paused: bool
    models: frozenset[str] | None


class Service(Protocol):
    """One running instance, seen from the HTTP layer. All methods are called on its event loop."""

    clock: Clock
    ids: Ids
    clients: Clients
    webhooks: Webhooks
    telemetry: Telemetry

    @property
    def instance_id(self) -> str:
        """This instance's present name."""
        ...

    async def accept(self, command: Accept) -> Accepted:
        """Stores the request; returns after the commit. Raises what transactions.accept raises, or Unavailable."""
        ...

    async def cancel(self, command: Cancel) -> SeenResponse:
        """Commits the cancel, stops the engine, and waits a little for the end; the response as it is then."""
        ...

    async def delete(self, command: Delete) -> None:
        """Deletes a finished response and its files."""
        ...

    async def read(self, function: Callable[[Tx], T]) -> T:
        """Runs one reading function of transactions.read on one consistent view."""
        ...

    def follow(self, task_id: str, after: int) -> AsyncIterator[list[tuple[int, str, str]]]:
        """Committed events with a number above `after`, in pages, live to the end of the log.

        Each event is (sequence number, type, JSON text). Ends after the terminal event, at once if `after` is at or
        beyond the end of a finished log; raises NotFound if the task is deleted meanwhile. A slow reader slows nobody.
        """
        ...

    async def finished(self, task_id: str) -> SeenResponse:
        """Waits for the end of the task."""
        ...

    async def models(self) -> list[ModelInfo]:
        """The registry, by name; `scripted` too where it is switched on."""
        ...

    async def resolve_model(self, name: str | None) -> ModelInfo:
        """The model of this name; without one, the configured or the only one. Raises ModelNotFound."""
        ...

    async def register_model(self, file: str, name: str) -> ModelInfo:
        """Takes in a file of the folder `models/incoming` and registers it; the file is gone from there afterwards.

        Raises InvalidRequest for a name or a file that can't be one, and Conflict for a name of other content.
        """
        ...

    async def remove_model(self, name: str, version: int | None) -> None:
        """Removes a model, at this version; its file goes later. Raises NotFound, StaleVersion or TaskUnfinished."""
        ...

    async def describe(self) -> ServiceInfo:
        """Identity and settings of the service."""
        ...

    async def change(self, command: ChangeService) -> ServiceInfo:
        """Stores settings for all instances; raises InvalidRequest or StaleVersion."""
        ...

    async def workers(self) -> Workers:
        """This instance's workers; why tasks wait is derived from them."""
        ...

    async def measure(self) -> bytes:
        """All metrics in Prometheus's text format; never raises, whatever the store does."""
        ...

    def not_ready(self) -> str | None:
        """Why requests are not accepted now, in a sentence; None when they are."""
        ...
