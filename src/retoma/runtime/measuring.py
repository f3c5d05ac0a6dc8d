"""Measuring: one look at the store for each scrape, within a bound, whatever the store does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

from retoma.clock import Clock
from retoma.errors import RetomaError
from retoma.metrics import Metrics, StoreSeen
from retoma.runtime.bridge import AsyncStore
from retoma.settings import Settings
from retoma.store.contract import Tx
from retoma.transactions.measure import measure

logger = logging.getLogger(__name__)
LOOK_S = 2.0


class Measuring:
    """Fills in what `Metrics` shows of the store."""

    def __init__(self, store: AsyncStore, clock: Clock, settings: Settings, metrics: Metrics) -> None:
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._file = None if settings.on_postgres else settings.database
        self._reading: asyncio.Task[StoreSeen] | None = None

    async def look(self) -> None:
        """Reads the store; one reading at a time, however many scrapes wait for it. Never raises.

        A store that can't be read, or doesn't answer within `LOOK_S`, is a problem and shows no numbers.
        """
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        reading = self._reading
        await asyncio.wait([reading], timeout=LOOK_S)
        seen: StoreSeen = reading.result() if reading.done() else {}
        self._metrics.show_store(seen)
        self._metrics.store_problem.set(not seen or self._store.problem() is not None)

    async def _read(self) -> StoreSeen:
        try:
            return await self._store.read(self._measure)
        except RetomaError as away:
            logger.debug("the store was not measured: %s", away.message)
        except Exception:
            logger.exception("measuring the store stumbled")
        return {}

    def _measure(self, tx: Tx) -> StoreSeen:
        sizes = {} if self._file is None else {"retoma_store_bytes": _sizes(self._file)}
        return {**measure(tx, self._clock.wall_ms()), **sizes}


def _sizes(file: Path) -> dict[str, float]:
    sizes: dict[str, float] = {}
    for part, path in (("database", file), ("wal", file.with_name(f"{file.name}-wal"))):
        with contextlib.suppress(FileNotFoundError):
            sizes[part] = path.stat().st_size
    return sizes
