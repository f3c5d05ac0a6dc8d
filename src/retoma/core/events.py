"""Events of a task's log: how they are made, and the bytes under which they are sent.

An event is stored without its type and its sequence number, which are put in front when it is sent. The sent text is
thus a pure function of the row, the same for every reader and for ever (invariant I15).
"""

from __future__ import annotations

import json
import re
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EVENT_FORMAT = 1
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
# Line ends to some readers of streams (`str.splitlines`), and lone halves of a pair, which UTF-8 can't hold.
_NOT_PLAIN = re.compile("[\x85\u2028\u2029\ud800-\udfff]")

CREATED = "response.created"
QUEUED = "response.queued"
IN_PROGRESS = "response.in_progress"
ITEM_ADDED = "response.output_item.added"
ITEM_DONE = "response.output_item.done"
PART_ADDED = "response.content_part.added"
PART_DONE = "response.content_part.done"
TEXT_DELTA = "response.output_text.delta"
TEXT_DONE = "response.output_text.done"
COMPLETED = "response.completed"
INCOMPLETE = "response.incomplete"
FAILED = "response.failed"
CANCELLED = "response.cancelled"

TERMINAL = frozenset({COMPLETED, INCOMPLETE, FAILED, CANCELLED})
TERMINAL_BY_STATUS = {"completed": COMPLETED, "incomplete": INCOMPLETE, "failed": FAILED, "cancelled": CANCELLED}


@dataclass(frozen=True, slots=True)
class EventDraft:
    """An event that has no place in the log yet. `tokens` are the token ids it commits."""

    type: str
    body: str
    tokens: tuple[int, ...] = ()


def draft(event_type: str, fields: Mapping[str, Any], tokens: Sequence[int] = ()) -> EventDraft:
    """An event with these fields; there must be at least one."""
    assert fields
    return EventDraft(event_type, encode_json(fields), tuple(tokens))


def encode_json(value: object) -> str:
    """The one JSON encoding of this project: compact, one line, storable as UTF-8, keys in the order given."""
    text = _ENCODER.encode(value)
    # Outside of ASCII, JSON has nothing but the insides of strings, where an escape means the same.
    return text if text.isascii() else _NOT_PLAIN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def encode_event(event_type: str, seq: int, body: str) -> str:
    """The event as clients see it, one line of JSON."""
    return f'{{"type":"{event_type}","sequence_number":{seq},{body[1:]}'


def pack_tokens(tokens: Iterable[int]) -> bytes:
    """Token ids as 4 bytes each, little-endian."""
    return _little_endian(array("i", tokens)).tobytes()


def unpack_tokens(data: bytes) -> list[int]:
    """The reverse of `pack_tokens`."""
    tokens = array("i")
    tokens.frombytes(data)
    return _little_endian(tokens).tolist()


def _little_endian(tokens: array[int]) -> array[int]:
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens
