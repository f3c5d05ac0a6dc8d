"""How an instance shows that its process lives: a lock that the system frees at the very moment the process ends.

It makes a take-over quick, and decides nothing else: that a write is right is the fencing token's work. On SQLite all
instances run on one machine, and the lock is one on a file beside the database.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Protocol


class Liveness(Protocol):
    """One lock per instance. Every method may block for a few seconds, on the disk or on the server."""

    one_machine: bool
    """All instances run on one machine, so that one which began before the machine's last start is gone."""

    def hold(self, instance_id: str) -> None:
        """Holds this instance's lock from now on, in the place of the one that an earlier name of it held.

        Asked again, makes sure that it is still held; raises StoreUnavailable when that can't be said.
        """
        ...

    def is_free(self, instance_id: str) -> bool:
        """True if no living process holds this lock; raises StoreUnavailable."""
        ...

    def forget(self, instance_id: str) -> None:
        """Removes what is left of a dead instance's lock."""
        ...

    def release(self) -> None:
        """Frees the lock: the others may take over at once."""
        ...


class LockFile:
    """An exclusive lock for the life of the process. Children do not inherit it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """Frees the lock and removes the file."""
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            os.close(self._fd)


def is_free(path: Path) -> bool:
    """True if no living process holds this lock."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(fd)


class FileLiveness:
    """Locks on files in one folder, which all instances of a store share."""

    one_machine = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: LockFile | None = None

    def path(self, instance_id: str) -> Path:
        """Where an instance's lock lies."""
        return self._folder / f"{instance_id}.lock"

    def hold(self, instance_id: str) -> None:
        """See Liveness.hold; once taken, only the end of the process or `release` frees it."""
        path = self.path(instance_id)
        if self._lock is not None and self._lock.path == path:
            return
        old, self._lock = self._lock, LockFile(path)
        if old is not None:
            old.release()

    def is_free(self, instance_id: str) -> bool:
        """See Liveness.is_free."""
        return is_free(self.path(instance_id))

    def forget(self, instance_id: str) -> None:
        """See Liveness.forget."""
        self.path(instance_id).unlink(missing_ok=True)

    def release(self) -> None:
        """See Liveness.release."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
