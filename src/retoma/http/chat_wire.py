"""The body of `POST /v1/chat/completions`: the same request as one to `POST /v1/responses`, in other words.

Fields that both APIs have under one name are handed on as they are, so `wire` says what they may be. The rest has its
types here, and is then put into the words of a Responses request. As there, no field is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError
from pydantic_core import ErrorDetails

from retoma import limits
from retoma.core.task import OnRestart
from retoma.errors import InvalidRequest, UnsupportedParameter
from retoma.http.chat_messages import read_messages
from retoma.http.items import ReadInput
from retoma.http.wire import CreateResponse, Strict, digest_of, parse

SHARED = (
    "model",
    "stream",
    "store",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "metadata",
    "parallel_tool_calls",
    "service_tier",
    "top_logprobs",
    "presence_penalty",
    "frequency_penalty",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "moderation",
    # Of Retoma's own; OpenAI has `truncation` for responses only.
    "truncation",
    "on_restart",
    "webhook",
)
_NAME_CHARS_MAX = 100
_OUTLIVES = frozenset({OnRestart.RETRY, OnRestart.RESUME})

OutputTokens = Annotated[int, Field(ge=1, le=limits.OUTPUT_TOKENS_MAX)]


class JsonSchema(Strict):
    """`response_format.json_schema`."""

    name: Annotated[str, StringConstraints(pattern=r"^[\w-]{1,64}$")]
    json_schema: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Strict):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ChatStreamOptions(Strict):
    """`stream_options`. Nothing is obfuscated here, so nothing has to be switched off."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatOnly(Strict):
    """The fields that a Responses request has not, or has in another form."""

    messages: list[dict[str, Any]]
    max_completion_tokens: OutputTokens | None = None
    max_tokens: OutputTokens | None = None
    response_format: ResponseFormat | None = None
    stream_options: ChatStreamOptions | None = None
    # Fields that work with a value that asks for nothing; the rest is refused by `NOTHING_ASKED`.
    n: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    logit_bias: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    verbosity: str | None = None
    reasoning_effort: str | None = None
    prediction: Any = None
    audio: Any = None
    web_search_options: Any = None


# Field → the values, beside null, with which it asks for nothing.
NOTHING_ASKED: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "n": (1,),
        "logprobs": (False,),
        "logit_bias": ({},),
        "tools": ([],),
        "tool_choice": ("auto", "none"),
        "functions": ([],),
        "function_call": ("auto", "none"),
        "modalities": (["text"],),
        "verbosity": ("medium",),
        "reasoning_effort": (),
        "prediction": (),
        "audio": (),
        "web_search_options": (),
    }
)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat completion, asked for. `wanted` is the same as a Responses request, but for its input: that is `read`."""

    wanted: CreateResponse
    read: ReadInput
    include_usage: bool


def digest_of_chat(body: Mapping[str, Any]) -> bytes:
    """As `wire.digest_of`, and never that of a body which the other API takes: it has no such field."""
    return digest_of({"chat.completion": body})


def parse_chat(body: Mapping[str, Any]) -> ChatRequest:
    """The body as a request; raises InvalidRequest or UnsupportedParameter, naming the field.

    The messages are read later, as the input of a Responses request is: a key that was used before goes first.
    """
    shared = {name: body[name] for name in SHARED if name in body}
    try:
        chat = ChatOnly.model_validate({name: value for name, value in body.items() if name not in shared})
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_context=False, include_input=False)[0]) from None
    for name, values in NOTHING_ASKED.items():
        value = getattr(chat, name)
        if value is not None and value not in values:
            raise UnsupportedParameter(f"this server does not support this value of {name}", param=name)
    wanted = parse({**shared, **_in_other_words(chat), **_background(shared)})
    if chat.stream_options is not None and not wanted.stream:
        raise InvalidRequest("stream_options needs stream: true", param="stream_options")
    include_usage = chat.stream_options is not None and bool(chat.stream_options.include_usage)
    return ChatRequest(wanted, partial(read_messages, chat.messages), include_usage)


def schema(response_schema: Mapping[str, Any], ref_template: str) -> dict[str, Any]:
    """The body's JSON schema, with the shared fields out of that of `CreateResponse`."""
    own = ChatOnly.model_json_schema(ref_template=ref_template)
    fields: dict[str, Any] = response_schema["properties"]
    own["properties"].update({name: fields[name] for name in SHARED})
    return {
        **own,
        "title": "CreateChatCompletion",
        "description": "What a client may send to create a chat completion.",
    }


def _in_other_words(chat: ChatOnly) -> dict[str, Any]:
    if chat.max_tokens and chat.max_completion_tokens and chat.max_tokens != chat.max_completion_tokens:
        raise InvalidRequest(
            "max_tokens is the old name of max_completion_tokens; send one of them", param="max_tokens"
        )
    return {"max_output_tokens": chat.max_completion_tokens or chat.max_tokens, "text": _text(chat.response_format)}


def _text(wanted: ResponseFormat | None) -> dict[str, Any] | None:
    if wanted is None:
        return None
    if (wanted.json_schema is not None) != (wanted.type == "json_schema"):
        raise InvalidRequest(
            "response_format: json_schema goes with the type json_schema, and only with it", param="response_format"
        )
    inner = wanted.json_schema.model_dump(by_alias=True, exclude_none=True) if wanted.json_schema else {}
    return {"format": {"type": wanted.type, **inner}}


def _background(shared: Mapping[str, Any]) -> dict[str, bool]:
    """A text that outlives a restart outlives its connection too, so it is a background task, and can be cancelled."""
    policy = shared.get("on_restart")
    return {"background": isinstance(policy, str) and policy in _OUTLIVES}


def _refusal(detail: ErrorDetails) -> InvalidRequest:
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"])[1:]
    param = param[:_NAME_CHARS_MAX]
    what = "there is no such field" if detail["type"] == "extra_forbidden" else detail["msg"]
    return InvalidRequest(f"{param}: {what}", param=param)
