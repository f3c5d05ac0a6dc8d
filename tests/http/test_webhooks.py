"""Webhooks seen from outside: asked for on either API, verified with the official client, listed, kept apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.http.conftest import store_of
from tests.http.service import Server, events_of, running, submit
from tests.support.receiver import Delivery, Receiver, answer, hang_then
from tests.support.waiting import wait_for

REFUSED = [
    "http://127.0.0.1/",
    "http://127.1:9/",
    "https://2130706433/",
    "https://localhost/hook",
    "https://LOCALHOST./hook",
    "https://a.localhost/",
    "https://10.0.0.1/",
    "https://192.168.0.1:8443/",
    "http://169.254.169.254/latest/meta-data",
    "http://[::1]/",
    "http://[::ffff:10.0.0.1]/",
    "http://[fd00::1]/",
    "http://[64:ff9b::127.0.0.1]/",
    "http://0.0.0.0/",
    "ftp://example.org/",
    "https://user:secret@example.org/",
    "https://example.org/#end",
    "example.org",
    "",
    f"https://example.org/{'x' * 2048}",
]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("service")
    with running(folder, store=store_of(request), webhook_private=True) as started:
        yield started


@pytest.fixture(scope="module")
def careful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service as it is without any setting."""
    with running(tmp_path_factory.mktemp("careful")) as started:
        yield started


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as started:
        yield started


def arrived(receiver: Receiver, task_id: str) -> Delivery:
    def found() -> Delivery | None:
        return next(iter(receiver.of(f"evt_{task_id.partition('_')[2]}")), None)

    delivery = wait_for(found, f"the webhook of {task_id}")
    assert delivery is not None
    return delivery


def secret_of(api: httpx.Client) -> str:
    reply = api.get("/v1/webhooks/secret")
    assert (reply.status_code, reply.headers["cache-control"]) == (200, "no-store")
    return reply.json()["secret"]


def listed(api: httpx.Client, **query: str | int) -> list[dict[str, Any]]:
    reply = api.get("/v1/webhooks", params=query)
    assert reply.status_code == 200, reply.text
    return reply.json()["data"]


def delivered(api: httpx.Client, task_id: str) -> dict[str, Any]:
    """The task's webhook, once the service has noted its answer."""

    def found() -> dict[str, Any] | None:
        return next((one for one in listed(api, state="delivered") if one["task"] == task_id), None)

    message = wait_for(found, f"the webhook of {task_id} to be delivered")
    assert message is not None
    return message


# What arrives


@pytest.mark.requirement("S-007")
def test_the_official_client_verifies_the_end_of_a_response(
    ai: openai.OpenAI, api: httpx.Client, receiver: Receiver
) -> None:
    asked = {"webhook": {"url": f"{receiver.url}?token=1"}}
    made = ai.responses.create(
        model="scripted", input="Tell me of the sea.", background=True, max_output_tokens=8, extra_body=asked
    )
    delivery = arrived(receiver, made.id)
    event = delivery.verify(secret_of(api))
    assert (event.type, event.object, event.data.id) == ("response.incomplete", "event", made.id)
    ended = ai.responses.retrieve(made.id)
    assert ended.status == "incomplete"
    message = delivered(api, made.id)
    assert message["id"] == event.id == delivery.id
    assert (message["tries"], message["last_answer"], message["next_at_ms"]) == (1, "HTTP 200", None)
    assert message["url"] == receiver.url, "without the query, which may hold a secret"
    assert json.loads(delivery.body) == {
        "id": message["id"],
        "object": "event",
        "type": "response.incomplete",
        "created_at": event.created_at,
        "data": {"id": made.id},
    }


