"""What an engine's death does to the task it worked on, while the service lives."""

from __future__ import annotations

from dataclasses import dataclass

from retoma.core.restart import RESTART
from retoma.core.task import Command, OnRestart, State
from retoma.limits import CRASHES_WITHOUT_PROGRESS_MAX


@dataclass(frozen=True, slots=True)
class CrashCount:
    """Crashes since the text last got further than ever before, and how far that was."""

    crashes: int
    tokens: int

    def after_crash_at(self, tokens: int) -> CrashCount:
        """One more crash, with `tokens` committed. Progress starts the count again, repetition does not."""
        if tokens > self.tokens:
            return CrashCount(1, tokens)
        return CrashCount(self.crashes + 1, self.tokens)


def decide_after_crash(state: State, policy: OnRestart, count: CrashCount) -> Command:
    """As after a restart, but a text that kills its engine again and again fails in the end."""
    if state is not State.CANCELLING and count.crashes >= CRASHES_WITHOUT_PROGRESS_MAX:
        return Command.FAIL
    return RESTART[state][policy]
