"""A file that gets its name only once it is whole and durable, and never takes the place of another."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from retoma.errors import Refused, StoreUnavailable


@contextmanager
def new_file(path: Path) -> Generator[Path, None, None]:
    """Gives a name to write under; after the block the file is `path`.

    Raises Refused when something is there already, and StoreUnavailable when the folder doesn't take it. If the block
    raises or the process dies, there is no file of this name.
    """
    staged = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        staged.unlink(missing_ok=True)
        yield staged
        _sync(staged)
        os.link(staged, path)  # unlike a rename, it never replaces what somebody has put there meanwhile
        _sync(path.absolute().parent)
    except FileExistsError as error:
        raise Refused(f"{path} is there already; choose another name") from error
    except OSError as error:
        raise StoreUnavailable(f"{path} can't be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            staged.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Makes a file's content, or a directory's names, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
