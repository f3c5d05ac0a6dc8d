"""Pairing over HTTP: one code, one client, one token; and what the operator sees and takes away."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from retoma.core.pairing import code_of, spaced
from retoma.core.scopes import DEFAULT_SCOPES
from retoma.errors import StoreFull, StoreUnavailable
from retoma.http.errors import RETRY_AFTER_S
from retoma.limits import PAIRING_BYTES_MAX, PAIRING_FAILURES_PER_MINUTE_MAX, PAIRING_MS, PAIRING_WRONG_TRIES_MAX
from retoma.runtime.clients import Failures
from retoma.store.contract import Outcome, Settle
from retoma.store.sqlite import SqliteStore
from retoma.transactions.clients import LOCAL_CLIENT, find_client
from retoma.transactions.pairings import OpenPairing, open_pairing
from tests.http.conftest import store_of
from tests.http.service import TOKEN, Server, events_of, running, submit
from tests.support.clock import ManualClock

PATH = "/v1/pairings"
WRONG = "22222222"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service") / "data"


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, data_dir: Path) -> Iterator[Server]:
    # A lease of an hour: nothing but what a test does writes into the store meanwhile.
    with running(data_dir / request.param, store=store_of(request), lease_s=3600.0) as started:
        yield started


@pytest.fixture(autouse=True)
def clock(server: Server) -> ManualClock:
    """Of the bound on failures; each test begins with a full minute."""
    made = ManualClock()
    server.instance.clients._failures = Failures(made, PAIRING_FAILURES_PER_MINUTE_MAX)
    return made


@pytest.fixture
def stranger(server: Server) -> Iterator[httpx.Client]:
    with server.http(token=None) as client:
        yield client


def new_code(server: Server, *scopes: str, name: str = "", age_ms: int = 0) -> str:
    """What `retoma clients pair` would print."""
    ids, now_ms = server.instance.ids, server.instance.clock.wall_ms()
    code = code_of(ids.key())
    command = OpenPairing(ids.new("pair"), code, name, frozenset(scopes or DEFAULT_SCOPES), now_ms - age_ms)
    server.store.transact(partial(open_pairing, command=command))
    return code


def exchange(client: httpx.Client, code: Any, **more: Any) -> httpx.Response:
    return client.post(PATH, json={"code": code, **more})


def paired(server: Server, *scopes: str, name: str = "") -> tuple[str, str]:
    """A new client's token and id."""
    with server.http(token=None) as client:
        made = exchange(client, new_code(server, *scopes, name=name)).json()
    return made["token"], made["client"]["id"]


def told(reply: httpx.Response) -> dict[str, Any]:
    """An error as it was told, without what differs from request to request."""
    error = dict(reply.json()["error"])
    assert error.pop("request_id") == reply.headers["x-request-id"]
    headers = {name: value for name, value in reply.headers.items() if name not in {"date", "x-request-id"}}
    return {"status": reply.status_code, **error, "headers": headers}


