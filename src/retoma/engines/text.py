"""From tokens to text, so that tokens and text can be committed together.

A token may end in the middle of a character or of a stop string, so the text of the newest tokens may not be known
yet. The assembler emits groups: some tokens and exactly the text that they add. A group ends where nothing is
withheld: not inside a character, and not inside anything that could still become a stop string. So whoever has
committed groups can go on with a fresh assembler, and the text comes out as if there had been no interruption.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Group:
    """Tokens and the text they add, to be committed as one."""

    tokens: list[int]
    text: str


@dataclass(frozen=True, slots=True)
class _Mark:
    token: int
    end: int
    """Length of the pending text after this token."""
    clean: bool
    """No character is incomplete after this token."""


class TextAssembler:
    """Withholds an incomplete character and what may become a stop string. Invalid bytes become U+FFFD."""

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = tuple(text for text in stop if text)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._marks: list[_Mark] = []
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """A stop string was met; `finish` gives what is left, and no token may follow."""
        return self._stopped

    def push(self, token: int, piece: bytes) -> Group | None:
        """Takes the next token; returns a group if some text is certain now."""
        assert not self._stopped
        self._text += self._decoder.decode(piece)
        self._marks.append(_Mark(token, len(self._text), clean=not self._decoder.getstate()[0]))
        cut = self._stop_start()
        if cut is not None:
            self._text, self._stopped = self._text[:cut], True
            return None
        return self._emit(len(self._text) - self._withheld())

    def finish(self) -> Group:
        """The tokens and the text that no group held, possibly none; an incomplete character becomes U+FFFD."""
        if not self._stopped:
            self._text += self._decoder.decode(b"", final=True)
        group = Group([mark.token for mark in self._marks], self._text)
        self._forget()
        return group

    def replay(self, pairs: Iterable[tuple[int, bytes]]) -> None:
        """Takes tokens that are committed, with their bytes; their text is out already, so nothing is emitted."""
        for token, piece in pairs:
            if self._stopped:
                break
            self.push(token, piece)
        self._forget()

    def _forget(self) -> None:
        self._text = ""
        self._marks.clear()
        self._decoder.reset()

    def _emit(self, certain: int) -> Group | None:
        count = next((i + 1 for i in reversed(range(len(self._marks))) if self._ends_group(self._marks[i], certain)), 0)
        if not count:
            return None
        end = self._marks[count - 1].end
        group = Group([mark.token for mark in self._marks[:count]], self._text[:end])
        self._text = self._text[end:]
        self._marks = [_Mark(mark.token, mark.end - end, mark.clean) for mark in self._marks[count:]]
        return group

    @staticmethod
    def _ends_group(mark: _Mark, certain: int) -> bool:
        # A group without text would be an event that says nothing; such tokens wait for the next text.
        return mark.clean and 0 < mark.end <= certain

    def _stop_start(self) -> int | None:
        starts = [start for text in self._stop if (start := self._text.find(text)) >= 0]
        return min(starts, default=None)

    def _withheld(self) -> int:
        """Length of the longest end of the pending text that begins a stop string."""
        longest = max(map(len, self._stop), default=1) - 1
        for length in range(min(longest, len(self._text)), 0, -1):
            end = self._text[-length:]
            if any(text.startswith(end) for text in self._stop):
                return length
        return 0
