"""Whose turn it is in an engine's process: sixteen bytes of memory that the service shares with it.

A process that dies can't say what it was doing, and a frame before each step would cost more than the step. So the
engine leaves a mark here before it works on a text, and the service reads it afterwards: the text that was being worked
on has killed the engine, the others have only been there.
"""

from __future__ import annotations

import hashlib
import mmap
import os

MARK_BYTES = 16
NOBODY = bytes(MARK_BYTES)


def mark_of(key: str) -> bytes:
    """The mark of one generation."""
    return hashlib.sha256(key.encode()).digest()[:MARK_BYTES]


def new_memory() -> int:
    """A file descriptor of memory for one mark, to be handed to a child; the caller closes it."""
    fd = os.memfd_create("retoma-turn")
    os.ftruncate(fd, MARK_BYTES)
    return fd


def read(fd: int) -> bytes:
    """The mark that stands there now."""
    return os.pread(fd, MARK_BYTES, 0)


class Turn:
    """The engine's side."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, MARK_BYTES)

    def begin(self, mark: bytes) -> None:
        """From now on it is the turn of the generation with this mark."""
        self._memory[:] = mark
