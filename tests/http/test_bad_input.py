"""Bad requests: each gets the status, the code and the field that the contract names, and the server goes on."""

from __future__ import annotations

import itertools
import json
from typing import Any

import httpx
import pytest

from retoma import limits
from tests.http.service import TOKEN, Server, check, raw_request, submit

GOOD: dict[str, Any] = {"model": "scripted", "input": "x", "max_output_tokens": 1}
UNKNOWN = "resp_" + "0" * 32

NOT_JSON = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"x"',
    b'{"input": "x",}',
    b'{"input": "\xff"}',
    b'{"input": "\\ud800"}',
    b'{"input": "x", "temperature": NaN}',
    b'{"input": "x", "temperature": Infinity}',
    b'{"input": "x", "tools": [-1e999]}',
    b'{"input": ' + b"[" * 100_000,
    b'{"input": [' + b'{"a":' * 500 + b"1" + b"}" * 500 + b"]}",
    b'{"seed": ' + b"9" * 5_000 + b"}",
]

# Changes of a good body → the field that the answer must name.
INVALID: list[tuple[dict[str, Any], str]] = [
    ({"colour": "red"}, "colour"),
    ({"model": 5}, "model"),
    ({"model": ""}, "model"),
    ({"model": "m" * 201}, "model"),
    ({"input": None}, "input"),
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": {"role": "user"}}, "input"),
    ({"input": ["x"]}, "input"),
    ({"input": [{}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": ""}]}, "input"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": "x", "colour": 1}]}, "input[0].colour"),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]}, "input[0].content[0].text"),
    ({"input": [{"role": "user", "content": [{"type": "smell"}]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": ["x"]}]}, "input[0].content[0]"),
    ({"input": [{"type": "thought", "role": "user", "content": "x"}]}, "input[0].type"),
    ({"input": [{"type": 5, "role": "user", "content": "x"}]}, "input[0].type"),
    ({"input": [{"role": "user", "content": "x"}] * (limits.INPUT_ITEMS_MAX + 1)}, "input"),
    ({"instructions": ["x"]}, "instructions"),
    ({"previous_response_id": 5}, "previous_response_id"),
    ({"background": "true"}, "background"),
    ({"background": 1}, "background"),
    ({"stream": "yes"}, "stream"),
    ({"store": 0}, "store"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": "5"}, "max_output_tokens"),
    ({"max_output_tokens": 5.0}, "max_output_tokens"),
    ({"max_output_tokens": True}, "max_output_tokens"),
    ({"max_output_tokens": limits.OUTPUT_TOKENS_MAX + 1}, "max_output_tokens"),
    ({"seed": 1.5}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"stop": 5}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["x"] * (limits.STOP_STRINGS_MAX + 1)}, "stop"),
    ({"stop": "x" * (limits.STOP_STRING_CHARS_MAX + 1)}, "stop"),
    ({"text": "x"}, "text"),
    ({"text": {"colour": 1}}, "text.colour"),
    ({"text": {"format": {"type": "xml"}}}, "text.format"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"metadata": {"k" * 65: "v"}}, "metadata"),
    ({"metadata": {"k": "v" * 513}}, "metadata"),
    ({"metadata": {str(n): "v" for n in range(17)}}, "metadata"),
    ({"metadata": ["x"]}, "metadata"),
    ({"truncation": "some"}, "truncation"),
    ({"parallel_tool_calls": "x"}, "parallel_tool_calls"),
    ({"stream_options": {"colour": 1}}, "stream_options.colour"),
    ({"user": 5}, "user"),
    ({"on_restart": "explode"}, "on_restart"),
    ({"on_restart": 5}, "on_restart"),
    ({"webhook": "https://example.org"}, "webhook"),
    ({"webhook": {"url": "http://127.0.0.1/"}}, "webhook"),
    ({"tools": "x"}, "tools"),
    ({"reasoning": "x"}, "reasoning"),
    ({"top_logprobs": "x"}, "top_logprobs"),
]

UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "function", "name": "f", "parameters": {}}]}, "tools"),
    ({"tools": [{"type": "web_search"}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"reasoning": {"effort": "low"}}, "reasoning"),
    ({"reasoning": {"summary": "auto"}}, "reasoning"),
    ({"include": ["message.output_text.logprobs"]}, "include"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"frequency_penalty": -0.5}, "frequency_penalty"),
    ({"max_tool_calls": 1}, "max_tool_calls"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
    ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_image"}]}]},
        "input[0].content[1].type",
    ),
    ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0].type"),
]

