"""Model files, content-addressed: `models/sha256/<aa>/<digest>`, read-only, never in the database (P-11.1-files).

An import copies the file to `models/incoming/` while hashing it, syncs it, gives it its digest for a name, and syncs
the directories; only then may a row name it. It can be interrupted anywhere and repeated: what is left in `incoming`,
and a file under its digest without a row, are orphans that the sweep removes after a grace of a day.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from retoma.blobs.files import make_directory, sync_directory
from retoma.errors import InvalidRequest, ModelUnavailable
from retoma.failpoints import Failpoint, passing

_CHUNK = 4 * 1024 * 1024
GGUF_MAGIC = b"GGUF"

Progress = Callable[[int, int], None]
"""Told how many bytes of how many are done."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A file that is durable under its digest."""

    digest: str
    size_bytes: int


class ModelFiles:
    """The folder `models`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._incoming = folder / "incoming"

    def path(self, digest: str) -> Path:
        """Where the file with this digest lies or would lie."""
        return self._folder / "sha256" / digest[:2] / digest

    def seen(self, digest: str) -> list[int] | None:
        """Size, times and inode of the file, by which a change is noticed without reading it; None when it is missing.

        Raises OSError for a folder that can't be looked into.
        """
        try:
            status = self.path(digest).stat()
        except FileNotFoundError:
            return None
        return [status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns]

    def incoming(self, name: str) -> Path:
        """A file that somebody has put into the folder `incoming`; raises InvalidRequest for anything else."""
        path = self._incoming / name
        plain = path.parent == self._incoming and path.name == name and not name.startswith(".")
        if not plain or path.is_symlink() or not path.is_file():
            raise InvalidRequest("name a file in the folder models/incoming of the data directory", param="file")
        return path

    def import_file(self, source: Path, progress: Progress) -> Imported:
        """Copies a GGUF file in; raises InvalidRequest for anything else and OSError for a full disk."""
        make_directory(self._incoming)
        staged = self._incoming / f"{os.getpid()}.part"
        try:
            with source.open("rb") as reading:
                if reading.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
                    raise InvalidRequest(f"{source} is not a GGUF file")
                reading.seek(0)
                imported = _copy(reading, staged, os.fstat(reading.fileno()).st_size, progress)
            self.adopt(staged, imported)
        finally:
            with contextlib.suppress(OSError):  # the sweep takes it later; how the import ended counts
                staged.unlink(missing_ok=True)
        return imported

    def part(self, key: str) -> Path:
        """Where a download of this content is staged; the folder is made."""
        make_directory(self._incoming)
        return self._incoming / f"{key}.part"

    def adopt(self, staged: Path, imported: Imported) -> None:
        """Gives a staged file, whose content is durable, its digest for a name."""
        passing(Failpoint.MODEL_STAGED)
        target = self.path(imported.digest)
        make_directory(target.parent)
        staged.chmod(0o444)
        staged.replace(target)
        passing(Failpoint.MODEL_RENAMED)
        sync_directory(target.parent)

    def matches(self, digest: str, progress: Progress) -> bool:
        """Whether the file still has its digest; raises ModelUnavailable if it can't be read."""
        path = self.path(digest)
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                return _digest(file, size, progress) == digest
        except OSError as error:
            raise ModelUnavailable(f"the model file {path} can't be read: {error.strerror}") from error

    def remove(self, digest: str) -> None:
        """Removes a file that no row names; one that can't be removed now is left to the sweep."""
        with contextlib.suppress(OSError):
            self.path(digest).unlink(missing_ok=True)

    def orphans(self, known: Collection[str], older_than_s: float, now_s: float) -> list[Path]:
        """Files that no row names and that are older than a grace, staged ones included."""
        found = [*self._incoming.glob("*.part"), *(self._folder / "sha256").glob("*/*")]
        orphans: list[Path] = []
        for path in found:
            with contextlib.suppress(FileNotFoundError):
                if path.name not in known and now_s - path.stat().st_mtime > older_than_s:
                    orphans.append(path)
        return orphans


def _copy(reading: BinaryIO, staged: Path, size: int, progress: Progress) -> Imported:
    sha = hashlib.sha256()
    done = 0
    with staged.open("wb") as writing:
        while chunk := reading.read(_CHUNK):
            sha.update(chunk)
            writing.write(chunk)
            done += len(chunk)
            progress(done, size)
        writing.flush()
        os.fsync(writing.fileno())
    return Imported(sha.hexdigest(), done)


def _digest(file: BinaryIO, size: int, progress: Progress) -> str:
    sha = hashlib.sha256()
    done = 0
    while chunk := file.read(_CHUNK):
        sha.update(chunk)
        done += len(chunk)
        progress(done, size)
    return sha.hexdigest()
