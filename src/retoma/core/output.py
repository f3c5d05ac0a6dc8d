"""The output of one attempt as it grows: which events a piece of text becomes, and the items they add up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from retoma.core import events
from retoma.core.events import EventDraft, draft


@dataclass(slots=True)
class Output:
    """One assistant message. `item_id` is empty until the first event that names it."""

    item_id: str = ""
    parts: list[str] = field(default_factory=list[str])
    tokens: list[int] = field(default_factory=list[int])
    closed: bool = False

    @property
    def text(self) -> str:
        """All that was written so far."""
        return "".join(self.parts)

    def append(self, text: str, tokens: Sequence[int], new_item_id: str) -> list[EventDraft]:
        """The events for more text; the first ones open the message under `new_item_id`, which later ones ignore."""
        drafts = [] if self.item_id else self._open(new_item_id)
        if text or tokens:  # a token without text is committed like any other, or the next attempt would miss it
            self.parts.append(text)
            drafts.append(draft(events.TEXT_DELTA, {**self._place(), "delta": text, "logprobs": []}, tokens))
            self.tokens.extend(tokens)
        return drafts

    def close(self, status: str, tokens: Sequence[int], new_item_id: str) -> list[EventDraft]:
        """The events that end the message; `tokens` are those that added no text."""
        drafts = [] if self.item_id else self._open(new_item_id)
        self.tokens.extend(tokens)
        self.closed = True
        part = _part(self.text)
        item = {"output_index": 0, "item": self._item(status)}
        return [
            *drafts,
            draft(events.TEXT_DONE, {**self._place(), "text": self.text, "logprobs": []}, tokens),
            draft(events.PART_DONE, {**self._place(), "part": part}),
            draft(events.ITEM_DONE, item),
        ]

    def items(self, status: str) -> list[dict[str, Any]]:
        """The output array of a response whose message has this status."""
        return [self._item(status)] if self.item_id else []

    def fold(self, event_type: str, fields: dict[str, Any], tokens: Sequence[int]) -> None:
        """Takes one event of the log; the reverse of the methods above."""
        self.tokens.extend(tokens)
        if event_type == events.ITEM_ADDED:
            self.item_id = fields["item"]["id"]
        elif event_type == events.TEXT_DELTA:
            self.parts.append(fields["delta"])
        elif event_type == events.ITEM_DONE:
            self.closed = True

    def _open(self, item_id: str) -> list[EventDraft]:
        self.item_id = item_id
        item: dict[str, Any] = {
            "id": item_id,
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
            "content": [],
        }
        return [
            draft(events.ITEM_ADDED, {"output_index": 0, "item": item}),
            draft(events.PART_ADDED, {**self._place(), "part": _part("")}),
        ]

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.item_id, "output_index": 0, "content_index": 0}

    def _item(self, status: str) -> dict[str, Any]:
        return {
            "id": self.item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [_part(self.text)],
        }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