class TestExchange:
    def test_a_code_becomes_a_token_that_every_client_program_can_use(
        self, server: Server, stranger: httpx.Client
    ) -> None:
        code = new_code(server, name="desk")
        reply = exchange(stranger, f" {spaced(code).lower()} ", name="my phone")
        made = reply.json()
        assert (reply.status_code, made.keys()) == (201, {"token", "client"})
        assert made["client"].keys() == {"id", "name", "scopes"}
        assert (made["client"]["name"], made["client"]["scopes"]) == ("my phone", sorted(DEFAULT_SCOPES))
        assert reply.headers["cache-control"] == "no-store"
        assert len(made["token"]) == len("rt_") + 43
        with server.openai(made["token"]) as ai:
            answer = ai.responses.create(model="scripted", input="x", max_output_tokens=2)
            assert answer.status in {"completed", "incomplete"}
            assert "scripted" in [model.id for model in ai.models.list()]

    def test_a_client_is_named_by_its_code_if_it_does_not_name_itself(
        self, server: Server, stranger: httpx.Client
    ) -> None:
        assert exchange(stranger, new_code(server, name="desk")).json()["client"]["name"] == "desk"
        assert exchange(stranger, new_code(server), name=None).json()["client"]["name"] == "client"

    def test_neither_a_code_nor_a_token_is_kept_or_logged(
        self, server: Server, stranger: httpx.Client, data_dir: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.DEBUG):
            code = new_code(server)
            made = exchange(stranger, code).json()
            with server.http(made["token"]) as client:
                client.get("/v1/models")
                client.get("/v1/tasks")
            exchange(stranger, code)
        kept = b"".join(path.read_bytes() for path in data_dir.rglob("*") if path.is_file())
        for secret in (code, spaced(code), made["token"], made["token"].removeprefix("rt_")):
            assert secret not in caplog.text
            assert secret.encode() not in kept
        row = server.store.read(partial(find_client, client_id=made["client"]["id"]))
        assert row is not None

    def test_whatever_is_wrong_with_a_code_the_answer_is_the_same(self, server: Server, stranger: httpx.Client) -> None:
        used, expired, exhausted = new_code(server), new_code(server, age_ms=PAIRING_MS), new_code(server)
        assert exchange(stranger, used).status_code == 201
        answers = [told(exchange(stranger, code)) for code in (used, expired, WRONG, "0", "~" * 64)]
        answers.append(told(exchange(stranger, exhausted)))
        assert len({str(answer) for answer in answers}) == 1, answers
        assert (answers[0]["status"], answers[0]["code"]) == (401, "invalid_token")
        assert answers[0]["headers"]["www-authenticate"] == "Bearer"

    def test_the_fifth_wrong_try_ends_the_code(self, server: Server, stranger: httpx.Client) -> None:
        code = new_code(server)
        for _ in range(PAIRING_WRONG_TRIES_MAX - 1):
            assert exchange(stranger, WRONG).status_code == 401
        survivor = new_code(server)
        assert exchange(stranger, WRONG).status_code == 401
        assert [exchange(stranger, code).status_code, exchange(stranger, survivor).status_code] == [401, 201]

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({}, "code"),
            ({"code": None}, "code"),
            ({"code": 12345678}, "code"),
            ({"code": ["ABCDEFGH"]}, "code"),
            ({"code": ""}, "code"),
            ({"code": "x" * 65}, "code"),
            ({"code": WRONG, "name": ""}, "name"),
            ({"code": WRONG, "name": " x"}, "name"),
            ({"code": WRONG, "name": "a\nb"}, "name"),
            ({"code": WRONG, "name": "\u202egnorw"}, "name"),
            ({"code": WRONG, "name": "x" * 101}, "name"),
            ({"code": WRONG, "name": 7}, "name"),
            ({"code": WRONG, "scopes": ["admin"]}, "scopes"),
        ],
    )
    def test_a_malformed_request_is_refused_by_its_field_and_costs_no_try(
        self, server: Server, stranger: httpx.Client, body: dict[str, Any], param: str
    ) -> None:
        code = new_code(server)
        for _ in range(PAIRING_WRONG_TRIES_MAX + 1):
            reply = stranger.post(PATH, json=body)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
        assert exchange(stranger, code).status_code == 201

    def test_who_has_no_token_can_not_make_the_server_keep_much(self, server: Server, stranger: httpx.Client) -> None:
        large = b'{"code": "' + b"2" * PAIRING_BYTES_MAX + b'"}'
        headers = {"Content-Type": "application/json"}
        assert stranger.post(PATH, content=large, headers=headers).status_code == 413
        chunked = stranger.post(PATH, content=iter([large[:100], large[100:]]), headers=headers)
        assert (chunked.status_code, chunked.json()["error"]["code"]) == (413, "too_large")
        assert stranger.post(f"{PATH}?code=x", json={"code": WRONG}).status_code == 400
        assert stranger.post(PATH, content=large, headers={"Content-Type": "text/plain"}).status_code == 400

    def test_after_twenty_failures_in_a_minute_nothing_is_looked_at_and_then_again(
        self, server: Server, stranger: httpx.Client, clock: ManualClock
    ) -> None:
        for _ in range(PAIRING_FAILURES_PER_MINUTE_MAX):
            assert exchange(stranger, WRONG).status_code == 401
            clock.advance(1)
        code = new_code(server)
        refused = exchange(stranger, code)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limited")
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert int(refused.headers["retry-after"]) == RETRY_AFTER_S["rate_limited"] == 60
        clock.advance(60_000 - PAIRING_FAILURES_PER_MINUTE_MAX - 1)
        assert exchange(stranger, WRONG).status_code == 429
        clock.advance(1)
        assert exchange(stranger, code).status_code == 201
        assert exchange(stranger, WRONG).status_code == 401
        assert exchange(stranger, WRONG).status_code == 429

    def test_tries_that_come_all_at_once_are_bounded_too(self, server: Server) -> None:
        def send(_: int) -> int:
            with server.http(token=None) as client:
                return exchange(client, WRONG).status_code

        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(send, range(PAIRING_FAILURES_PER_MINUTE_MAX * 2)))
        assert sorted(answers) == [401] * PAIRING_FAILURES_PER_MINUTE_MAX + [429] * PAIRING_FAILURES_PER_MINUTE_MAX

    def test_codes_that_fit_are_no_failures(self, server: Server, stranger: httpx.Client) -> None:
        for _ in range(PAIRING_FAILURES_PER_MINUTE_MAX + 2):
            assert exchange(stranger, new_code(server)).status_code == 201

    def test_who_has_no_token_is_not_told_where_the_store_is(
        self, server: Server, stranger: httpx.Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object) -> None:
            raise StoreFull("the disk that holds /secret/retoma.db is full")

        def refusing(_: object, settle: Settle) -> None:
            settle(Outcome(error=StoreUnavailable("PostgreSQL at db.internal can't be reached")))

        code = new_code(server)
        with monkeypatch.context() as patch:
            patch.setattr(server.store, "read", broken)
            patch.setattr(server.store, "submit", refusing)
            asked = stranger.get("/v1/models", headers={"Authorization": "Bearer x"})
            tried = exchange(stranger, code)
        assert [asked.status_code, tried.status_code] == [503, 503]
        assert [asked.json()["error"]["code"], tried.json()["error"]["code"]] == ["store_full", "store_unavailable"]
        assert "retry-after" in asked.headers
        assert "secret" not in asked.text
        assert "internal" not in tried.text
        assert exchange(stranger, code).status_code == 201


