"""Waiting for a condition, with a bound: tests never sleep for a guessed time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

BOUND_S = 30.0
_POLL_S = 0.005


def wait_for(condition: Callable[[], T], what: str, bound_s: float = BOUND_S) -> T:
    """The condition's first true value; fails with `what` when the bound has passed."""
    until = time.monotonic() + bound_s
    pause = threading.Event()
    while not (value := condition()):
        if time.monotonic() > until:
            raise AssertionError(f"waited {bound_s:g} s for {what}")
        pause.wait(_POLL_S)
    return value