NOTHING_ASKED: list[dict[str, Any]] = [
    dict.fromkeys(
        [
            "instructions",
            "previous_response_id",
            "background",
            "stream",
            "store",
            "temperature",
            "top_p",
            "seed",
            "stop",
            "text",
            "truncation",
            "metadata",
            "parallel_tool_calls",
            "stream_options",
            "user",
            "safety_identifier",
            "prompt_cache_key",
            "on_restart",
            "tools",
            "tool_choice",
            "service_tier",
            "reasoning",
            "include",
            "top_logprobs",
            "presence_penalty",
            "frequency_penalty",
            "max_tool_calls",
            "prompt_cache_retention",
            "context_management",
            "conversation",
            "prompt",
        ]
    ),
    {"tools": [], "tool_choice": "auto", "include": [], "reasoning": {}, "service_tier": "auto", "top_logprobs": 0},
    {"presence_penalty": 0, "frequency_penalty": 0.0, "text": {"format": {"type": "text"}, "verbosity": "medium"}},
    {"stream_options": {"include_obfuscation": True}, "user": "u", "temperature": 2, "top_p": 1, "seed": -1},
]


@pytest.fixture(autouse=True)
def the_server_still_answers(api: httpx.Client) -> Any:
    yield
    assert api.post("/v1/responses", json=GOOD).status_code == 200


def post(api: httpx.Client, content: bytes, **headers: str) -> httpx.Response:
    return api.post("/v1/responses", content=content, headers={"Content-Type": "application/json", **headers})


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
    reply = post(api, json.dumps(GOOD | changes).encode())
    assert reply.status_code == 200, reply.text


def test_an_answer_never_repeats_what_was_sent(api: httpx.Client) -> None:
    reply = post(
        api, b'{"model": "scripted", "input": [{"role": "user", "content": "a secret"}], "stop": ["a secret", 5]}'
    )
    assert "secret" not in reply.text


def test_an_unknown_model_is_named(api: httpx.Client) -> None:
    check(api.post("/v1/responses", json=GOOD | {"model": "nobody"}), 400, "model_not_found", "model")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_another_content_type_is_refused(api: httpx.Client, content_type: str) -> None:
    reply = api.post("/v1/responses", content=json.dumps(GOOD), headers={"Content-Type": content_type})
    check(reply, 400, "invalid_request", "Content-Type")


def test_a_charset_beside_the_content_type_is_fine(api: httpx.Client) -> None:
    content = json.dumps(GOOD).encode()
    reply = api.post("/v1/responses", content=content, headers={"Content-Type": "Application/JSON; charset=utf-8"})
    assert reply.status_code == 200


@pytest.mark.parametrize("key", ["", "two words", "k" * 256, "ключ", "tab\tkey"])
def test_a_key_that_is_no_key_is_refused(api: httpx.Client, key: str) -> None:
    reply = api.post("/v1/responses", json=GOOD, headers={b"Idempotency-Key": key.encode()})
    check(reply, 400, "invalid_request", "Idempotency-Key")


def test_the_longest_key_is_a_key(api: httpx.Client) -> None:
    assert post(api, json.dumps(GOOD).encode(), **{"Idempotency-Key": "k" * 255}).status_code == 200


