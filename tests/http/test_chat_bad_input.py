"""Bad chat completions: each gets the status, the code and the field that is wrong, and the server goes on."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import httpx
import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

from retoma import limits
from retoma.http.chat_wire import SHARED, ChatOnly
from tests.http.service import check

PATH = "/v1/chat/completions"
GOOD: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
SCHEMA = {"name": "n", "schema": {"type": "object"}}


def says(content: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    """A request with one message like this before a good one."""
    return {"messages": [{"role": role, "content": content, **more}, *GOOD["messages"]]}


NOT_JSON = [
    b"",
    b"[]",
    b'"x"',
    b'{"messages": [{"role": "user", "content": "x"}],}',
    b'{"messages": [{"role": "user", "content": "\xff"}]}',
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
    b'{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"1": -1e999}}',
    b'{"messages": ' + b"[" * 100_000,
    b'{"messages": [' + b'{"content":' * 500 + b"1" + b"}" * 500 + b"]}",
    b'{"seed": ' + b"9" * 5_000 + b"}",
]

# Changes of a good body → the field that the answer must name.
INVALID: list[tuple[dict[str, Any], str]] = [
    ({"colour": "red"}, "colour"),
    ({"c" * 9_000: "red"}, "c" * 100),
    ({"input": "x"}, "input"),
    ({"background": True}, "background"),
    ({"max_output_tokens": 5}, "max_output_tokens"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"instructions": "x"}, "instructions"),
    ({"text": {"format": {"type": "text"}}}, "text"),
    ({"model": 5}, "model"),
    ({"model": ""}, "model"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "x"}, "messages"),
    ({"messages": {"role": "user"}}, "messages"),
    ({"messages": ["x"]}, "messages[0]"),
    ({"messages": [None]}, "messages[0]"),
    ({"messages": [{}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": ""}]}, "messages"),
    ({"messages": [{"role": "user", "content": []}]}, "messages"),
    ({"messages": GOOD["messages"] * (limits.INPUT_ITEMS_MAX + 1)}, "messages"),
    ({"messages": [*GOOD["messages"], {"role": "robot", "content": "x"}]}, "messages[1].role"),
    (says("x", role="assistent"), "messages[0].role"),
    ({"messages": [{"role": None, "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    (says(None), "messages[0].content"),
    (says(None, role="assistant"), "messages[0].content"),
    (says(None, role="assistant", tool_calls=[]), "messages[0].content"),
    (says(5), "messages[0].content"),
    (says({"type": "text", "text": "x"}), "messages[0].content"),
    (says(["x"]), "messages[0].content[0]"),
    (says([None]), "messages[0].content[0]"),
    (says([{"type": "text", "text": "x"}, {"type": "smell"}]), "messages[0].content[1]"),
    (says([{"type": "input_text", "text": "x"}]), "messages[0].content[0]"),
    (says([{"text": "x"}]), "messages[0].content[0]"),
    (says([{"type": "text"}]), "messages[0].content[0].text"),
    (says([{"type": "text", "text": 5}]), "messages[0].content[0].text"),
    (says([{"type": "text", "text": "x", "colour": 1}]), "messages[0].content[0].colour"),
    (says("x", colour=1), "messages[0].colour"),
    (says("x", name=5), "messages[0].name"),
    (says("x", name="n" * 513), "messages[0].name"),
    (says("x", refusal="no"), "messages[0].refusal"),
    (says("x", annotations=[]), "messages[0].annotations"),
    (says("x", role="assistant", refusal=5), "messages[0].refusal"),
    (says("x", tool_call_id="t"), "messages[0].tool_call_id"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 5.0}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_completion_tokens": -1, "max_tokens": None}, "max_completion_tokens"),
    ({"max_completion_tokens": limits.OUTPUT_TOKENS_MAX + 1, "max_tokens": None}, "max_completion_tokens"),
    ({"max_completion_tokens": 2, "max_tokens": 3}, "max_tokens"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"seed": 2**63}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": [None]}, "stop"),
    ({"stop": ["x"] * (limits.STOP_STRINGS_MAX + 1)}, "stop"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": {"colour": 1}}, "stream_options.colour"),
    ({"stream": True, "stream_options": []}, "stream_options"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "text", "json_schema": SCHEMA}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "response_format.json_schema.schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": SCHEMA | {"name": "a b"}}},
        "response_format.json_schema.name",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": SCHEMA | {"schema": "x"}}},
        "response_format.json_schema.schema",
    ),
    ({"store": 0}, "store"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"metadata": {str(n): "v" for n in range(17)}}, "metadata"),
    ({"user": 5}, "user"),
    ({"n": 0}, "n"),
    ({"n": "1"}, "n"),
    ({"n": True}, "n"),
    ({"logprobs": 0}, "logprobs"),
    ({"top_logprobs": "x"}, "top_logprobs"),
    ({"logit_bias": []}, "logit_bias"),
    ({"presence_penalty": "x"}, "presence_penalty"),
    ({"tools": "x"}, "tools"),
    ({"functions": {}}, "functions"),
    ({"modalities": "text"}, "modalities"),
    ({"modalities": [5]}, "modalities[0]"),
    ({"reasoning_effort": 5}, "reasoning_effort"),
    ({"parallel_tool_calls": "x"}, "parallel_tool_calls"),
    ({"truncation": "some"}, "truncation"),
    ({"on_restart": "explode"}, "on_restart"),
    ({"on_restart": {}}, "on_restart"),
    ({"webhook": "https://example.org"}, "webhook"),
    ({"webhook": {"url": "http://127.0.0.1/"}}, "webhook"),
]

FUNCTION = {"name": "f", "parameters": {}}
UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"n": 2}, "n"),
    ({"logprobs": True}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"frequency_penalty": -0.5}, "frequency_penalty"),
    ({"logit_bias": {"50256": -100}}, "logit_bias"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"tools": [{"type": "function", "function": FUNCTION}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"functions": [FUNCTION]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "v", "format": "wav"}}, "audio"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"reasoning_effort": "none"}, "reasoning_effort"),
    ({"verbosity": "low"}, "verbosity"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"moderation": {"model": "m"}}, "moderation"),
    ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
    ({"prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_options"),
    (says("x", role="tool", tool_call_id="t"), "messages[0].role"),
    (says("x", role="function", name="f"), "messages[0].role"),
    (says(None, role="assistant", tool_calls=[{"id": "t", "type": "function"}]), "messages[0].tool_calls"),
    (says(None, role="assistant", function_call={"name": "f"}), "messages[0].function_call"),
    (says(None, role="assistant", audio={"id": "a"}), "messages[0].audio"),
    (says([{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {}}]), "messages[0].content[1].type"),
    (says([{"type": "input_audio", "input_audio": {}}]), "messages[0].content[0].type"),
    (says([{"type": "file", "file": {}}]), "messages[0].content[0].type"),
    (
        says([{"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}}]),
        "messages[0].content[0].prompt_cache_breakpoint",
    ),
]

NOTHING_ASKED: list[dict[str, Any]] = [
    dict.fromkeys(sorted({*SHARED, *ChatOnly.model_fields} - {"messages", "model", "max_completion_tokens"})),
    {"n": 1, "logprobs": False, "top_logprobs": 0, "logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0.0},
    {"tools": [], "tool_choice": "none", "functions": [], "function_call": "auto", "parallel_tool_calls": True},
    {"modalities": ["text"], "verbosity": "medium", "service_tier": "default", "response_format": {"type": "text"}},
    {"stream": True, "stream_options": {"include_usage": False, "include_obfuscation": True}, "stop": "§"},
    {"max_tokens": 1, "max_completion_tokens": 1, "on_restart": "fail"},
    says("", role="system"),
    says([{"type": "text", "text": "x", "prompt_cache_breakpoint": None}], name=None),
    says("x", role="assistant", refusal=None, audio=None, tool_calls=None, function_call=None, annotations=[]),
    says([{"type": "refusal", "refusal": "no"}], role="assistant", tool_calls=[], parsed={"a": 1}),
]


def post(api: httpx.Client, content: bytes, **headers: str) -> httpx.Response:
    return api.post(PATH, content=content, headers={"Content-Type": "application/json", **headers})


@pytest.fixture(autouse=True)
def the_server_still_answers(api: httpx.Client) -> Any:
    yield
    assert api.post(PATH, json=GOOD).status_code == 200


@pytest.mark.parametrize("content", NOT_JSON, ids=range(len(NOT_JSON)))
def test_what_is_not_a_json_object_is_refused(api: httpx.Client, content: bytes) -> None:
    reply = post(api, content)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_request")


@pytest.mark.parametrize(("changes", "param"), INVALID, ids=[f"{n}-{p}" for n, (_, p) in enumerate(INVALID)])
def test_wrong_types_values_and_names_are_invalid(api: httpx.Client, changes: dict[str, Any], param: str) -> None:
    check(post(api, json.dumps(GOOD | changes).encode()), 400, "invalid_request", param)


@pytest.mark.parametrize(("changes", "param"), UNSUPPORTED, ids=[f"{n}-{p}" for n, (_, p) in enumerate(UNSUPPORTED)])
def test_what_openai_has_and_this_server_has_not_is_named(
    api: httpx.Client, changes: dict[str, Any], param: str
) -> None:
    check(post(api, json.dumps(GOOD | changes).encode()), 400, "unsupported_parameter", param)


@pytest.mark.parametrize("changes", NOTHING_ASKED, ids=range(len(NOTHING_ASKED)))
def test_a_field_that_asks_for_nothing_is_fine(api: httpx.Client, changes: dict[str, Any]) -> None:
    reply = post(api, json.dumps(GOOD | {"max_completion_tokens": 1} | changes).encode())
    assert reply.status_code == 200, reply.text


def test_every_field_of_the_official_package_is_known() -> None:
    assert set(get_type_hints(CompletionCreateParamsStreaming)) <= {*SHARED, *ChatOnly.model_fields}


def test_an_answer_never_repeats_what_was_sent(api: httpx.Client) -> None:
    for changes in (says("a secret", colour=1), says(["a secret"]), {"stop": ["a secret", 5]}, {"n": "a secret"}):
        assert "secret" not in post(api, json.dumps(GOOD | changes).encode()).text


def test_the_messages_are_needed(api: httpx.Client) -> None:
    check(api.post(PATH, json={"model": "scripted"}), 400, "invalid_request", "messages")


def test_a_model_that_nobody_registered_is_not_found(api: httpx.Client) -> None:
    check(api.post(PATH, json=GOOD | {"model": "nobody"}), 400, "model_not_found", "model")


def test_a_body_over_the_limit_is_too_large(api: httpx.Client) -> None:
    check(post(api, b" " * (limits.REQUEST_BYTES_MAX + 1)), 413, "too_large")


def test_another_content_type_is_refused(api: httpx.Client) -> None:
    reply = api.post(PATH, content=json.dumps(GOOD), headers={"Content-Type": "text/plain"})
    check(reply, 400, "invalid_request", "Content-Type")


@pytest.mark.parametrize("key", ["", "two words", "k" * 256])
def test_a_key_that_is_no_key_is_refused(api: httpx.Client, key: str) -> None:
    check(api.post(PATH, json=GOOD, headers={"Idempotency-Key": key}), 400, "invalid_request", "Idempotency-Key")


@pytest.mark.parametrize("query", ["?stream=true", "?colour=1"])
def test_a_query_is_refused(api: httpx.Client, query: str) -> None:
    check(api.post(f"{PATH}{query}", json=GOOD), 400, "invalid_request", query[1:].partition("=")[0])


UNKNOWN_IDS = ["chatcmpl-" + "0" * 32, "resp_" + "0" * 32, "chatcmpl-", "x", "%00", "chatcmpl-" + "0" * 33, "a" * 5_000]


@pytest.mark.parametrize("completion_id", UNKNOWN_IDS, ids=range(len(UNKNOWN_IDS)))
def test_an_unknown_id_is_not_found(api: httpx.Client, completion_id: str) -> None:
    for method in ("GET", "DELETE"):
        check(api.request(method, f"{PATH}/{completion_id}"), 404, "not_found")


def test_the_id_of_a_response_is_none_of_a_completion(api: httpx.Client) -> None:
    made = api.post(PATH, json=GOOD).headers["location"].rpartition("/")[2]
    check(api.get(f"{PATH}/{made}"), 404, "not_found")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "GET"])
def test_a_method_that_is_not_possible_is_refused(api: httpx.Client, method: str) -> None:
    check(api.request(method, PATH), 405, "invalid_request")
