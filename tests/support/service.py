"""The real service as a process: start, wait until it is ready, `kill -9`, stop.

    with start_service(tmp_path / "data") as service:
        httpx.get(f"{service.url}/healthz")
        service.kill()

Leaving the block ends the process; when the test failed, what the service wrote to standard error is printed, and kept
as evidence with its store.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import retoma
from tests.support import evidence
from tests.support.waiting import BOUND_S, wait_for

SOURCE = Path(retoma.__file__).resolve().parent.parent


def free_port() -> int:
    """A loopback port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The tests' own environment without any setting of Retoma, the model `scripted` switched on, and `extra`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RETOMA_")}
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, "PYTHONUTF8": "1", "RETOMA_SCRIPTED": "1", **(extra or {})}


def is_alive(pid: int) -> bool:
    """False for a process that is gone or only waits for its status to be asked for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def children_of(pid: int) -> list[int]:
    """The living children of a process."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if (entry / "stat").read_text().rpartition(")")[2].split()[1] == str(pid):
                    found.append(int(entry.name))
    return [child for child in found if is_alive(child)]


class RunningService:
    """One `retoma serve`. `url` is where it serves, `process` the running command."""

    def __init__(self, data_dir: Path, env: Mapping[str, str] | None, args: Sequence[str]) -> None:
        self.data_dir = data_dir
        self.url = ""
        self._folder = tempfile.TemporaryDirectory(prefix="retoma-test-", ignore_cleanup_errors=True)
        self._log = Path(self._folder.name) / "stderr.log"
        self._ready = Path(self._folder.name) / "url"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                # It stops at the end of its input, so that a killed test run leaves nothing behind.
                [
                    *(sys.executable, "-P", "-m", "retoma", "serve", "--stop-with-stdin", "--port", "0"),
                    *("--data-dir", str(data_dir), "--ready-file", str(self._ready), *args),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment(env),
                process_group=0,
            )
        evidence.process_began(self._name, lambda: self.log)
        evidence.keep(f"data-{data_dir.name}", self._files)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def token(self) -> str:
        """The local command line's token, which may do everything."""
        return (self.data_dir / "admin.token").read_text().strip()

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def log(self) -> str:
        """Everything it wrote so far."""
        return self._log.read_text(errors="replace")

    @property
    def _name(self) -> str:
        return f"service-{self.pid}.log"

    def _files(self) -> dict[str, bytes]:
        """The data directory as it lies there, for a failing test's evidence; without models, tokens and settings."""
        found = [*self.data_dir.glob("retoma.db*"), *self.data_dir.glob("snapshots/*/*")]
        return {str(path.relative_to(self.data_dir)): path.read_bytes() for path in found if path.suffix != ".db-shm"}

    def engine_pids(self) -> list[int]:
        return children_of(self.pid)

    def wait_ready(self, bound_s: float = BOUND_S) -> RunningService:
        """Returns once requests are accepted; fails with the log if the process ends before."""

        def ready() -> bool:
            assert self.process.poll() is None, f"the service ended with {self.process.returncode}:\n{self.log}"
            return self._ready.exists()

        try:
            wait_for(ready, "the service to be ready", bound_s)
        except BaseException:
            self.close(failed=True)
            raise
        self.url = self._ready.read_text().strip()
        return self

    def wait_exit(self, bound_s: float = BOUND_S) -> int:
        """The exit status, once it ends by itself; negative: the signal."""
        try:
            return self.process.wait(bound_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the service did not end within {bound_s:g} s:\n{self.log}") from None

    def kill(self, *, engines_too: bool = False) -> None:
        """`kill -9` of the service; returns when it and its engines are gone. The engines die by themselves, or at once
        with `engines_too`."""
        pids = [self.pid, *self.engine_pids()]
        if engines_too:
            os.killpg(self.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait(BOUND_S)
        wait_for(lambda: not any(map(is_alive, pids)), f"the end of {pids}")

    def stop(self, by: signal.Signals = signal.SIGTERM) -> int:
        """Ends it in good order; its exit status."""
        self.process.send_signal(by)
        return self.wait_exit()

    def close(self, *, failed: bool = False) -> None:
        """Ends it in any case; what it wrote is printed when the test failed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)  # a paused one hears nothing else
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(BOUND_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(BOUND_S)
        assert self.process.stdin is not None
        self.process.stdin.close()
        if failed:
            sys.stderr.write(f"--- standard error of the service {self.pid} ---\n{self.log}")
        evidence.process_ended(self._name)
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close(failed=error is not None)


def start_service(data_dir: Path, *, env: dict[str, str] | None = None, args: Sequence[str] = ()) -> RunningService:
    """Starts the service on a free port, or on the one in `args`, and returns when it accepts requests."""
    return RunningService(data_dir, env, args).wait_ready()


def launch_service(data_dir: Path, *, env: dict[str, str] | None = None, args: Sequence[str] = ()) -> RunningService:
    """Starts the service without waiting, for one that is expected to end."""
    return RunningService(data_dir, env, args)
