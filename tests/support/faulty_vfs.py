"""A file layer for SQLite that fails on command, under apsw."""

from __future__ import annotations

import itertools
from typing import Any

import apsw

_numbers = itertools.count()


class FaultyVfs(apsw.VFS):
    """Passes everything on to the system's layer, except what it was told to fail."""

    def __init__(self) -> None:
        self.name = f"faulty-{next(_numbers)}"
        super().__init__(self.name, "")
        self.mend()

    def mend(self) -> None:
        """From now on everything works."""
        self._step = ""
        self._suffix = ""
        self._error: type[apsw.Error] = apsw.IOError
        self._left = 0.0
        self._after = 0
        self.failures = 0

    def fail(self, step: str, suffix: str, error: type[apsw.Error], *, times: int | None, after: int = 0) -> None:
        """Fails `step` (write or sync) on files with this suffix, after so many calls, so many times or for ever."""
        self.mend()
        self._step, self._suffix, self._error = step, suffix, error
        self._left = float("inf") if times is None else times
        self._after = after

    def passes(self, step: str, file: str) -> None:
        if step != self._step or not file.endswith(self._suffix) or self._left <= 0:
            return
        if self._after:
            self._after -= 1
            return
        self._left -= 1
        self.failures += 1
        raise self._error(f"{step} failed on purpose")

    def xOpen(self, name: Any, flags: list[int]) -> FaultyFile:  # noqa: N802 - SQLite's name
        return FaultyFile(self, name, flags)


class FaultyFile(apsw.VFSFile):
    def __init__(self, vfs: FaultyVfs, name: Any, flags: list[int]) -> None:
        self._vfs = vfs
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self._vfs.passes("write", self._name)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._vfs.passes("sync", self._name)
        super().xSync(flags)