class TestOperator:
    def test_clients_are_listed_page_by_page_newest_first(self, api: httpx.Client, server: Server) -> None:
        made = [paired(server, "models:read", name=f"device {number}")[1] for number in range(5)]
        page = api.get("/v1/clients", params={"limit": 3}).json()
        assert [one["id"] for one in page["data"]] == made[:1:-1]
        assert (page["object"], page["has_more"], page["last_id"]) == ("list", True, made[2])
        rest = api.get("/v1/clients", params={"limit": 2, "after": page["last_id"]}).json()
        assert [one["id"] for one in rest["data"]] == made[1::-1]
        first = page["data"][0]
        assert first == {
            "id": made[4],
            "object": "client",
            "name": "device 4",
            "scopes": ["models:read"],
            "created_at": first["created_at"],
            "last_used_at": None,
            "revoked_at": None,
        }
        assert isinstance(first["created_at"], int)

    @pytest.mark.parametrize(
        "query", ["limit=0", "limit=101", "after=x", "after=%00", "all=perhaps", "colour=red", "limit=1&limit=2"]
    )
    def test_a_list_that_can_not_be_understood_is_refused(self, api: httpx.Client, query: str) -> None:
        assert api.get(f"/v1/clients?{query}").status_code == 400

    def test_a_revoked_client_is_refused_at_once_and_listed_only_when_asked_for(
        self, api: httpx.Client, server: Server
    ) -> None:
        token, client_id = paired(server)
        with server.http(token) as client:
            assert client.get("/v1/models").status_code == 200
            gone = api.delete(f"/v1/clients/{client_id}")
            assert (gone.status_code, gone.json()) == (
                200,
                {"id": client_id, "object": "client", "revoked": True},
            )
            refused = client.get("/v1/models")
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_token")
        assert api.delete(f"/v1/clients/{client_id}").json() == gone.json()
        assert client_id not in [one["id"] for one in api.get("/v1/clients").json()["data"]]
        every = {one["id"]: one for one in api.get("/v1/clients?all=true&limit=100").json()["data"]}
        assert isinstance(every[client_id]["revoked_at"], int)

    def test_only_a_client_that_there_is_can_be_revoked(self, api: httpx.Client) -> None:
        for unknown in (f"cli_{'0' * 32}", "nonsense", "cli_%00", "%F0%9F%93%B1"):
            reply = api.delete(f"/v1/clients/{unknown}")
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
        local = api.delete(f"/v1/clients/{LOCAL_CLIENT.id}")
        assert (local.status_code, local.json()["error"]["code"]) == (409, "conflict")
        assert api.get("/v1/models").status_code == 200

    def test_a_paired_operator_may_do_everything_even_revoke_itself(self, server: Server) -> None:
        token, client_id = paired(server, "admin")
        _, other = paired(server)
        with server.http(token) as admin:
            task = submit(admin, max_output_tokens=1)
            events_of(admin, task["id"])
            assert admin.delete(f"/v1/clients/{other}").status_code == 200
            itself = admin.delete(f"/v1/clients/{client_id}")
            assert (itself.status_code, itself.json()["revoked"]) == (200, True)
            assert admin.get("/v1/clients").status_code == 401

    def test_what_a_revoked_client_was_promised_goes_on_and_is_the_operators(
        self, api: httpx.Client, server: Server
    ) -> None:
        token, client_id = paired(server)
        with server.http(token) as client:
            task = submit(client, max_output_tokens=40)["id"]
        assert api.delete(f"/v1/clients/{client_id}").status_code == 200
        assert events_of(api, task)[-1].type == "response.incomplete"
        assert api.get(f"/v1/tasks/{task}").json()["client_id"] == client_id


