"""Streams of chat completions as they came over the line, and what they add up to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from openai import BaseModel

from retoma.http.stream import KEEP_ALIVE

DONE = "[DONE]"


@dataclass
class Message:
    """One message of a stream: the number under which it came and its data."""

    id: int
    data: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.data)


def messages_in(content: bytes) -> list[Message]:
    """Every message; fails on anything that is not written exactly as docs/chat-completions.md has it."""
    assert content == b"" or content.endswith((b"\n\n", KEEP_ALIVE))
    found: list[Message] = []
    for block in content.replace(KEEP_ALIVE, b"").decode().split("\n\n")[:-1]:
        first, second = block.split("\n")
        assert first.startswith("id: "), block
        assert second.startswith("data: "), block
        found.append(Message(int(first[4:]), second[6:]))
    assert [message.id for message in found] == sorted(message.id for message in found)
    return found


def text_of_chunks(messages: list[Message]) -> str:
    """The text of a stream that came to its end."""
    assert messages[-1].data == DONE
    choices = [choice for message in messages[:-1] for choice in message.json["choices"]]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] in {"stop", "length"}
    return "".join(choice["delta"].get("content", "") for choice in choices)


def error_of(messages: list[Message]) -> dict[str, Any]:
    """The error with which a stream ended; nothing that looks like an end comes before or after it."""
    *chunks, last = messages
    assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk.json["choices"])
    assert set(last.json) == {"error"}
    assert set(last.json["error"]) == {"message", "type", "code", "param"}
    return last.json["error"]


def strictly(model: type[BaseModel], data: dict[str, Any]) -> None:
    """Fails unless this is what the openai package's type describes, with every type right and no field beside it."""
    made = model.model_validate(data, strict=True)
    assert extras_of(made) == []


def extras_of(value: object) -> list[str]:
    """Names of fields that the type does not know; the package keeps them without a word."""
    if isinstance(value, list):
        return [name for item in value for name in extras_of(item)]
    if not isinstance(value, BaseModel):
        return []
    below = [name for field in type(value).model_fields for name in extras_of(getattr(value, field))]
    return [*(value.model_extra or {}), *below]
