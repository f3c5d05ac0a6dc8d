"""The service's side of an engine's process: start, send frames, hear frames, learn of the end.

No caller ever waits for the child: frames go out through a queue and a thread, frames come in on another thread, and a
child that does not read or talks nonsense is killed. The child is started by the thread that reads from it, because the
kernel ends a child (PR_SET_PDEATHSIG) when the *thread* that started it ends, and a pool's thread may end at any time.
"""

from __future__ import annotations

import contextlib
import os
import site
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import Full, Queue
from typing import IO, BinaryIO, cast

import retoma
from retoma import failpoints
from retoma.engines import turn
from retoma.engines.frames import Frame, Load, Stop, read_frame, write_frame
from retoma.errors import EngineCrashed

WORKER = ("-m", "retoma.engines.worker")

_FRAMES_QUEUED_MAX = 4096
_END_S = 5.0
"""How long a child may live on after it closed its pipe."""
_LINES_KEPT = 20
_LINE_BYTES_MAX = 1000

_failpoint_lock = threading.Lock()
_failpoint_given = False


def _environment() -> dict[str, str]:
    """The child's environment; only the first child gets the failpoint, else a restarted engine would die again."""
    global _failpoint_given  # noqa: PLW0603 - once per process is the point
    environment = dict(os.environ)
    with _failpoint_lock:
        if _failpoint_given:
            environment.pop(failpoints.ENVIRONMENT, None)
        _failpoint_given = True
    # The child must find the same Retoma, also when a checkout was put on the path by hand.
    root = str(Path(retoma.__file__).resolve().parent.parent)
    if root not in {*site.getsitepackages(), site.getusersitepackages()}:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return environment


class EngineProcess:
    """One child with one model. Callbacks run on the reader's thread and must be quick.

    `on_frame` hears every frame in order; `on_exit` is called exactly once, after the last frame, when the process is
    gone, with its exit status (negative: the signal) or None if it could not be started.
    """

    def __init__(self, load: Load, on_frame: Callable[[Frame], None], on_exit: Callable[[int | None], None]) -> None:
        """Returns once the child is started; raises EngineCrashed if it can't be (`on_exit` is called as well)."""
        self._on_frame = on_frame
        self._on_exit = on_exit
        self._out: Queue[Frame | None] = Queue(_FRAMES_QUEUED_MAX)
        self._stderr: deque[str] = deque(maxlen=_LINES_KEPT)
        self._process: subprocess.Popen[bytes] | None = None
        self._started = threading.Event()
        self._gone = threading.Event()
        self._turn_fd = turn.new_memory()
        self._last_turn = turn.NOBODY
        self._turn_lock = threading.Lock()
        self.send(load)
        threading.Thread(target=self._live, name=f"engine {load.model}", daemon=True).start()
        self._started.wait()
        if self._process is None:
            raise EngineCrashed("The engine's process could not be started; the machine may be out of memory.")

    @property
    def pid(self) -> int:
        """The child's process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def last_words(self) -> str:
        """The last lines that the child wrote to stderr."""
        return "\n".join(self._stderr)

    def turn(self) -> bytes:
        """The mark of the generation that the child works on, or worked on when it ended; see `turn`."""
        with self._turn_lock:
            return turn.read(self._turn_fd) if self._turn_fd >= 0 else self._last_turn

    def send(self, frame: Frame) -> None:
        """Hands a frame to the writer; never waits, never raises. A child that is gone is told by `on_exit`."""
        try:
            self._out.put_nowait(frame)
        except Full:  # it has not read for thousands of frames
            self.kill()

    def kill(self) -> None:
        """SIGKILL; `on_exit` follows."""
        if self._process is not None:
            self._process.kill()

    def stop(self, grace_s: float) -> None:
        """Asks the child to end, kills it after `grace_s` seconds; returns when it is gone and `on_exit` was called."""
        self.send(Stop())
        if not self._gone.wait(grace_s):
            self.kill()
            self._gone.wait(_END_S)

    def _live(self) -> None:
        """The reader's thread: from the child's start to its end."""
        status = None
        try:
            status = self._start_and_read()
        finally:
            self._keep_last_turn()
            try:
                self._on_exit(status)
            finally:
                self._started.set()
                self._gone.set()

    def _keep_last_turn(self) -> None:
        with self._turn_lock:
            self._last_turn = turn.read(self._turn_fd)
            os.close(self._turn_fd)
            self._turn_fd = -1

    def _start_and_read(self) -> int | None:
        # -P: a file of the working directory that is called like a module must not take its place.
        command = [sys.executable, "-P", *WORKER, str(os.getpid()), str(self._turn_fd)]
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command, stdin=pipe, stdout=pipe, stderr=pipe, env=_environment(), pass_fds=(self._turn_fd,)
            )
        except OSError:
            return None
        self._process = process
        self._started.set()
        helpers = [self._helper(self._write, process.stdin), self._helper(self._listen, process.stderr)]
        try:
            self._read(cast("BinaryIO", process.stdout))
        except BaseException:  # a callback failed: nobody hears this child any more
            process.kill()
            raise
        finally:
            status = self._reap(process, helpers)
        return status

    @staticmethod
    def _helper(work: Callable[[BinaryIO], None], pipe: IO[bytes] | None) -> threading.Thread:
        thread = threading.Thread(target=work, args=(pipe,), name=f"engine {work.__name__}", daemon=True)
        thread.start()
        return thread

    def _read(self, pipe: BinaryIO) -> None:
        try:
            while (frame := read_frame(pipe)) is not None:
                self._on_frame(frame)
        except ValueError:  # not a frame: nothing that follows could be understood
            self.kill()

    def _reap(self, process: subprocess.Popen[bytes], helpers: list[threading.Thread]) -> int:
        """Nothing more can be heard from the child: it ends now or is ended."""
        try:
            status = process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        with contextlib.suppress(Full):  # a full queue's writer meets the broken pipe
            self._out.put_nowait(None)
        for helper in helpers:
            helper.join(1.0)  # a grandchild may hold stderr open
        for pipe in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError):
                cast("BinaryIO", pipe).close()
        return status

    def _write(self, pipe: BinaryIO) -> None:
        """The writer's thread."""
        try:
            while (frame := self._out.get()) is not None:
                write_frame(pipe, frame)
        except OSError:
            pass  # the child is gone

    def _listen(self, pipe: BinaryIO) -> None:
        """Keeps the child's stderr from filling up, and its last lines."""
        while line := pipe.readline(_LINE_BYTES_MAX):
            self._stderr.append(line.decode("utf-8", "replace").rstrip())
