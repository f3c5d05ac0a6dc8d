"""The real `retoma` command as a process, with bounds on every wait."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support import evidence
from tests.support.service import environment
from tests.support.waiting import wait_for

BOUND_S = 60.0


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    out: str
    err: str


def run_retoma(
    *args: str | Path, env: Mapping[str, str] | None = None, given: str = "", bound_s: float = BOUND_S
) -> Ended:
    """Runs one command to its end."""
    command = [sys.executable, "-P", "-m", "retoma", *map(str, args)]
    done = subprocess.run(
        command, env=environment(env), input=given, capture_output=True, text=True, timeout=bound_s, check=False
    )
    return Ended(done.returncode, done.stdout, done.stderr)


class Running:
    """A command under way, whose output goes to files so that it can be looked at meanwhile. Ended with the block."""

    def __init__(self, folder: Path, *args: str | Path, env: Mapping[str, str] | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "retoma", *map(str, args)],
                env=environment(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        evidence.keep(f"command-{self.process.pid}.log", self._err)

    @property
    def out(self) -> str:
        # A character's bytes come in one write but may be read in two.
        return self._out.read_bytes().decode("utf-8", "ignore")

    @property
    def err(self) -> str:
        return self._err.read_text()

    def wait_for_out(self, characters: int) -> None:
        """Returns once it has printed so much; fails if it ends before."""

        def enough() -> bool:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.err}"
            return len(self.out) >= characters

        wait_for(enough, f"{characters} characters of output")

    def wait_for_err(self, part: str) -> None:
        wait_for(lambda: part in self.err, f"{part!r} on standard error")

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def wait(self) -> Ended:
        return Ended(self.process.wait(BOUND_S), self.out, self.err)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(BOUND_S)
        if error is not None:
            sys.stderr.write(f"--- standard error of the command ---\n{self.err}")