def test_two_keys_are_refused(api: httpx.Client) -> None:
    reply = api.post("/v1/responses", json=GOOD, headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")])
    check(reply, 400, "invalid_request", "Idempotency-Key")


class TestBodiesOverTheLimit:
    @pytest.mark.parametrize("size", [limits.REQUEST_BYTES_MAX + 1, 5 * limits.REQUEST_BYTES_MAX])
    def test_with_their_length_announced(self, api: httpx.Client, size: int) -> None:
        check(post(api, b" " * size), 413, "too_large")

    def test_without_it(self, api: httpx.Client) -> None:
        pieces = itertools.repeat(b" " * 65536, limits.REQUEST_BYTES_MAX // 65536 + 1)
        reply = api.post("/v1/responses", content=pieces, headers={"Content-Type": "application/json"})
        check(reply, 413, "too_large")

    def test_just_below_it_a_body_is_read(self, api: httpx.Client) -> None:
        content = json.dumps(GOOD).encode()
        assert post(api, content + b" " * (limits.REQUEST_BYTES_MAX - len(content))).status_code == 200

    def test_a_client_that_asks_first_is_refused_before_it_sends(self, server: Server) -> None:
        answer = raw_request(
            server,
            b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\nExpect: 100-continue\r\n"
            b"Connection: close\r\n\r\n",
        )
        assert answer.startswith(b"HTTP/1.1 413")


class TestWhoAsks:
    @pytest.mark.parametrize("header", [None, "", "Bearer", "Basic YTpi", f"Token {TOKEN}", "Bearer " + "x" * 600])
    def test_without_a_token(self, server: Server, header: str | None) -> None:
        with server.http(token=None) as client:
            reply = client.get("/v1/models", headers={"Authorization": header} if header is not None else {})
        check(reply, 401, "invalid_token")
        assert reply.headers["www-authenticate"] == "Bearer"

    @pytest.mark.parametrize("token", ["wrong", "wröng", TOKEN.upper()])
    def test_with_a_wrong_token(self, server: Server, token: str) -> None:
        with server.http(token=None) as client:
            reply = client.post("/v1/responses", headers={"Authorization": f"Bearer {token}".encode()}, json=GOOD)
        check(reply, 401, "invalid_token")
        assert token not in reply.text

    def test_with_a_token_for_something_else(self, server: Server) -> None:
        with server.http(server.add_client("reader", frozenset({"responses:read"}))) as client:
            check(client.post("/v1/responses", json=GOOD), 403, "insufficient_scope")
            check(client.get("/v1/models"), 403, "insufficient_scope")
            check(client.get("/v1/tasks"), 403, "insufficient_scope")
            check(client.get(f"/v1/responses/{UNKNOWN}"), 404, "not_found")

    def test_others_responses_are_not_there(self, api: httpx.Client, server: Server) -> None:
        path = f"/v1/responses/{submit(api)['id']}"
        with server.http(server.add_client("stranger")) as client:
            for reply in (
                client.get(path),
                client.get(f"{path}?stream=true"),
                client.get(f"{path}/input_items"),
                client.post(f"{path}/cancel"),
                client.delete(path),
                client.get(path.replace("responses", "tasks")),
                client.get(path.replace("responses", "tasks") + "/events"),
            ):
                check(reply, 404, "not_found")
            follow_up = GOOD | {"previous_response_id": path.rpartition("/")[2]}
            check(client.post("/v1/responses", json=follow_up), 404, "not_found", "previous_response_id")
            assert client.get("/v1/tasks").json()["data"] == []


class TestWhereItBelievesToBe:
    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:8642", "localhost.evil.example", "127.0.0.2", "a@localhost", "[::2]"]
    )
    def test_a_foreign_host_is_refused(self, api: httpx.Client, host: str) -> None:
        check(api.get("/healthz", headers={"Host": host}), 400, "invalid_request", "Host")

    @pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8642", "[::1]", "[::1]:8642"])
    def test_a_name_of_this_machine_is_fine(self, api: httpx.Client, host: str) -> None:
        assert api.get("/healthz", headers={"Host": host}).status_code == 200

    @pytest.mark.parametrize(
        "origin", ["http://evil.example", "null", "https://localhost.evil.example", "file://", "x"]
    )
    def test_a_foreign_origin_is_refused(self, api: httpx.Client, origin: str) -> None:
        check(api.post("/v1/responses", json=GOOD, headers={"Origin": origin}), 403, "insufficient_scope", "Origin")

    @pytest.mark.parametrize("origin", ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:8642"])
    def test_an_origin_on_this_machine_is_fine(self, api: httpx.Client, origin: str) -> None:
        assert api.get("/v1/models", headers={"Origin": origin}).status_code == 200


UNKNOWN_IDS = [UNKNOWN, "resp_", "x", "%00", "%F0%9F%8C%8A", "resp_" + "0" * 33, "a" * 5_000]


@pytest.mark.parametrize("response_id", UNKNOWN_IDS, ids=range(len(UNKNOWN_IDS)))
def test_an_unknown_id_is_not_found(api: httpx.Client, response_id: str) -> None:
    path = f"/v1/responses/{response_id}"
    for method, where in [
        ("GET", path),
        ("GET", f"{path}?stream=true"),
        ("GET", f"{path}/input_items"),
        ("POST", f"{path}/cancel"),
        ("DELETE", path),
        ("GET", f"/v1/tasks/{response_id}"),
        ("GET", f"/v1/tasks/{response_id}/events"),
    ]:
        check(api.request(method, where), 404, "not_found")
    follow_up = GOOD | {"previous_response_id": response_id}
    check(api.post("/v1/responses", json=follow_up), 404, "not_found", "previous_response_id")


@pytest.mark.parametrize("path", ["/nothing", "/v1/responses/", "/v1/responses/a/b", "/openapi.json/x"])
def test_an_unknown_path_is_not_found(api: httpx.Client, path: str) -> None:
    check(api.get(path), 404, "not_found")


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/responses"), ("PUT", "/v1/responses"), ("POST", "/healthz")])
def test_a_method_that_is_not_possible_is_refused(api: httpx.Client, method: str, path: str) -> None:
    reply = api.request(method, path)
    check(reply, 405, "invalid_request")
    assert reply.headers["allow"]


QUERIES = [
    ("?colour=1", "colour"),
    ("?stream=perhaps", "stream"),
    ("?stream=true&starting_after=-1", "starting_after"),
    ("?stream=true&starting_after=1.0", "starting_after"),
    ("?stream=true&starting_after=x", "starting_after"),
    ("?stream=true&starting_after=", "starting_after"),
    ("?stream=true&starting_after=" + "9" * 30, "starting_after"),
    ("?stream=true&stream=false", "stream"),
    ("?include_obfuscation=2", "include_obfuscation"),
    ("/input_items?limit=0", "limit"),
    ("/input_items?limit=101", "limit"),
    ("/input_items?limit=x", "limit"),
    ("/input_items?order=up", "order"),
    ("/input_items?after=msg_1", "after"),
    ("/input_items?before=msg_1", "before"),
]


@pytest.mark.parametrize(("query", "param"), QUERIES)
def test_a_query_that_is_not_understood_is_refused(api: httpx.Client, query: str, param: str) -> None:
    made = submit(api)
    check(api.get(f"/v1/responses/{made['id']}{query}"), 400, "invalid_request", param)


@pytest.mark.parametrize("value", ["x", "-1", "1.0", "1 2"])
def test_a_last_event_id_that_is_no_number_is_refused(api: httpx.Client, value: str) -> None:
    reply = api.get(f"/v1/responses/{submit(api)['id']}?stream=true", headers={"Last-Event-ID": value})
    check(reply, 400, "invalid_request", "Last-Event-ID")


@pytest.mark.parametrize("query", ["state=asleep", "limit=0", "limit=101", "colour=1"])
def test_a_list_of_tasks_is_asked_for_strictly(api: httpx.Client, query: str) -> None:
    check(api.get(f"/v1/tasks?{query}"), 400, "invalid_request", query.partition("=")[0])


@pytest.mark.parametrize("value", ["x", '"x"', 'W/"1"', '"1", "2"', "", '"1', "-1"])
def test_an_if_match_that_is_no_version_is_refused(api: httpx.Client, value: str) -> None:
    path = f"/v1/responses/{submit(api)['id']}"
    for reply in (
        api.post(f"{path}/cancel", headers={"If-Match": value}),
        api.delete(path, headers={"If-Match": value}),
    ):
        check(reply, 400, "invalid_request", "If-Match")
