"""The snapshot file: the engine's state after some tokens, and everything needed to know whether it may be used.

A snapshot is a cache. llama.cpp accepts damaged state without a word, so a file counts only if its whole content is
proved: written beside, synced, renamed, the directory synced (a crash leaves the old files or the new one, never half
of one), and on reading every byte is covered by a checksum. Whatever does not fit is left alone, with a reason. A disk
that refuses a snapshot costs time after a crash and nothing else.

    magic 8 · format 4 · fingerprint 32 · prompt 32 · token prefix 32 · tokens 8 · state length 8 · state checksum 32 ·
    checksum of all that 32 · state
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from pathlib import Path

from retoma.failpoints import Failpoint, passing
from retoma.limits import SNAPSHOT_BYTES_MAX

MAGIC = b"RETOMA\x00S"
FORMAT = 1
TEMPORARY_SUFFIX = ".tmp"
"""Files that end so are left over from a crash, once no engine of their task is alive."""

_HEAD = struct.Struct("<8sI32s32s32sQQ32s")
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class SnapshotKey:
    """What a state belongs to."""

    fingerprint: str
    prompt_digest: str


class Misfit(Enum):
    """Why a snapshot can't be used."""

    ABSENT = "there is no such file, or it can't be read"
    FOREIGN = "this is not a snapshot"
    FORMAT = "another version of Retoma wrote this format"
    DAMAGED = "the file is incomplete or damaged"
    FINGERPRINT = "it was made by another engine, processor, model or parameter"
    PROMPT = "it belongs to another prompt"
    TOO_NEW = "it holds as many tokens as are committed, or more"
    TOKENS = "it holds other tokens than those that are committed"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state that may be restored."""

    tokens: int
    state: bytes


def read(path: Path, key: SnapshotKey, committed: Sequence[int]) -> Snapshot | Misfit:
    """The state in `path` if it is whole and belongs to the first of `committed`, else why not; never raises."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            size = os.fstat(file.fileno())
            if not stat.S_ISREG(size.st_mode):
                return Misfit.FOREIGN
            head = file.read(_HEAD.size + _DIGEST_BYTES)
            misfit = _check_head(head, size.st_size, key, committed)
            return misfit or _check_state(head, file.read())
    except (OSError, MemoryError):
        return Misfit.ABSENT


def _check_head(head: bytes, file_bytes: int, key: SnapshotKey, committed: Sequence[int]) -> Misfit | None:
    """The first thing that is wrong, from the outermost on."""
    if head[: len(MAGIC)] != MAGIC:
        return Misfit.FOREIGN
    if len(head) < _HEAD.size + _DIGEST_BYTES or _digest(head[: _HEAD.size]) != head[_HEAD.size :]:
        return Misfit.DAMAGED
    _, version, fingerprint, prompt, prefix, tokens, state_bytes, _ = _HEAD.unpack_from(head)
    if version != FORMAT:
        return Misfit.FORMAT
    if file_bytes != len(head) + state_bytes:
        return Misfit.DAMAGED
    if fingerprint != _digest(key.fingerprint.encode()):
        return Misfit.FINGERPRINT
    if prompt != _digest(key.prompt_digest.encode()):
        return Misfit.PROMPT
    if tokens >= len(committed):
        return Misfit.TOO_NEW
    return None if prefix == _prefix_digest(committed[:tokens]) else Misfit.TOKENS


def _check_state(head: bytes, state: bytes) -> Snapshot | Misfit:
    *_, tokens, state_bytes, checksum = _HEAD.unpack_from(head)
    if len(state) != state_bytes or _digest(state) != checksum:
        return Misfit.DAMAGED
    return Snapshot(tokens, state)


def write(path: Path, key: SnapshotKey, tokens: Sequence[int], state: bytes | memoryview) -> int | None:
    """Makes a durable file of `state`, which `tokens` left; returns its size in bytes, or None if the disk refused it.

    If the process dies in here, `path` has its old content or all of the new one; a temporary file may be left.
    """
    state_bytes = memoryview(state).nbytes
    if state_bytes > SNAPSHOT_BYTES_MAX:
        return None
    head = _HEAD.pack(
        MAGIC,
        FORMAT,
        _digest(key.fingerprint.encode()),
        _digest(key.prompt_digest.encode()),
        _prefix_digest(tokens),
        len(tokens),
        state_bytes,
        _digest(state),
    )
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        _make_directory(path.parent)
        _write_synced(temporary, [head, _digest(head), state])
        passing(Failpoint.SNAPSHOT_WRITTEN)
        temporary.rename(path)
        passing(Failpoint.SNAPSHOT_RENAMED)
        _sync_directory(path.parent)
        passing(Failpoint.SNAPSHOT_SYNCED)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        return None
    return len(head) + _DIGEST_BYTES + state_bytes


def _make_directory(path: Path) -> None:
    """Creates the folder of a task; a new name is durable only once the folder above is synced."""
    if path.is_dir():
        return
    _make_directory(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    _sync_directory(path.parent)


def _write_synced(path: Path, parts: Sequence[bytes | memoryview]) -> None:
    # The state holds the text of a conversation: nobody but the owner may read it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        for part in parts:
            rest = memoryview(part).cast("B")
            while rest:
                rest = rest[file.write(rest) :]
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(content: bytes | memoryview) -> bytes:
    return blake2b(content, digest_size=_DIGEST_BYTES).digest()


def _prefix_digest(tokens: Sequence[int]) -> bytes:
    return _digest(array("q", tokens).tobytes())
