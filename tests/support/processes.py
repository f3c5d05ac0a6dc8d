"""Other processes of a test: they begin from a fresh interpreter, not from a fork of one with threads or a store."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
BOUND_S = 60.0


def python(module: str, *arguments: str, **options: object) -> subprocess.Popen[str]:
    """Runs a module of the tests; it reads and writes lines."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
        **options,  # pyright: ignore[reportArgumentType]
    )


def line(process: subprocess.Popen[str]) -> str:
    """The next line that a process says; an error if it ends without one."""
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said, f"the process ended with {process.wait(BOUND_S)}"
    return said.strip()


def tell(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{text}\n")
    process.stdin.flush()


def end(process: subprocess.Popen[str]) -> int:
    """Closes its input and waits for its end."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    status = process.wait(BOUND_S)
    process.stdout.close()
    return status


def in_child(act: Callable[[], int], *, as_nobody: bool = False) -> int:
    """Runs `act` in a child, on request without the superuser's rights; its result is the child's exit status."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            if as_nobody and os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            status = act()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
