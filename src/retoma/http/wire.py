"""The body of `POST /v1/responses`: which fields there are, of which types, and which of them do nothing here.

Three answers to a field: it works; it is one of OpenAI's and has a value that asks for something this server can't do
(`unsupported_parameter`); it is unknown or of the wrong type (`invalid_request`). No field is ignored (contract §2).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, cast

from fastapi import Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import ErrorDetails, from_json

from retoma import limits
from retoma.core.task import OnRestart
from retoma.errors import InvalidRequest, UnsupportedParameter

# json_object and json_schema are passed on to the engine once engines follow them.
SEED_MIN, SEED_MAX = -(2**63), 2**63 - 1
LABEL_CHARS_MAX = 512
_NESTED = frozenset({"text", "stream_options"})

Label = Annotated[str, StringConstraints(max_length=LABEL_CHARS_MAX)]
MetadataKey = Annotated[str, StringConstraints(max_length=limits.METADATA_KEY_CHARS_MAX)]
MetadataValue = Annotated[str, StringConstraints(max_length=limits.METADATA_VALUE_CHARS_MAX)]
StopString = Annotated[str, StringConstraints(min_length=1, max_length=limits.STOP_STRING_CHARS_MAX)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class Strict(BaseModel):
    """JSON types are taken at their word, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TextFormat(Strict):
    """`text.format`."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, StringConstraints(pattern=r"^[\w-]{1,64}$")] | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class TextOptions(Strict):
    """`text`."""

    format: TextFormat | None = None
    verbosity: str | None = None


class StreamOptions(Strict):
    """`stream_options`. Obfuscation pads events against listeners on the network; nothing is padded here."""

    include_obfuscation: bool | None = None


class WebhookTarget(Strict):
    """`webhook`: who is told of the end. What a URL may be is said in `core/webhook.py`."""

    url: str


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _as_policy(value: object) -> object:
    return OnRestart(value) if isinstance(value, str) and value in set(OnRestart) else value


class CreateResponse(Strict):
    """What a client may send to create a response."""

    model: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    stream: bool | None = None
    store: bool | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=limits.OUTPUT_TOKENS_MAX)] | None = None
    seed: Annotated[int, Field(ge=SEED_MIN, le=SEED_MAX)] | None = None
    stop: Annotated[list[StopString], BeforeValidator(_as_list), Field(max_length=limits.STOP_STRINGS_MAX)] | None = (
        None
    )
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=limits.METADATA_PAIRS_MAX)] | None = None
    parallel_tool_calls: bool | None = None
    stream_options: StreamOptions | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    on_restart: Annotated[OnRestart, BeforeValidator(_as_policy)] | None = None
    webhook: WebhookTarget | None = None
    # Fields that work with a value that asks for nothing; the rest is refused by `NOTHING_ASKED`.
    tools: list[Any] | None = None
    tool_choice: Any = None
    service_tier: str | None = None
    reasoning: dict[str, Any] | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    max_tool_calls: int | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    context_management: list[Any] | None = None
    conversation: Any = None
    prompt: Any = None
    moderation: Any = None
    background_options: Any = None
    access_programs: Any = None
    image: Any = None


# Field → the values, beside null, with which it asks for nothing.
NOTHING_ASKED: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "tools": ([],),
        "tool_choice": ("auto", "none"),
        "service_tier": ("auto", "default"),
        "reasoning": ({}, {"effort": None}, {"summary": None}, {"effort": None, "summary": None}),
        "include": ([],),
        "top_logprobs": (0,),
        "presence_penalty": (0.0,),
        "frequency_penalty": (0.0,),
        "max_tool_calls": (),
        "prompt_cache_retention": (),
        "prompt_cache_options": ({},),
        "context_management": ([],),
        "conversation": (),
        "prompt": (),
        "moderation": (),
        "background_options": ({},),
        "access_programs": (),
        "image": (),
    }
)


async def read_json(request: Request) -> dict[str, Any]:
    """The body, an object; raises InvalidRequest, also for NaN, half a character or endless nesting."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise InvalidRequest("send the request as Content-Type: application/json", param="Content-Type")
    try:
        value = from_json(await request.body(), allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    return cast("dict[str, Any]", value)


def digest_of(body: Mapping[str, Any]) -> bytes:
    """SHA-256 of the body whatever the order of its fields; raises InvalidRequest for a number without a value."""
    try:
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError:
        raise InvalidRequest("the body holds a number that is too large") from None
    return hashlib.sha256(canonical.encode()).digest()


def parse(body: Mapping[str, Any]) -> CreateResponse:
    """The body as a request; raises InvalidRequest or UnsupportedParameter, naming the field."""
    try:
        wanted = CreateResponse.model_validate(body)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_context=False, include_input=False)[0]) from None
    for name, values in NOTHING_ASKED.items():
        value = getattr(wanted, name)
        if value is not None and value not in values:
            raise UnsupportedParameter(f"this server does not support this value of {name}", param=name)
    _check_text(wanted.text or TextOptions())
    return wanted


def _refusal(detail: ErrorDetails) -> InvalidRequest:
    place = detail["loc"]
    param = ".".join(map(str, place[: 2 if place[0] in _NESTED else 1]))
    what = "there is no such field" if detail["type"] == "extra_forbidden" else detail["msg"]
    return InvalidRequest(f"{param}: {what}", param=param)


def _check_text(text: TextOptions) -> None:
    if text.verbosity not in {None, "medium"}:
        raise UnsupportedParameter("this server does not support text.verbosity", param="text.verbosity")
    if text.format is None:
        return
    if text.format.type == "json_schema" and (text.format.json_schema is None or text.format.name is None):
        raise InvalidRequest("text.format: json_schema needs a name and a schema", param="text.format")
