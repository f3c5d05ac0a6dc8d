"""A thread that asks again and again whether something has changed, for a database that can't tell by itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from retoma.errors import StoreUnavailable

logger = logging.getLogger(__name__)
POLL_EVERY_S = 0.05


class Poll:
    """Calls `tell` within fifty milliseconds after `changed` has begun to say so, until it is closed."""

    def __init__(self, changed: Callable[[], bool], tell: Callable[[], None]) -> None:
        self._changed = changed
        self._tell = tell
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retoma-poll", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(POLL_EVERY_S):
            try:
                if self._changed():
                    self._tell()
            except StoreUnavailable:  # followers look by themselves every few seconds
                continue
            except Exception:
                logger.exception("a listener of the store failed")
