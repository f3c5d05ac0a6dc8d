"""A model file of another machine, fetched into `models/incoming`: a fetch that was killed is gone on with.

The file's name there comes from its announced digest, so the next try finds what is there already, hashes it, and asks
for the rest alone. Two who fetch the same content go one after the other, by a lock on that file, and the second finds
the work done. Only content with the announced digest and size is taken in; what is left behind is swept after a day.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO

import httpx

from retoma.blobs.gguf_file import read_facts
from retoma.blobs.models import Imported, ModelFiles, Progress
from retoma.errors import RetomaError

_CHUNK = 1024 * 1024
# Before each next try that brings nothing new; one that brings something begins the row again.
_PAUSES_S = (0.0, 0.5, 1.0, 2.0, 4.0)
_TIMEOUT = httpx.Timeout(30.0, read=60.0)
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


class DownloadFailed(RetomaError):
    """The file can't be fetched now; run the same command again, and it goes on where it stopped."""


class WrongContent(RetomaError):
    """What was fetched is not what the server had announced; it was thrown away."""


class NoRoom(RetomaError):
    """The disk has no room for the file."""


@dataclass(frozen=True, slots=True)
class Remote:
    """What a server has announced. Of the two digests at most one is known: of the bytes, or as git hashes a file."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    size_bytes: int
    sha256: str | None = None
    git_sha1: str | None = None

    @property
    def key(self) -> str | None:
        """Names the content; None when nothing would show that an earlier part belongs to it."""
        return self.sha256 or self.git_sha1


def take_in(files: ModelFiles, remote: Remote, progress: Progress) -> tuple[Imported, dict[str, object]]:
    """Fetches the file, checks it, and puts it under its digest; what it is, and what it says of itself.

    Raises DownloadFailed, WrongContent, NoRoom, InvalidRequest for what is no model, or OSError.
    """
    with _locked(files.part(remote.key or f"{os.getpid()}-download")) as (path, part):
        known = _taken_in_before(files, remote, progress)
        if known is not None:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            return known, read_facts(files.path(known.digest))
        if remote.key is None:
            part.truncate(0)
        _require_room(path, remote.size_bytes - path.stat().st_size)
        try:
            imported = _fetch(part, remote, progress)
            facts = read_facts(path)
        except BaseException as error:
            # What has come stays for the next try, if that can tell that it belongs to the same content.
            if remote.key is None or (isinstance(error, RetomaError) and not isinstance(error, DownloadFailed)):
                path.unlink(missing_ok=True)
            raise
        files.adopt(path, imported)
        return imported, facts


def _taken_in_before(files: ModelFiles, remote: Remote, progress: Progress) -> Imported | None:
    if remote.sha256 is None or not files.path(remote.sha256).exists():
        return None
    return Imported(remote.sha256, remote.size_bytes) if files.matches(remote.sha256, progress) else None


@contextmanager
def _locked(path: Path) -> Generator[tuple[Path, BinaryIO], None, None]:
    """The file, for this process alone; waits for another that fetches the same."""
    while True:
        with path.open("a+b") as part:
            fcntl.flock(part, fcntl.LOCK_EX)
            if _is_at(path, part):
                yield path, part
                return
        # Whoever had the lock has put the file under its digest: the name is free again.


def _is_at(path: Path, part: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(part.fileno()))
    except FileNotFoundError:
        return False


def _require_room(path: Path, needed: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise NoRoom(
            f"the disk of {path.parent} has {free / 1e6:.0f} MB left and the rest of the file takes "
            f"{needed / 1e6:.0f} MB; free some space and try again"
        )


class _Content:
    """What has been written so far, hashed as it is announced."""

    def __init__(self, part: BinaryIO, remote: Remote, progress: Progress) -> None:
        self._part = part
        self._remote = remote
        self._progress = progress
        self.begin()

    def begin(self) -> None:
        """Starts with nothing."""
        self.size = 0
        self._sha256 = hashlib.sha256()
        head = b"blob %d\0" % self._remote.size_bytes
        self._git = hashlib.sha1(head, usedforsecurity=False) if self._remote.git_sha1 else None

    def read_again(self) -> None:
        """Starts with what an earlier try has left."""
        self._part.seek(0)
        while chunk := self._part.read(_CHUNK):
            self._count(chunk)

    def throw_away(self) -> None:
        """What was there is not the beginning of this file."""
        self._part.truncate(0)
        self.begin()

    def write(self, chunk: bytes) -> None:
        """The next piece."""
        self._part.write(chunk)
        self._count(chunk)

    def _count(self, chunk: bytes) -> None:
        self._sha256.update(chunk)
        if self._git is not None:
            self._git.update(chunk)
        self.size += len(chunk)
        self._progress(self.size, self._remote.size_bytes)

    def checked(self) -> Imported:
        """The whole file, durable; raises WrongContent."""
        self._part.flush()
        os.fsync(self._part.fileno())
        remote, sha256 = self._remote, self._sha256.hexdigest()
        if self.size != remote.size_bytes:
            raise WrongContent(f"the server has sent {self.size} bytes and not the {remote.size_bytes} it announced")
        git_sha1 = self._git.hexdigest() if self._git is not None else None
        if remote.sha256 not in {None, sha256} or remote.git_sha1 != git_sha1:
            raise WrongContent(
                f"what was fetched has another digest ({sha256[:12]}…) than the server announced "
                f"({(remote.key or '')[:12]}…); it was thrown away; try again"
            )
        return Imported(sha256, self.size)


def _fetch(part: BinaryIO, remote: Remote, progress: Progress) -> Imported:
    content = _Content(part, remote, progress)
    content.read_again()
    if content.size > remote.size_bytes:
        content.throw_away()
    tries = list(_PAUSES_S)
    while content.size < remote.size_bytes:
        had = content.size
        problem = _fetch_rest(content, remote)
        if content.size > had:
            tries = list(_PAUSES_S)
        if problem is not None:
            if not tries:
                raise DownloadFailed(
                    f"the server breaks off after {content.size} of {remote.size_bytes} bytes ({problem}); "
                    "run the same command again, and it goes on from there"
                )
            part.flush()
            time.sleep(tries.pop(0))
    return content.checked()


def _fetch_rest(content: _Content, remote: Remote) -> str | None:
    """Asks for what is missing and writes what comes; what went wrong, if another try may go better."""
    headers = {**remote.headers, "Accept-Encoding": "identity"}
    if content.size:
        headers["Range"] = f"bytes={content.size}-"
    try:
        # On the way to another host httpx takes the token off.
        with httpx.stream("GET", remote.url, headers=headers, timeout=_TIMEOUT, follow_redirects=True) as answer:
            if answer.status_code in _TRY_AGAIN:
                return f"status {answer.status_code}"
            if not answer.is_success:
                raise DownloadFailed(f"the server refuses the file with status {answer.status_code}; try again later")
            if content.size and not _goes_on_at(answer, content.size):
                content.throw_away()
            for chunk in answer.iter_raw():  # as it comes: what is gathered first is lost with the line
                if content.size + len(chunk) > remote.size_bytes:
                    raise WrongContent(f"the server sends more than the {remote.size_bytes} bytes it announced")
                content.write(chunk)
    except httpx.HTTPError as error:
        return str(error) or type(error).__name__
    return None if content.size == remote.size_bytes else "the answer was short"


def _goes_on_at(answer: httpx.Response, size: int) -> bool:
    """False for a server that sends the file from its beginning, whatever it was asked for."""
    begins = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return answer.status_code == HTTPStatus.PARTIAL_CONTENT and begins == str(size)
