"""The input of a request: items as clients write them, in one form, and the messages that an engine reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError

from retoma.errors import InvalidRequest, UnsupportedParameter
from retoma.http.wire import Strict
from retoma.limits import INPUT_ITEMS_MAX

ITEM_ID_CHARS_MAX = 128
# OpenAI's other items and parts: known, so the answer is "not supported" and not "wrong".
OTHER_ITEMS = frozenset(
    {
        "item_reference",
        "reasoning",
        "compaction",
        "compaction_trigger",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "file_search_call",
        "web_search_call",
        "computer_call",
        "computer_call_output",
        "image_generation_call",
        "code_interpreter_call",
        "local_shell_call",
        "local_shell_call_output",
        "shell_call",
        "shell_call_output",
        "apply_patch_call",
        "apply_patch_call_output",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "tool_search_call",
        "tool_search_output",
        "additional_tools",
        "program",
        "program_output",
    }
)
OTHER_PARTS = frozenset(
    {"input_image", "input_file", "input_audio", "output_audio", "computer_screenshot", "reasoning_text"}
)


class TextPart(Strict):
    """Text from a client, or text that an earlier response gave."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class RefusalPart(Strict):
    """What a model said instead of an answer; other servers' outputs have it."""

    type: Literal["refusal"]
    refusal: str


class MessageItem(Strict):
    """A message; a string as its content has been made a part before."""

    type: Literal["message"] | None = None
    id: Annotated[str, StringConstraints(min_length=1, max_length=ITEM_ID_CHARS_MAX)] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    phase: Literal["commentary", "final_answer"] | None = None
    content: list[Annotated[TextPart | RefusalPart, Field(discriminator="type")]]


@dataclass(frozen=True, slots=True)
class Input:
    """Items as `input_items` lists them, and the messages that they are. `field` is where the request had them."""

    field: str
    items: list[dict[str, Any]]
    messages: list[dict[str, str]]


ReadInput = Callable[[Callable[[], str]], Input]
"""Reads a request's input; takes what makes a new item's id."""


def read_input(value: str | Sequence[dict[str, Any]] | None, new_id: Callable[[], str]) -> Input:
    """The input in one form; raises InvalidRequest or UnsupportedParameter, naming the place."""
    given = [{"role": "user", "content": value}] if isinstance(value, str) else list(value or [])
    check_count("input", given)
    return collect("input", (_read_item(raw, f"input[{index}]") for index, raw in enumerate(given)), new_id)


def check_count(field: str, given: Sequence[object]) -> None:
    """Raises InvalidRequest for more items than a conversation may have."""
    if len(given) > INPUT_ITEMS_MAX:
        raise InvalidRequest(f"{field} may have {INPUT_ITEMS_MAX} items at most", param=field)


def collect(field: str, items: Iterable[MessageItem], new_id: Callable[[], str]) -> Input:
    """Items, each with an id of its own, and their messages; raises InvalidRequest if there is no text in them."""
    read = Input(field, [], [])
    seen: set[str] = set()
    for item in items:
        text = "\n".join(part.text if isinstance(part, TextPart) else part.refusal for part in item.content)
        # An id names an item when its list is read page by page, so no two may share one.
        item_id = item.id if item.id and item.id not in seen else new_id()
        seen.add(item_id)
        read.items.append(_normal(item, item_id))
        read.messages.append({"role": item.role, "content": text})
    if not any(message["content"] for message in read.messages):
        raise InvalidRequest(f"{field} must hold some text", param=field)
    return read


def _read_item(raw: dict[str, Any], path: str) -> MessageItem:
    kind = raw.get("type", "message")
    if isinstance(kind, str) and kind in OTHER_ITEMS:
        raise UnsupportedParameter(f"this server does not support items of type {kind}", param=f"{path}.type")
    content = raw.get("content")
    if isinstance(content, str):
        part_type = "output_text" if raw.get("role") == "assistant" else "input_text"
        raw = {**raw, "content": [{"type": part_type, "text": content}]}
    elif isinstance(content, list):
        _refuse_other_parts(content, path)  # pyright: ignore[reportUnknownArgumentType] - JSON
    try:
        return MessageItem.model_validate(raw)
    except ValidationError as error:
        raise refusal_at(path, error) from None


def _refuse_other_parts(content: Sequence[Any], path: str) -> None:
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - JSON
        if isinstance(kind, str) and kind in OTHER_PARTS:
            raise UnsupportedParameter(
                f"this server does not support parts of type {kind}", param=f"{path}.content[{index}].type"
            )


def refusal_at(path: str, error: ValidationError) -> InvalidRequest:
    """What is wrong with the item at this place of the request, without what was sent."""
    detail = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = list(detail["loc"])
    if len(place) > 2:  # noqa: PLR2004 - content, index, and the part's type, which pydantic puts in between
        del place[2]
    for part in place:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    what = "there is no such field" if detail["type"] == "extra_forbidden" else detail["msg"]
    if detail["type"] == "union_tag_invalid":
        what = "there is no such type"
    return InvalidRequest(f"{path}: {what}", param=path)


def _normal(item: MessageItem, item_id: str) -> dict[str, Any]:
    return {
        "id": item_id,
        "type": "message",
        "role": item.role,
        "status": item.status or "completed",
        "content": [_normal_part(part) for part in item.content],
    }


def _normal_part(part: TextPart | RefusalPart) -> dict[str, Any]:
    if isinstance(part, RefusalPart):
        return {"type": "refusal", "refusal": part.refusal}
    if part.type == "input_text":
        return {"type": "input_text", "text": part.text}
    lists = {"annotations": part.annotations or [], "logprobs": part.logprobs or []}
    return {"type": "output_text", "text": part.text, **lists}