@pytest.mark.parametrize(
    ("end", "expected"),
    [("natural", "completed"), ("crash", "failed"), ("cancel", "cancelled"), ("long", "incomplete")],
)
def test_every_end_arrives_under_its_own_type(api: httpx.Client, receiver: Receiver, end: str, expected: str) -> None:
    changes: dict[str, Any] = {
        "natural": {"max_output_tokens": None, "stop": [" "]},
        "crash": {"input": "[[crash]] now", "on_restart": "fail", "max_output_tokens": None},
        "cancel": {"max_output_tokens": None},
        "long": {},
    }[end]
    made = submit(api, webhook={"url": receiver.url}, **changes)
    if end == "cancel":
        api.post(f"/v1/responses/{made['id']}/cancel")
    delivery = arrived(receiver, made["id"])
    assert delivery.verify(secret_of(api)).type == f"response.{expected}"
    assert api.get(f"/v1/responses/{made['id']}").json()["status"] == expected


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
def test_both_apis_take_a_webhook_also_in_the_foreground(api: httpx.Client, receiver: Receiver, path: str) -> None:
    text: dict[str, Any] = (
        {"input": "x"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "x"}]}
    )
    body = {"model": "scripted", "temperature": 0, "webhook": {"url": receiver.url}, **text}
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    reply = api.post(path, json={**body, limit: 3})
    assert reply.status_code == 200, reply.text
    task_id = f"resp_{reply.json()['id'].rpartition('_')[2].rpartition('-')[2]}"
    assert arrived(receiver, task_id).verify(secret_of(api)).data.id == task_id


def test_a_response_that_is_not_stored_has_its_webhook_too(api: httpx.Client, receiver: Receiver) -> None:
    made = submit(api, store=False, webhook={"url": receiver.url})
    assert arrived(receiver, made["id"]).verify(secret_of(api)).data.id == made["id"]


@pytest.mark.requirement("S-007", "S-007c")
def test_a_response_that_is_deleted_while_its_receiver_hangs_is_still_told(
    api: httpx.Client, receiver: Receiver
) -> None:
    receiver.behaviour = hang_then(answer(200))
    made = submit(api, webhook={"url": receiver.url})
    arrived(receiver, made["id"])
    assert api.delete(f"/v1/responses/{made['id']}").status_code == 200
    (message,) = [one for one in listed(api) if one["task"] == made["id"]]
    assert (message["state"], message["tries"]) == ("unconfirmed", 1)
    receiver.free.set()
    assert delivered(api, made["id"])["last_answer"] == "HTTP 200"


def test_a_key_makes_one_message_and_belongs_to_one_receiver(api: httpx.Client, receiver: Receiver) -> None:
    body = {"model": "scripted", "input": "x", "background": True, "max_output_tokens": 2}
    headers = {"Idempotency-Key": f"webhook {receiver.port}".replace(" ", "-")}
    asked = {**body, "webhook": {"url": receiver.url}}
    first, again = (api.post("/v1/responses", json=asked, headers=headers) for _ in range(2))
    assert first.json()["id"] == again.json()["id"]
    other = api.post("/v1/responses", json={**body, "webhook": {"url": f"{receiver.url}/x"}}, headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    arrived(receiver, first.json()["id"])
    delivered(api, first.json()["id"])
    assert len(receiver.deliveries) == 1


# Clients are kept apart


def test_each_client_has_a_secret_of_its_own_and_sees_its_own_messages(
    server: Server, api: httpx.Client, receiver: Receiver
) -> None:
    names = ("ada", "bob")
    clients = [server.http(server.add_client(name)) for name in names]
    made = [submit(client, webhook={"url": receiver.url})["id"] for client in clients]
    secrets = [secret_of(client) for client in clients]
    assert len({*secrets, secret_of(api)}) == 3
    assert secrets == [secret_of(client) for client in clients]
    for task_id, own, other in zip(made, secrets, reversed(secrets), strict=True):
        delivery = arrived(receiver, task_id)
        assert delivery.verify(own).data.id == task_id
        with pytest.raises(Exception, match="signature"):
            delivery.verify(other)
    for client, task_id in zip(clients, made, strict=True):
        assert [one["task"] for one in listed(client)] == [task_id]
        client.close()
    assert set(made) <= {one["task"] for one in listed(api)}


@pytest.mark.parametrize(
    ("scopes", "path", "status"),
    [
        ({"tasks:read"}, "/v1/webhooks", 200),
        ({"responses:read", "responses:write", "models:read"}, "/v1/webhooks", 403),
        ({"responses:read"}, "/v1/webhooks/secret", 200),
        ({"tasks:read", "responses:write"}, "/v1/webhooks/secret", 403),
    ],
)
def test_a_scope_opens_its_route(server: Server, scopes: set[str], path: str, status: int) -> None:
    with server.http(server.add_client(f"scoped {status} {path}".replace(" ", "-"), frozenset(scopes))) as client:
        assert client.get(path).status_code == status
    with server.http(None) as nobody:
        assert nobody.get(path).status_code == 401


def test_no_other_answer_of_the_service_tells_a_secret(api: httpx.Client, receiver: Receiver) -> None:
    made = submit(api, webhook={"url": f"{receiver.url}?token=hidden"})
    arrived(receiver, made["id"])
    delivered(api, made["id"])
    secret = secret_of(api)
    paths = ["service", "webhooks", "tasks", f"tasks/{made['id']}", f"tasks/{made['id']}/events"]
    texts = [api.get(f"/v1/{path}").text for path in [*paths, f"responses/{made['id']}"]]
    assert [text for text in texts if secret in text or "webhook_key" in text or "hidden" in text] == []


# Lists


def test_messages_are_listed_newest_first_page_by_page(server: Server, receiver: Receiver) -> None:
    with server.http(server.add_client("paging")) as client:
        made = [submit(client, webhook={"url": receiver.url})["id"] for _ in range(5)]
        for task_id in made:
            delivered(client, task_id)
        pages: list[list[str]] = []
        query: dict[str, str | int] = {"limit": 2}
        while True:
            reply = client.get("/v1/webhooks", params=query).json()
            pages.append([one["task"] for one in reply["data"]])
            if not reply["has_more"]:
                break
            query["after"] = reply["last_id"]
        assert pages == [made[:2:-1], made[2:0:-1], made[:1]]
        assert listed(client, state="failed") == []


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"state": "sent"}, "state"),
        ({"limit": "0"}, "limit"),
        ({"limit": "101"}, "limit"),
        ({"after": "resp_1"}, "after"),
        ({"after": "evt_é"}, "after"),
        ({"colour": "1"}, "colour"),
    ],
)
def test_a_list_is_asked_for_in_words_that_are_known(careful: Server, query: dict[str, str], param: str) -> None:
    with careful.http() as api:
        reply = api.get("/v1/webhooks", params=query)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_request")
        assert reply.json()["error"]["param"] == param
        assert api.get("/v1/webhooks/secret", params={"colour": "1"}).status_code == 400


