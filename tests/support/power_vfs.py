"""Power loss, simulated: a file layer that records what SQLite does, and the disks that a cut may leave behind.

What it takes from the real world. A write that was not synced may be there or not, in any combination, and torn at 512
bytes. A file's name is durable only once its directory was synced; SQLite does that with the first sync of a new WAL or
journal. A deleted file may come back with what was durable of it. What was synced stays.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeVar

import apsw

T = TypeVar("T")
SECTOR = 512
Kind = Literal["write", "truncate", "sync", "delete", "said"]
Mode = Literal["drop", "keep", "prefix", "subset", "torn"]
MODES: tuple[Mode, ...] = ("drop", "keep", "prefix", "subset", "torn")
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Step:
    """One call of SQLite, or (`said`) something that a client was told after all calls before."""

    kind: Kind
    file: str = ""
    offset: int = 0
    data: bytes = b""
    said: Any = None
    syncs_directory: bool = False


class RecordingVfs(apsw.VFS):
    """Everything goes to the system's layer too, so that the workload runs as always."""

    def __init__(self) -> None:
        self.name = f"recording-{next(_numbers)}"
        self.steps: list[Step] = []
        super().__init__(self.name, "")

    def say(self, what: Any) -> None:
        """Marks that a client was told this, now."""
        self.steps.append(Step("said", said=what))

    def xOpen(self, name: Any, flags: list[int]) -> RecordingFile:  # noqa: N802 - SQLite's name
        return RecordingFile(self, name, flags)

    def xDelete(self, name: str, syncdir: bool) -> None:  # noqa: N802
        self.steps.append(Step("delete", Path(name).name, syncs_directory=bool(syncdir)))
        super().xDelete(name, syncdir)


class RecordingFile(apsw.VFSFile):
    def __init__(self, vfs: RecordingVfs, name: Any, flags: list[int]) -> None:
        self._steps = vfs.steps
        self._file = Path(name.filename() if isinstance(name, apsw.URIFilename) else str(name)).name
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self._steps.append(Step("write", self._file, offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self._steps.append(Step("truncate", self._file, size))
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        self._steps.append(Step("sync", self._file))


@dataclass(slots=True)
class Disk:
    """What is durable, what is not yet, and which names are not durable yet."""

    durable: dict[str, bytearray]
    pending: dict[str, list[Step]] = field(default_factory=dict)
    new_names: set[str] = field(default_factory=set)
    deleted: dict[str, bytes] = field(default_factory=dict)

    def take(self, step: Step) -> None:
        match step.kind:
            case "write" | "truncate":
                if step.file not in self.durable:
                    self.durable[step.file] = bytearray()
                    self.new_names.add(step.file)
                self.pending.setdefault(step.file, []).append(step)
            case "sync":
                for one in self.pending.pop(step.file, []):
                    apply(self.durable[step.file], one)
                if step.file in self.new_names:
                    self.new_names.clear()
                    self.deleted.clear()
            case "delete":
                if step.syncs_directory:
                    self.deleted.clear()
                elif step.file in self.durable and step.file not in self.new_names:
                    self.deleted[step.file] = bytes(self.durable[step.file])
                self.durable.pop(step.file, None)
                self.pending.pop(step.file, None)
                self.new_names.discard(step.file)
            case "said":
                pass

    def image(self, rng: Random, mode: Mode) -> dict[str, bytes]:
        """The files that a cut of the power at this moment may leave behind."""
        files = {name: data for name, data in self.deleted.items() if mode == "drop" or rng.random() < 0.5}
        for name, durable in self.durable.items():
            if name in self.new_names and (mode == "drop" or (mode in {"subset", "torn"} and rng.random() < 0.3)):
                continue
            data = bytearray(durable)
            for step in survivors(self.pending.get(name, []), rng, mode):
                if mode == "torn" and step.kind == "write" and rng.random() < 0.5:
                    apply_torn(data, step, rng)
                else:
                    apply(data, step)
            files[name] = bytes(data)
        return files


def survivors(pending: Sequence[T], rng: Random, mode: Mode) -> Sequence[T]:
    """Of what was not synced, that which is there all the same."""
    match mode:
        case "drop":
            return ()
        case "keep":
            return pending
        case "prefix":
            return pending[: rng.randint(0, len(pending))]
        case _:
            return [step for step in pending if rng.random() < 0.6]


def apply(data: bytearray, step: Step) -> None:
    """A write or a truncation, as it was meant."""
    if step.kind == "truncate":
        del data[step.offset :]
        data.extend(bytes(step.offset - len(data)))
        return
    data.extend(bytes(max(0, step.offset - len(data))))
    data[step.offset : step.offset + len(step.data)] = step.data


def apply_torn(data: bytearray, step: Step, rng: Random) -> None:
    """Each sector of the write lands, or does not, or, rarely, is garbage."""
    end = step.offset + len(step.data)
    for sector in range(step.offset - step.offset % SECTOR, end, SECTOR):
        first, last = max(sector, step.offset), min(sector + SECTOR, end)
        fate = rng.random()
        if fate < 0.45:
            apply(data, Step("write", offset=first, data=step.data[first - step.offset : last - step.offset]))
        elif fate >= 0.95:
            apply(data, Step("write", offset=first, data=rng.randbytes(last - first)))
