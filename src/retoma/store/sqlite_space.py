"""The free space inside a SQLite file, and how it is given back to the file system.

Deleting rows only frees pages inside the file. A file that was made with `auto_vacuum = INCREMENTAL` can be cut while
it is in use: the writer moves a few pages from its end into free ones, one short transaction at a time, and the next
checkpoint cuts the file. That costs every accepted task five percent more bytes in the WAL. A file of an older release
keeps its free pages until it is compacted, which needs it alone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import apsw

from retoma import limits
from retoma.errors import Refused, StoreFull
from retoma.store.sqlite_errors import translate

INCREMENTAL = 2
_TEMPORARY = "SQLITE_TMPDIR"


@dataclass(frozen=True, slots=True)
class Space:
    """What a file holds. `gives_back` is False for one that can only be compacted."""

    page_bytes: int
    pages: int
    free_pages: int
    gives_back: bool

    @property
    def size_bytes(self) -> int:
        """Of the file, once its WAL has been moved into it."""
        return self.pages * self.page_bytes

    @property
    def free_bytes(self) -> int:
        """Of pages that nothing uses."""
        return self.free_pages * self.page_bytes


@dataclass(frozen=True, slots=True)
class Compacted:
    """The size of a file before and after."""

    before_bytes: int
    after_bytes: int


def read_space(connection: apsw.Connection) -> Space:
    """As the connection sees the file now."""
    pragma = connection.pragma
    page_bytes, pages, free_pages = pragma("page_size"), pragma("page_count"), pragma("freelist_count")
    return Space(page_bytes, pages, free_pages, gives_back=pragma("auto_vacuum") == INCREMENTAL)


def space_of(path: Path) -> Space:
    """Of a store's file, which may be in use."""
    try:
        with closing(_connect(path, "ro")) as connection:
            return read_space(connection)
    except apsw.Error as error:
        raise translate(error, path) from error


def decide_give_back(space: Space, *, under_way: bool, all_of_it: bool) -> int:
    """How many pages one step gives back; once under way it goes on until little is left."""
    if not space.gives_back or not space.free_pages:
        return 0
    share = limits.FREE_SHARE_KEPT if under_way else limits.FREE_SHARE_MAX
    much = space.free_bytes > limits.FREE_BYTES_KEPT and space.free_pages > share * space.pages
    return min(limits.GIVE_BACK_PAGES, space.free_pages) if all_of_it or much else 0


def give_back_step(connection: apsw.Connection, *, under_way: bool, all_of_it: bool) -> int:
    """Gives some pages back within the transaction that is open; how many bytes."""
    space = read_space(connection)
    pages = decide_give_back(space, under_way=under_way, all_of_it=all_of_it)
    if not pages:
        return 0
    connection.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()  # each row is a step of it
    # Pages that only told where others were go as well.
    return (space.pages - connection.pragma("page_count")) * space.page_bytes


def compact(path: Path) -> Compacted:
    """Writes the file anew without its free pages, so that from now on it can give them back while it is in use.

    Raises Refused while another process has the store open, and StoreFull, before anything is written, when the disk
    has not the room. If the process dies, the store is whole: it is still the old one, or already the new one.
    """
    try:
        with closing(_open_alone(path)) as connection:
            before = read_space(connection)
            _require_room(path, before)
            connection.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
            with _temporary_files_in(path.absolute().parent):
                connection.execute("VACUUM")
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            return Compacted(before.size_bytes, read_space(connection).size_bytes)
    except (apsw.BusyError, apsw.LockedError) as busy:
        raise Refused(
            "another process has the store open; stop the service and try again; nothing was changed"
        ) from busy
    except apsw.Error as error:
        raise translate(error, path) from error


def room_for_compacting(space: Space) -> int:
    """How many bytes of the disk it takes for a while: the used pages twice, in a temporary file and in the WAL."""
    return 2 * (space.size_bytes - space.free_bytes) + limits.CHECKPOINT_PAGES * space.page_bytes


def _open_alone(path: Path) -> apsw.Connection:
    """A connection that lets no other in until it is closed: the mode must be chosen before the file is first read."""
    connection = _connect(path, "rw")
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path, mode: str) -> apsw.Connection:
    return apsw.Connection(
        f"file:{quote(str(path))}?mode={mode}", flags=apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READWRITE
    )


def _require_room(path: Path, space: Space) -> None:
    needed, free = room_for_compacting(space), shutil.disk_usage(path.absolute().parent).free
    if needed > free:
        raise StoreFull(
            f"compacting takes {_megabytes(needed)} of the disk of {path} for a while, and it has {_megabytes(free)}; "
            "free some space and try again; nothing was changed"
        )


@contextmanager
def _temporary_files_in(folder: Path) -> Generator[None, None, None]:
    """SQLite's temporary files, which have no name and end with the process, take this disk's room and no other's."""
    before = os.environ.get(_TEMPORARY)
    os.environ[_TEMPORARY] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_TEMPORARY]
        else:
            os.environ[_TEMPORARY] = before


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"
