"""The official `openai` package, unchanged, against the service."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import openai
import pytest

from tests.http.service import BOUND_S, TOKEN, Server, running


def test_a_response_is_created_and_retrieved(ai: openai.OpenAI) -> None:
    made = ai.responses.create(
        model="scripted", input="Tell me of the sea.", max_output_tokens=8, extra_body={"seed": 7}
    )
    assert made.status == "incomplete"
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"
    assert made.output_text
    assert made.usage is not None
    assert made.usage.output_tokens == 8
    assert ai.responses.retrieve(made.id) == made


def test_a_stream_ends_with_its_terminal_event_and_adds_up_to_the_response(ai: openai.OpenAI) -> None:
    with ai.responses.create(model="scripted", input="x", max_output_tokens=12, stream=True) as stream:
        events = list(stream)
    assert [event.type for event in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert events[-1].type == "response.incomplete"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_the_comments_that_fill_a_silence_disturb_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comment between two events that have ids, as after fifteen seconds of a slow model."""
    monkeypatch.setenv("RETOMA_SCRIPTED_TOKEN_MS", "80")
    with running(tmp_path, keep_alive_s=0.02) as server, server.openai() as ai:
        body = {"model": "scripted", "input": "x", "max_output_tokens": 4, "stream": True}
        with server.http() as raw:
            said = raw.post("/v1/responses", json=body).content
        assert re.search(rb"^id: \d+\n[^\n]+\n[^\n]+\n\n(: keep-alive\n+)+id: ", said, re.MULTILINE), "no silence"
        with ai.responses.create(model="scripted", input="x", max_output_tokens=4, stream=True) as stream:
            events = list(stream)
        assert events[-1].type == "response.incomplete"
        chunks = list(
            ai.chat.completions.create(
                model="scripted", messages=[{"role": "user", "content": "x"}], max_tokens=4, stream=True
            )
        )
        assert chunks[-1].choices[0].finish_reason == "length"


def test_the_stream_helper_follows_a_background_response_by_its_id(ai: openai.OpenAI) -> None:
    made = ai.responses.create(model="scripted", input="x", extra_body={"stop": "e"}, background=True)
    assert made.status == "queued"
    with ai.responses.stream(response_id=made.id) as stream:
        final = stream.get_final_response()
    assert (final.id, final.status) == (made.id, "completed")


def test_a_stream_goes_on_from_a_number(ai: openai.OpenAI) -> None:
    made = ai.responses.create(model="scripted", input="x", max_output_tokens=12, background=True)
    with ai.responses.retrieve(made.id, stream=True) as stream:
        whole = list(stream)
    with ai.responses.retrieve(made.id, stream=True, starting_after=4) as stream:
        rest = list(stream)
    assert rest == whole[5:]


def test_a_background_response_is_cancelled_then_deleted(ai: openai.OpenAI) -> None:
    made = ai.responses.create(model="scripted", input="x", background=True)
    cancelled = ai.responses.cancel(made.id)
    assert cancelled.status == "cancelled"
    assert ai.responses.cancel(made.id) == cancelled
    ai.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        ai.responses.retrieve(made.id)


def test_input_items_are_listed_page_by_page(ai: openai.OpenAI) -> None:
    items = [{"role": "user", "content": f"number {n}"} for n in range(5)]
    made = ai.responses.create(model="scripted", input=items, max_output_tokens=1)
    found = list(ai.responses.input_items.list(made.id, limit=2, order="asc"))
    assert [item.content[0].text for item in found] == [f"number {n}" for n in range(5)]
    newest = ai.responses.input_items.list(made.id, limit=1)
    assert newest.data[0].content[0].text == "number 4"
    assert newest.has_more


def test_a_conversation_goes_on_by_id_and_by_items(ai: openai.OpenAI) -> None:
    first = ai.responses.create(
        model="scripted", input="one", max_output_tokens=4, instructions="Be brief.", temperature=0
    )
    by_id = ai.responses.create(
        model="scripted",
        input="two",
        max_output_tokens=4,
        previous_response_id=first.id,
        temperature=0,
        extra_body={"seed": 1},
    )
    assert by_id.previous_response_id == first.id
    items = [{"role": "user", "content": "one"}, *first.output, {"role": "user", "content": "two"}]
    by_items = ai.responses.create(
        model="scripted", input=items, max_output_tokens=4, temperature=0, extra_body={"seed": 1}
    )
    assert by_items.output_text == by_id.output_text


def test_models_are_listed_and_retrieved(ai: openai.OpenAI) -> None:
    assert "scripted" in [model.id for model in ai.models.list()]
    assert ai.models.retrieve("scripted").object == "model"
    with pytest.raises(openai.NotFoundError):
        ai.models.retrieve("no/such/model")


def test_errors_arrive_as_the_exceptions_of_the_package(ai: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ai.responses.create(model="no-such-model", input="x")
    assert (caught.value.code, caught.value.param, caught.value.type) == (
        "model_not_found",
        "model",
        "invalid_request_error",
    )
    assert caught.value.request_id
    with server.openai(token="wrong") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_the_asynchronous_client_streams_two_responses_at_once(server: Server) -> None:
    async def one(client: openai.AsyncOpenAI, text: str) -> str:
        stream = await client.responses.create(model="scripted", input=text, max_output_tokens=12, stream=True)
        return [event async for event in stream][-1].type

    async def both() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=TOKEN, max_retries=0) as client:
            async with asyncio.timeout(BOUND_S):
                return await asyncio.gather(one(client, "a"), one(client, "b"))

    assert asyncio.run(both()) == ["response.incomplete"] * 2