class TestLastUse:
    def test_it_is_seen_at_once_and_written_soon(self, api: httpx.Client, server: Server) -> None:
        token, client_id = paired(server)
        with server.http(token) as client:
            client.get("/v1/models")
        shown = {one["id"]: one["last_used_at"] for one in api.get("/v1/clients?limit=100").json()["data"]}
        assert isinstance(shown[client_id], int)
        server.on_loop(server.instance.clients._write_uses())
        row = server.store.read(partial(find_client, client_id=client_id))
        assert row is not None
        assert row.last_used_at_ms is not None
        assert row.last_used_at_ms // 1000 == shown[client_id]

    def test_a_thousand_requests_write_nothing_but_that(self, api: httpx.Client, server: Server) -> None:
        if not isinstance(server.store, SqliteStore):
            pytest.skip("commits are counted on SQLite; what decides when to write knows no store")
        store = server.store
        token, client_id = paired(server)
        server.on_loop(server.instance.housekeep())  # its first pass is over then, and the next is a minute away
        server.on_loop(server.instance.clients._write_uses())
        before = store.statistics()["transactions"]
        with server.http(token) as client:
            for _ in range(1_000):
                assert client.get("/v1/models").status_code == 200
        # A pass of housekeeping and one look at the uses may fall into the time that this takes.
        assert store.statistics()["transactions"] - before <= 5
        shown = {one["id"]: one["last_used_at"] for one in api.get("/v1/clients?limit=100").json()["data"]}
        assert shown[client_id] is not None


def test_an_orderly_stop_writes_the_last_uses(tmp_path: Path) -> None:
    with running(tmp_path / "data") as server:
        first, second = paired(server), paired(server)
        for token, _ in (first, second):
            with server.http(token) as client:
                assert client.get("/v1/models").status_code == 200
    store = SqliteStore(tmp_path / "data" / "retoma.db")
    try:
        for _, client_id in (first, second):
            row = store.read(partial(find_client, client_id=client_id))
            assert row is not None
            assert row.last_used_at_ms is not None
    finally:
        store.close()


def test_a_token_is_no_token_of_another_service(server: Server, tmp_path: Path) -> None:
    token, _ = paired(server)
    with running(tmp_path / "data") as other, other.http(token) as client:
        assert client.get("/v1/models").status_code == 401
    with pytest.raises(openai.AuthenticationError), server.openai(f"{token}x") as ai:
        ai.models.list()
    with server.http(TOKEN) as local:
        assert local.get("/v1/models").status_code == 200
