"""The preloaded shim of tests/faults/shim.c: built when first needed, and spoken to from the process that it is in."""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

SOURCE = Path(__file__).parents[1] / "faults" / "shim.c"
_RECORD = struct.Struct("<IIQQ")


class Action(IntEnum):
    """What happens at the k-th call; the numbers are those of the C text."""

    COUNT = 0
    KILL_BEFORE = 1
    KILL_AFTER = 2
    EIO = 3
    ENOSPC = 4
    STOP = 5


@dataclass(frozen=True, slots=True)
class Fault:
    """At call number `at` this happens, once or from then on."""

    action: Action
    at: int
    for_good: bool = False

    def __str__(self) -> str:
        return f"{self.action.name} at call {self.at}{' and from then on' if self.for_good else ''}"


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded call that changed something, or (`said`) words that the process wrote in between."""

    kind: str
    path: str
    offset: int
    data: bytes


_KINDS = ("write", "truncate", "sync", "create", "rename", "unlink", "link", "mkdir", "said")


@cache
def built() -> Path:
    """The shared library; the test is skipped where there is no C compiler, except in CI, where it fails."""
    import pytest  # the processes that the shim is in are forked by the hundred, and have no need of it

    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        why = "no C compiler (cc or gcc) to build tests/faults/shim.c with"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    folder = Path(mkdtemp(prefix="retoma-shim-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "shim.so"
    command = [compiler, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
    done = subprocess.run([*command, "-ldl", "-lpthread"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"the shim can't be built (are the C library's headers there?):\n{done.stderr}"
    return library


class Shim:
    """The shim of this process, which was started with LD_PRELOAD."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self._library.shim_where.restype = ctypes.c_char_p

    def arm(self, folder: Path, fault: Fault) -> None:
        """From now on counts what happens under this folder, and acts when the time comes."""
        self._library.shim_arm(str(folder).encode(), ctypes.c_long(fault.at), fault.action, int(fault.for_good))

    def disarm(self) -> None:
        """The disk is mended; counting goes on."""
        self._library.shim_disarm()

    def record(self, folder: Path, log: Path) -> None:
        """From now on writes down what happens under this folder."""
        self._library.shim_record(str(folder).encode(), str(log).encode())

    def say(self, text: str) -> None:
        """Puts words into the log, behind all that has happened."""
        self._library.shim_say(text.encode())

    @property
    def calls(self) -> int:
        """How many calls were counted in this process, or in the child that armed it last."""
        return self._library.shim_calls()

    @property
    def fired(self) -> int:
        """How many times the fault has happened."""
        return self._library.shim_fired()

    @property
    def where(self) -> str:
        """The call at which it happened first, and its file."""
        call, _, path = self._library.shim_where().decode().partition(" ")
        return f"{call} {path.lstrip('/')}"


def read_log(log: Path, folder: Path) -> Iterator[Call]:
    """What was recorded, in order, with paths below the folder."""
    data = log.read_bytes()
    at, above = 0, len(f"{folder}/")  # the folder itself becomes the empty path
    while at < len(data):
        kind, path_bytes, offset, data_bytes = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        path = data[at : at + path_bytes].decode()[above:]
        at += path_bytes
        content = data[at : at + data_bytes]
        at += data_bytes
        if _KINDS[kind] in {"rename", "link"}:
            content = content[above:]
        yield Call(_KINDS[kind], path, offset, content)
