"""The messages of a chat completion, as the items that the same conversation would be in `POST /v1/responses`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, cast

from pydantic import Field, ValidationError

from retoma.errors import InvalidRequest, UnsupportedParameter
from retoma.http.items import Input, MessageItem, RefusalPart, TextPart, check_count, collect, refusal_at
from retoma.http.wire import Label, Strict

FIELD = "messages"
OTHER_ROLES = frozenset({"tool", "function"})
OTHER_PARTS = frozenset({"image_url", "input_audio", "file"})
ASSISTANT_ONLY = ("refusal", "annotations", "parsed")
# Fields of a message and of a part → the values, beside null, with which they ask for nothing.
NOTHING_ASKED: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {"tool_calls": ([],), "function_call": (), "audio": ()}
)
NOTHING_ASKED_OF_PART: Mapping[str, tuple[object, ...]] = MappingProxyType({"prompt_cache_breakpoint": ()})


class ChatText(Strict):
    """A piece of text."""

    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: Any = None


class ChatMessage(Strict):
    """A message; a string as its content has been made a part before.

    Some fields are taken because clients send them, and change nothing: the prompts of local models have no place for a
    `name`, `annotations` tell people about the text of an earlier reply, and `parsed` is that text once more, as the
    openai package leaves it in what it has parsed.
    """

    role: Literal["system", "developer", "user", "assistant"]
    content: list[Annotated[ChatText | RefusalPart, Field(discriminator="type")]]
    name: Label | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    parsed: Any = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None


def read_messages(given: Sequence[dict[str, Any]], new_id: Callable[[], str]) -> Input:
    """The messages as items; raises InvalidRequest or UnsupportedParameter, naming the place."""
    check_count(FIELD, given)
    return collect(FIELD, (_read_message(raw, f"{FIELD}[{index}]") for index, raw in enumerate(given)), new_id)


def _read_message(raw: dict[str, Any], path: str) -> MessageItem:
    role, content = raw.get("role"), raw.get("content")
    if isinstance(role, str) and role in OTHER_ROLES:
        raise UnsupportedParameter(f"this server does not support messages of the role {role}", param=f"{path}.role")
    _refuse_what_is_asked(raw, NOTHING_ASKED, path)
    if isinstance(content, str):
        raw = {**raw, "content": [{"type": "text", "text": content}]}
    elif isinstance(content, list):
        _refuse_other_parts(content, f"{path}.content")  # pyright: ignore[reportUnknownArgumentType] - JSON
    elif content is None and raw.get("refusal") is not None:
        raw = {**raw, "content": []}
    try:
        message = ChatMessage.model_validate(raw)
    except ValidationError as error:
        raise refusal_at(path, error) from None
    for name in ASSISTANT_ONLY:
        if message.role != "assistant" and getattr(message, name) is not None:
            raise InvalidRequest(f"{path}.{name}: only an assistant's message has it", param=f"{path}.{name}")
    return _as_item(message)


def _refuse_what_is_asked(fields: Mapping[str, Any], nothing: Mapping[str, tuple[object, ...]], path: str) -> None:
    for name, values in nothing.items():
        value = fields.get(name)
        if value is not None and value not in values:
            raise UnsupportedParameter(f"this server does not support {name} here", param=f"{path}.{name}")


def _refuse_other_parts(content: Sequence[Any], path: str) -> None:
    for index, part in enumerate(content):
        if not isinstance(part, dict):
            continue
        fields = cast("dict[str, Any]", part)
        kind, place = fields.get("type"), f"{path}[{index}]"
        if isinstance(kind, str) and kind in OTHER_PARTS:
            raise UnsupportedParameter(f"this server does not support parts of type {kind}", param=f"{place}.type")
        _refuse_what_is_asked(fields, NOTHING_ASKED_OF_PART, place)


def _as_item(message: ChatMessage) -> MessageItem:
    kind = "output_text" if message.role == "assistant" else "input_text"
    parts = [part if isinstance(part, RefusalPart) else TextPart(type=kind, text=part.text) for part in message.content]
    if message.refusal is not None:
        parts.append(RefusalPart(type="refusal", refusal=message.refusal))
    return MessageItem(type="message", role=message.role, content=parts)