# What is refused


@pytest.mark.parametrize("url", REFUSED)
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
def test_a_url_that_leads_nowhere_or_inside_is_refused_at_once(careful: Server, path: str, url: str) -> None:
    text: dict[str, Any] = (
        {"input": "x"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "x"}]}
    )
    with careful.http() as api:
        before = api.get("/v1/tasks").json()
        reply = api.post(path, json={"model": "scripted", "webhook": {"url": url}, **text})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["param"]) == (400, "invalid_request", "webhook")
        assert "secret" not in error["message"]
        assert api.get("/v1/tasks").json() == before


@pytest.mark.parametrize("webhook", ["https://example.org", 5, True, [], {}, {"url": 5}, {"url": None}, {"uri": "x"}])
def test_a_webhook_is_an_object_with_a_url(careful: Server, webhook: Any) -> None:
    with careful.http() as api:
        reply = api.post("/v1/responses", json={"model": "scripted", "input": "x", "webhook": webhook})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["param"]) == (400, "invalid_request", "webhook")
        extra = {"url": "https://example.org", "secret": "mine"}
        reply = api.post("/v1/responses", json={"model": "scripted", "input": "x", "webhook": extra})
        assert reply.json()["error"]["param"] == "webhook"


def test_no_webhook_is_asked_for_with_null(careful: Server) -> None:
    with careful.http() as api:
        made = submit(api, webhook=None)
        events_of(api, made["id"])
        assert listed(api) == []


def test_a_name_is_taken_at_its_word_until_it_is_used(careful: Server) -> None:
    """There is no look at DNS while a request waits; a name that leads nowhere is an answer like any other."""
    with careful.http() as api:
        made = submit(api, webhook={"url": "https://nobody.invalid/hook"})
        events_of(api, made["id"])

        def tried() -> dict[str, Any] | None:
            (message,) = listed(api)
            return message if message["last_answer"] else None

        message = wait_for(tried, "the first try")
        assert message is not None
        assert (message["state"], message["url"]) == ("pending", "https://nobody.invalid/hook")
        assert message["last_answer"] == "not sent: the host nobody.invalid can't be resolved"


def test_the_secret_outlives_the_process(tmp_path: Path) -> None:
    secrets: list[str] = []
    for _ in range(2):
        with running(tmp_path) as started, started.http() as api:
            secrets.append(secret_of(api))
    assert secrets[0] == secrets[1]
    assert secrets[0].startswith("whsec_")
