"""The data directory's store, opened by a command for itself; a running service may have it open too."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from retoma.blobs.models import ModelFiles
from retoma.clock import Clock, SystemClock
from retoma.settings import Settings
from retoma.store.contract import Store


@dataclass(frozen=True, slots=True)
class Opened:
    """A store and what belongs to it."""

    store: Store
    settings: Settings
    clock: Clock

    @property
    def model_files(self) -> ModelFiles:
        """The folder of the model files."""
        return ModelFiles(self.settings.data_dir / "models")


@contextmanager
def opened(settings: Settings) -> Generator[Opened, None, None]:
    """The store, made or migrated if need be; raises Refused or StoreUnavailable with a sentence."""
    from retoma import bootstrap  # noqa: PLC0415 - brings the database's driver with it

    clock = SystemClock()
    store = bootstrap.open_store(settings, clock)
    try:
        yield Opened(store, settings, clock)
    finally:
        store.close()
