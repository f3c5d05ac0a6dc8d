"""The engine's own process: `python -m retoma.engines.worker PARENT_PID TURN_FD`, spoken to in frames over its pipes.

A model runs here and not in the service, so that a crash, an abort or an out-of-memory kill inside a C library takes
nothing else with it. The process never outlives its parent: it ends at the end of its pipe, and the kernel kills it
when the thread that started it is gone.

Two threads. The reader takes frames at any time, so that a cancel reaches a running decode and the end of the pipe ends
the process even while a model loads. The main thread does all the work: one bounded step at a time, of the generation
that has had least time, so a long prompt does not hold up the others.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections import deque
from pathlib import Path
from queue import SimpleQueue
from traceback import extract_tb
from typing import BinaryIO

from retoma import failpoints
from retoma.engines import registry
from retoma.engines.contract import EngineOptions, Interrupted, LoadedModel
from retoma.engines.frames import (
    Alive,
    Cancel,
    Cancelled,
    Failed,
    Frame,
    Generate,
    Load,
    LoadFailed,
    Park,
    Ready,
    Stop,
    read_frame,
    write_frame,
)
from retoma.engines.generating import Generating
from retoma.engines.turn import Turn
from retoma.errors import EngineError, RetomaError

_PR_SET_PDEATHSIG = 1


class Worker:
    """Serves the generations of one loaded model."""

    def __init__(self, pipe_in: BinaryIO, pipe_out: BinaryIO, turn: Turn) -> None:
        self._turn = turn
        self._pipe_in = pipe_in
        self._pipe_out = pipe_out
        self._inbox: SimpleQueue[Frame] = SimpleQueue()
        self._waiting: deque[Generate] = deque()
        self._active: dict[str, Generating] = {}

    def run(self) -> int:
        """Loads the model that the first frame names, then works until the process ends; returns its exit status."""
        threading.Thread(target=self._read, name="frames", daemon=True).start()
        load = self._inbox.get()
        assert isinstance(load, Load), load
        try:
            model = registry.find(load.engine)(self._options(load))
        except Exception as error:  # noqa: BLE001 - whatever an engine raises must come out as a frame
            code, message = _explain(error, "The model can't be loaded")
            self._send(LoadFailed("model_unavailable" if code == "internal" else code, message))
            return 1
        self._send(_ready(model))
        every = int(load.settings.get("snapshot_every_tokens", 0))
        output_every_s = float(load.settings.get("output_every_ms", 0)) / 1000
        while True:
            self._take_frames()
            while self._waiting and len(self._active) < load.sequences:
                self._begin(Generating(model, self._waiting.popleft(), self._send, every, output_every_s))
            self._step(min(self._active.values(), key=lambda generating: generating.used_s))

    def _options(self, load: Load) -> EngineOptions:
        return EngineOptions(
            model=load.model,
            path=Path(load.path) if load.path is not None else None,
            digest=load.digest,
            context_tokens=load.context_tokens,
            sequences=load.sequences,
            threads=load.threads,
            library=load.library,
            settings=load.settings,
            flags=load.flags,
            flags_fingerprint=load.flags_fingerprint,
            alive=lambda: self._send(Alive()),
        )

    def _read(self) -> None:
        """The reader thread; its end is the end of the process."""
        try:
            while (frame := read_frame(self._pipe_in)) is not None and not isinstance(frame, Stop):
                self._inbox.put(frame)
                generating = self._active.get(frame.key) if isinstance(frame, Cancel) else None
                if generating is not None:
                    generating.interrupt()
        finally:
            # Nothing here is worth waiting for: what counts is committed by the parent, and files appear by rename.
            os._exit(0)

    def _take_frames(self) -> None:
        """Takes what has come; waits only if there is nothing to do."""
        while not self._inbox.empty() or not (self._active or self._waiting):
            frame = self._inbox.get()
            if isinstance(frame, Generate):
                self._waiting.append(frame)
            elif isinstance(frame, Cancel):
                self._cancel(frame.key)
            elif isinstance(frame, Park):
                self._park(frame.key)

    def _cancel(self, key: str) -> None:
        """A key that is not known has had its last frame already."""
        kept = [request for request in self._waiting if request.key != key]
        was_waiting = len(kept) < len(self._waiting)
        self._waiting = deque(kept)
        generating = self._active.pop(key, None)
        if generating is not None:
            generating.close()
        if generating is not None or was_waiting:
            self._send(Cancelled(key))

    def _park(self, key: str) -> None:
        """A text that has no token yet has nothing to park."""
        generating = self._active.get(key)
        if generating is None or not generating.park():
            self._cancel(key)

    def _begin(self, generating: Generating) -> None:
        """Whoever comes later does not get the time that others have had before."""
        generating.used_s = min((other.used_s for other in self._active.values()), default=0.0)
        self._active[generating.key] = generating

    def _step(self, generating: Generating) -> None:
        """One step; a failure ends this generation and no other."""
        self._turn.begin(generating.mark)
        try:
            goes_on = generating.step()
        except Interrupted:
            self._cancel(generating.key)
            return
        except Exception as error:  # noqa: BLE001 - one text must not take its neighbours with it
            code, message = _explain(error, "The engine failed")
            self._send(Failed(generating.key, code, message))
            goes_on = False
        if not goes_on:
            self._active.pop(generating.key).close()

    def _send(self, frame: Frame) -> None:
        try:
            write_frame(self._pipe_out, frame)
        except OSError:  # the parent is gone
            os._exit(0)


def _explain(error: Exception, what: str) -> tuple[str, str]:
    """Code and sentence for the service; what only a developer understands goes to stderr."""
    if isinstance(error, RetomaError):
        code = error.code if isinstance(error, EngineError) else "internal"
        return code, error.message
    # Not what the exception says: the engine's last words may be told to the client of another text.
    places = " > ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in extract_tb(error.__traceback__))
    sys.stderr.write(f"{what}: {type(error).__name__} at {places}\n")
    return "internal", f"{what} ({type(error).__name__})."


def _ready(model: LoadedModel) -> Ready:
    facts = model.facts
    return Ready(
        context_tokens=facts.context_tokens,
        fingerprint=facts.fingerprint,
        exact_restore=facts.exact_restore,
        batch_invariant=facts.batch_invariant,
        thread_invariant=facts.thread_invariant,
        description=facts.description,
    )


def _private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Takes the two pipes away from stdin and stdout, where a library's stray print would break a frame."""
    pipe_in, pipe_out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return os.fdopen(pipe_in, "rb"), os.fdopen(pipe_out, "wb")


def _end_with_parent(parent: int) -> None:
    """Asks the kernel for it, then looks whether the parent was gone before that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def main(arguments: list[str]) -> int:
    """The process from start to end."""
    _end_with_parent(int(arguments[0]))
    # The terminal's Ctrl-C reaches the whole group; only the service decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["GGML_NO_BACKTRACE"] = "1"  # it would start a debugger in a process that is about to die
    failpoints.arm_from_environment()
    pipe_in, pipe_out = _private_pipes()
    return Worker(pipe_in, pipe_out, Turn(int(arguments[1]))).run()


if __name__ == "__main__":
    # The libraries' own tear-down has nothing to save and may hang or crash.
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)
