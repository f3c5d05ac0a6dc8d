"""Disks with folders, as a cut of the power may leave them behind, made from a recording of the shim.

A file's content is durable once the file was synced, its name once its folder was. So a file has an identity of its
own beside its name, and of the changes of a folder since its last sync any may be there. A process that renames a
file and is then cut off may leave the old name, the new one, both or neither.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.support.power_vfs import Mode, Step, apply, apply_torn, survivors
from tests.support.shim import Call


@dataclass(slots=True)
class File:
    """What is durable of a file, and the writes that are not yet."""

    durable: bytearray
    pending: list[Step] = field(default_factory=list)

    def image(self, rng: Random, mode: Mode) -> bytes:
        data = bytearray(self.durable)
        for step in survivors(self.pending, rng, mode):
            if mode == "torn" and step.kind == "write" and rng.random() < 0.5:
                apply_torn(data, step, rng)
            else:
                apply(data, step)
        return bytes(data)


FOLDER = None
Entry = File | None
"""What a name stands for; None: a folder."""
Change = tuple[str, bool, Entry]
"""A path, whether its name was made (else it was taken away), and what it stands for."""


class FolderDisk:
    """All files of one data directory; `now` is what processes see, `durable` what is safe."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.now: dict[str, Entry] = {path: File(bytearray(data)) for path, data in files.items()}
        for path in files:
            self.now |= dict.fromkeys(_above(path), FOLDER)
        self.durable = dict(self.now)
        self.pending: dict[str, list[Change]] = defaultdict(list)
        """By folder, what has happened to its names since it was synced."""

    def take(self, call: Call) -> None:
        """One recorded call has been made."""
        match call.kind:
            case "write" | "truncate":
                self._file(call.path).pending.append(Step(call.kind, offset=call.offset, data=call.data))
            case "sync":
                self._sync(call.path)
            case "create":
                self._change(call.path, File(bytearray()))
            case "mkdir":
                self._change(call.path, FOLDER)
            case "rename":
                entry = self.now[call.path]
                self._take_away(call.path)
                self._change(call.data.decode(), entry)
            case "link":
                self._change(call.data.decode(), self.now[call.path])
            case "unlink":
                self._take_away(call.path)
            case _:
                assert call.kind == "said"

    def _sync(self, path: str) -> None:
        """A file's content, or a folder's names."""
        file = self.now.get(path)
        if file is FOLDER:
            for change in self.pending.pop(path, []):
                _change(self.durable, change)
            return
        for step in file.pending:
            apply(file.durable, step)
        file.pending.clear()

    def image(self, rng: Random, mode: Mode) -> dict[str, bytes]:
        """The files that a cut of the power at this moment may leave behind."""
        names = dict(self.durable)
        for changes in self.pending.values():
            for change in survivors(changes, rng, mode):
                _change(names, change)
        return {
            path: entry.image(rng, mode)
            for path, entry in sorted(names.items(), key=lambda one: one[0])
            if entry is not FOLDER and all(above in names for above in _above(path))
        }

    def _file(self, path: str) -> File:
        entry = self.now[path]
        assert entry is not FOLDER, path
        return entry

    def _change(self, path: str, entry: Entry) -> None:
        self._note((path, True, entry))

    def _take_away(self, path: str) -> None:
        self._note((path, False, self.now[path]))

    def _note(self, change: Change) -> None:
        _change(self.now, change)
        self.pending[change[0].rpartition("/")[0]].append(change)


def _change(names: dict[str, Entry], change: Change) -> None:
    path, made, entry = change
    if made:
        names[path] = entry
    else:
        names.pop(path, None)


def _above(path: str) -> list[str]:
    """The folders in which a path lies, without the data directory itself."""
    return [str(folder) for folder in Path(path).parents if str(folder) != "."]


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file of a real folder, without SQLite's shared index."""
    found = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("-shm")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}
