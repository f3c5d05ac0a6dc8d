"""Creating: the reply of each mode, what is stored, and idempotency keys."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from retoma.core.response import ECHOED
from tests.http.service import Server, events_of, parse_sse, raw_request, submit, wait_state

BODY: dict[str, Any] = {"model": "scripted", "input": "Tell me of the sea.", "max_output_tokens": 6}


@pytest.mark.requirement("P-11.2-persist", "S-005c")
def test_a_202_names_a_response_that_is_in_the_store_by_then(api: httpx.Client, server: Server) -> None:
    reply = api.post("/v1/responses", json=BODY | {"background": True})
    body = reply.json()
    assert reply.status_code == 202
    assert reply.headers["location"] == f"/v1/responses/{body['id']}"
    assert reply.headers["etag"] == '"1"'
    assert reply.headers["cache-control"] == "no-store"
    assert (body["status"], body["task"]["state"], body["task"]["on_restart"]) == ("queued", "queued", "resume")
    assert set(ECHOED) <= set(body)
    assert api.get(reply.headers["location"]).json()["id"] == body["id"]


def test_a_foreground_response_is_finished_when_it_arrives(api: httpx.Client) -> None:
    reply = api.post("/v1/responses", json=BODY)
    body = reply.json()
    assert reply.status_code == 200
    assert body["status"] == "incomplete"
    assert body["task"]["on_restart"] == "fail"
    assert reply.headers["etag"] == f'"{body["task"]["version"]}"'
    assert api.get(f"/v1/responses/{body['id']}").json() == body


def test_the_response_repeats_what_was_asked(api: httpx.Client) -> None:
    asked = {
        "instructions": "Be brief.",
        "temperature": 0.5,
        "top_p": 0.9,
        "metadata": {"a": "b"},
        "truncation": "auto",
        "parallel_tool_calls": False,
        "store": False,
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "tool_choice": "none",
    }
    body = api.post("/v1/responses", json=BODY | asked).json()
    assert {name: body[name] for name in asked} == asked


def test_without_a_seed_one_is_drawn_and_kept(api: httpx.Client, server: Server) -> None:
    first, second = (submit(api)["id"] for _ in range(2))
    seeds = [_stored(server, task_id)["generation"]["seed"] for task_id in (first, second)]
    assert seeds[0] != seeds[1]
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_the_same_seed_gives_the_same_text(api: httpx.Client) -> None:
    texts = [api.post("/v1/responses", json=BODY | {"seed": 5}).json()["output"][0]["content"] for _ in range(2)]
    assert texts[0] == texts[1]


def test_what_is_stored_holds_the_whole_conversation(api: httpx.Client, server: Server) -> None:
    first = api.post("/v1/responses", json=BODY | {"instructions": "Old."}).json()
    follow_up = BODY | {"input": "More.", "instructions": "New.", "previous_response_id": first["id"], "stop": "§"}
    second = api.post("/v1/responses", json=follow_up).json()
    stored = _stored(server, second["id"])
    assert stored["messages"] == [
        {"role": "system", "content": "New."},
        {"role": "user", "content": BODY["input"]},
        {"role": "assistant", "content": first["output"][0]["content"][0]["text"]},
        {"role": "user", "content": "More."},
    ]
    assert [item["content"][0]["text"] for item in stored["input"]] == ["More."]
    assert stored["generation"]["stop"] == ["§"]


def test_a_response_can_only_follow_a_finished_one(api: httpx.Client) -> None:
    running = submit(api, max_output_tokens=None)
    follow_up = BODY | {"previous_response_id": running["id"]}
    assert api.post("/v1/responses", json=follow_up).json()["error"]["code"] == "task_unfinished"
    api.post(f"/v1/responses/{running['id']}/cancel")
    error = api.post("/v1/responses", json=follow_up).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_request", "previous_response_id")


def test_a_prompt_that_is_too_long_is_refused_in_the_foreground(api: httpx.Client) -> None:
    reply = api.post("/v1/responses", json=BODY | {"input": "word " * 10_000})
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "context_length_exceeded"
    background = submit(api, input="word " * 10_000)
    assert events_of(api, background["id"])[-1].data["response"]["error"]["code"] == "context_length_exceeded"


class TestIdempotencyKeys:
    def test_a_repeated_background_request_gets_its_first_reply_again(self, api: httpx.Client) -> None:
        headers = {"Idempotency-Key": "background"}
        first = api.post("/v1/responses", json=BODY | {"background": True}, headers=headers)
        events_of(api, first.json()["id"])
        again = api.post("/v1/responses", json=BODY | {"background": True}, headers=headers)
        assert (again.status_code, again.content) == (202, first.content)
        assert again.headers["location"] == first.headers["location"]
        assert again.headers["etag"] == first.headers["etag"]
        assert again.headers["idempotency-replayed"] == "true"
        assert "idempotency-replayed" not in first.headers

    def test_a_repeated_foreground_request_gets_the_finished_response(self, api: httpx.Client) -> None:
        headers = {"Idempotency-Key": "foreground"}
        first, again = (api.post("/v1/responses", json=BODY, headers=headers) for _ in range(2))
        assert (again.status_code, again.content) == (200, first.content)
        assert again.headers["idempotency-replayed"] == "true"

    def test_a_repeated_stream_is_the_whole_log_byte_for_byte(self, api: httpx.Client) -> None:
        headers = {"Idempotency-Key": "stream"}
        first, again = (api.post("/v1/responses", json=BODY | {"stream": True}, headers=headers) for _ in range(2))
        assert [e.raw for e in parse_sse(again.content)] == [e.raw for e in parse_sse(first.content)]
        assert again.headers["idempotency-replayed"] == "true"

    def test_the_order_of_the_fields_does_not_matter(self, api: httpx.Client) -> None:
        headers = {"Idempotency-Key": "order"}
        first = api.post("/v1/responses", json=BODY, headers=headers)
        again = api.post("/v1/responses", json=dict(reversed(BODY.items())), headers=headers)
        assert again.content == first.content

    def test_another_body_under_the_same_key_is_refused(self, api: httpx.Client) -> None:
        headers = {"Idempotency-Key": "other"}
        api.post("/v1/responses", json=BODY, headers=headers)
        other = api.post("/v1/responses", json=BODY | {"input": "Other."}, headers=headers)
        assert other.status_code == 422
        assert other.json()["error"]["code"] == "idempotency_key_reused"

    def test_keys_belong_to_a_client(self, api: httpx.Client, server: Server) -> None:
        headers = {"Idempotency-Key": "shared"}
        mine = api.post("/v1/responses", json=BODY, headers=headers).json()
        with server.http(server.add_client("another-key-holder")) as other:
            theirs = other.post("/v1/responses", json=BODY | {"input": "Other."}, headers=headers)
        assert theirs.status_code == 200
        assert theirs.json()["id"] != mine["id"]

    def test_a_key_is_answered_although_the_request_could_not_be_accepted_any_more(self, api: httpx.Client) -> None:
        earlier = api.post("/v1/responses", json=BODY).json()
        follow_up = BODY | {"previous_response_id": earlier["id"]}
        first = api.post("/v1/responses", json=follow_up, headers={"Idempotency-Key": "gone"})
        assert api.delete(f"/v1/responses/{earlier['id']}").status_code == 200
        again = api.post("/v1/responses", json=follow_up, headers={"Idempotency-Key": "gone"})
        assert again.content == first.content

    def test_fifty_requests_at_once_under_one_key_are_one_task(self, api: httpx.Client, server: Server) -> None:
        before = _count(server)

        def send(_: int) -> httpx.Response:
            with server.http() as client:
                return client.post("/v1/responses", json=BODY, headers={"Idempotency-Key": "fifty"})

        with ThreadPoolExecutor(50) as pool:
            replies = list(pool.map(send, range(50)))
        assert {reply.status_code for reply in replies} == {200}
        assert len({reply.content for reply in replies}) == 1
        assert sum("idempotency-replayed" not in reply.headers for reply in replies) == 1
        assert _count(server) == before + 1


def test_a_client_that_leaves_takes_its_foreground_response_with_it(api: httpx.Client, server: Server) -> None:
    with server.http() as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/responses", json=BODY | {"max_output_tokens": None, "metadata": {"who": "left"}}, timeout=0.3)
    assert wait_state(api, _newest(api), "cancelled")["metadata"] == {"who": "left"}


def test_a_foreground_response_that_outlives_restarts_also_outlives_its_client(
    api: httpx.Client, server: Server
) -> None:
    body = BODY | {"max_output_tokens": 150, "on_restart": "resume"}
    with server.http() as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/responses", json=body, timeout=0.2)
    assert events_of(api, _newest(api))[-1].type == "response.incomplete"


def test_a_second_connection_under_the_same_key_keeps_the_text_going(api: httpx.Client, server: Server) -> None:
    headers = {"Idempotency-Key": "second"}
    body = BODY | {"max_output_tokens": 200}
    with server.http() as client, ThreadPoolExecutor(1) as pool:
        with client.stream("POST", "/v1/responses", json=body | {"stream": True}, headers=headers) as first:
            pieces = first.iter_bytes()  # held, because a dropped iterator closes the connection
            next(pieces)
            second = pool.submit(api.post, "/v1/responses", json=body | {"stream": True}, headers=headers)
            wait_state(api, _newest(api), "running")
            while server.attendance.connections(_newest(api)) < 2:
                assert not second.done()
        assert parse_sse(second.result().content)[-1].type == "response.incomplete"


def test_a_body_may_come_in_pieces(server: Server) -> None:
    head = (
        "POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a-token-for-tests\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )
    pieces = ['{"model": "scripted", "input"', ': "x", "max_output_tokens": 1}', ""]
    content = head + "".join(f"{len(piece):x}\r\n{piece}\r\n" for piece in pieces)
    assert raw_request(server, content.encode()).startswith(b"HTTP/1.1 200")


def _stored(server: Server, task_id: str) -> dict[str, Any]:
    from retoma.transactions.read import read_task

    return server.store.read(lambda tx: read_task(tx, task_id)).request_fields


def _count(server: Server) -> int:
    from retoma.transactions.read import count_states

    return sum(server.store.read(count_states).values())


def _newest(api: httpx.Client) -> str:
    return api.get("/v1/tasks", params={"limit": 1}).json()["data"][0]["id"]
