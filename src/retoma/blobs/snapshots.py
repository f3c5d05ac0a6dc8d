"""Where snapshot files lie: `snapshots/<task>/<fencing token>-<tokens>.snap`.

Deleting any of them loses nothing but time.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path


class SnapshotFolder:
    """The folder `snapshots`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def pattern(self, task_id: str, fencing_token: int) -> str:
        """Path for a task's new files, with `{tokens}` for the number of tokens."""
        return str(self._folder / task_id / f"{fencing_token}-{{tokens}}.snap")

    def absolute(self, path: str) -> Path:
        """A registered path as a file."""
        return self._folder / path

    def relative(self, path: str) -> str:
        """A file as it is registered."""
        return str(Path(path).relative_to(self._folder))

    def remove(self, paths: Iterable[str]) -> None:
        """Removes files whose rows are gone; one that can't be removed goes with its task's folder."""
        for path in paths:
            with contextlib.suppress(OSError):
                self.absolute(path).unlink(missing_ok=True)

    def remove_all(self, task_id: str) -> None:
        """Removes a task's folder."""
        shutil.rmtree(self._folder / task_id, ignore_errors=True)

    def files(self, task_id: str) -> list[Path]:
        """What lies in a task's folder."""
        return list((self._folder / task_id).glob("*"))

    def tasks(self) -> list[str]:
        """The tasks that have a folder."""
        return [path.name for path in self._folder.iterdir()] if self._folder.is_dir() else []
