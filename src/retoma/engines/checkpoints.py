"""The snapshots of one text: which one to go back to, when to take the next."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from retoma.core.snapshot_rule import WriteCost, decide_snapshot
from retoma.engines import snapshots
from retoma.engines.contract import EngineSequence, LoadedModel
from retoma.engines.frames import Generate, SnapshotWritten
from retoma.engines.snapshots import Misfit, SnapshotKey
from retoma.errors import EngineError

Result = TypeVar("Result")


class Checkpoints:
    """Keeps the account of time that the rule asks for: every prefill and decode goes through `timed`."""

    def __init__(self, model: LoadedModel, sequence: EngineSequence, request: Generate, every: int) -> None:
        """`every`: take a snapshot after so many tokens whatever it costs; 0: when it pays."""
        self._sequence = sequence
        self._request = request
        self._every = every
        self._key = SnapshotKey(model.facts.fingerprint, sequence.prompt_digest)
        self._usable = model.facts.exact_restore
        self._cost = WriteCost()
        self._unsaved_ms = self._spent_ms = self._elapsed_ms = 0.0
        self.foreign = False
        """A snapshot of this text was made under another fingerprint."""

    def timed(self, work: Callable[[], Result]) -> Result:
        """Does `work` and counts it as what a crash would lose."""
        began = time.perf_counter()
        result = work()
        spent_ms = (time.perf_counter() - began) * 1000
        self._unsaved_ms += spent_ms
        self._elapsed_ms += spent_ms
        return result

    def restore(self) -> int | None:
        """Puts the newest usable snapshot into the sequence; how many of the committed tokens it held."""
        committed = self._request.committed
        for path in self._request.snapshots if committed and self._usable else ():
            found = snapshots.read(Path(path), self._key, committed)
            if isinstance(found, Misfit):
                self.foreign = self.foreign or found is Misfit.FINGERPRINT
                _note(f"snapshot {path} is not used: {found.value}")
                continue
            try:
                self._sequence.restore_state(found.state, committed[: found.tokens])
            except EngineError as error:
                _note(f"snapshot {path} is not used: {error.message}")
                continue
            return found.tokens
        return None

    def take(self, tokens: Sequence[int], *, at_any_cost: bool = False) -> SnapshotWritten | None:
        """Writes a snapshot if it pays; of `tokens`, all but the newest are decoded."""
        count = len(tokens) - 1
        if not self._request.snapshot_path or not self._usable or not (at_any_cost or self._pays(count)):
            return None
        path = self._request.snapshot_path.replace("{tokens}", str(count))
        began = time.perf_counter()
        state = self._sequence.save_state()
        file_bytes = snapshots.write(Path(path), self._key, tokens[:count], state)
        spent_ms = (time.perf_counter() - began) * 1000
        self._spent_ms += spent_ms
        self._cost = WriteCost(spent_ms, memoryview(state).nbytes)
        if file_bytes is None:  # the time it took is spent all the same, so a full disk is not tried at every token
            _note(f"snapshot {path} could not be written")
            return None
        self._unsaved_ms = 0.0
        return SnapshotWritten(self._request.key, count, path, file_bytes, self._key.fingerprint)

    def _pays(self, tokens: int) -> bool:
        if self._every:
            return tokens > 0 and tokens % self._every == 0
        # Asking llama.cpp for the size takes a while, so first as if the state were empty.
        return self._would_pay(0) and self._would_pay(self._sequence.state_bytes())

    def _would_pay(self, state_bytes: int) -> bool:
        return decide_snapshot(
            state_bytes=state_bytes,
            write_ms=self._cost.expected_ms(state_bytes),
            unsaved_ms=self._unsaved_ms,
            spent_ms=self._spent_ms,
            elapsed_ms=self._elapsed_ms,
        )


def _note(text: str) -> None:
    sys.stderr.write(text + "\n")
