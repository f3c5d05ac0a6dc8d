"""A service that a command starts for itself, as a process of its own.

The child stops when its standard input ends, so that it never outlives the command, also when that is killed. It
leads its own process group: Ctrl-C in the terminal reaches only the command, and `kill` ends the service and its
engine at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from retoma.cli.failures import OperationFailed

_READY_S = 60.0
_STOP_S = 20.0
_POLL_S = 0.01


def free_port() -> int:
    """A port of the loopback address that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class ChildService:
    """`retoma serve` on a data directory. A context manager: leaving it ends the process, whatever happened."""

    def __init__(self, data_dir: Path, port: int, environment: Mapping[str, str] | None = None) -> None:
        self._data_dir = data_dir
        self._port = port
        self._environment = dict(os.environ) | dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="retoma-")
        self._log = Path(self._folder.name) / "service.log"
        self._ready = Path(self._folder.name) / "url"

    @property
    def pid(self) -> int:
        """The service's process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        """Where it serves; the same after each start."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Returns once requests are accepted; raises OperationFailed with the service's last words."""
        self._ready.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [
                    *(sys.executable, "-P", "-m", "retoma", "serve", "--stop-with-stdin"),
                    *("--host", "127.0.0.1", "--port", str(self._port)),
                    *("--data-dir", str(self._data_dir), "--ready-file", str(self._ready)),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment,
                process_group=0,
            )
        until = time.monotonic() + _READY_S
        while not self._ready.exists():
            if self._process.poll() is not None or time.monotonic() > until:
                raise OperationFailed(f"the service did not start: {self._last_words()}")
            time.sleep(_POLL_S)

    def engine_pids(self) -> list[int]:
        """Process ids of its engines: the children of the service. Empty where there is no /proc."""
        return [pid for pid, parent in _parents().items() if parent == self.pid]

    def kill(self) -> list[int]:
        """SIGKILL to the service and its engines at one stroke; returns their ids when all are gone."""
        process = self._process
        assert process is not None
        pids = [self.pid, *self.engine_pids()]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._close_input()
        until = time.monotonic() + _STOP_S
        while any(is_alive(pid) for pid in pids[1:]):
            if time.monotonic() > until:
                raise OperationFailed(f"the engine {pids[1:]} is still there after SIGKILL; end it by hand")
            time.sleep(_POLL_S)
        return pids

    def stop(self) -> None:
        """Ends it in good order, or by force if that takes too long."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._close_input()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self.stop()
        finally:
            self._folder.cleanup()

    def _close_input(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("Error: ") if lines else "it said nothing; look at the memory and the disk"


def is_alive(pid: int) -> bool:
    """False for a process that has ended, also if nobody has asked for its status yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return _status(pid)[0] != "Z"


def _parents() -> dict[int, int]:
    folder = Path("/proc")
    pids = [int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal()] if folder.is_dir() else []
    return {pid: _status(pid)[1] for pid in pids}


def _status(pid: int) -> tuple[str, int]:
    """State letter and parent; ("", 0) where /proc doesn't tell. The name before them may hold spaces and brackets."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return "", 0
    return state, int(parent)
