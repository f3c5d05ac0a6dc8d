"""Every route of the real service, tried by everybody: with each scope alone, without a token, with a revoked one, and
by a client that names what another's is. What a route needs is said in one table, and a route that isn't in it fails.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute, iter_route_contexts

from retoma.clock import SystemClock
from retoma.core.scopes import ADMIN, SCOPES
from retoma.dashboard.router import make_router
from retoma.http.app import create_app
from retoma.http.guard import SCOPES as NEEDED
from retoma.settings import Settings
from retoma.store.sqlite import SqliteStore
from retoma.transactions.pairings import OpenPairing, open_pairing
from tests.http.service import Server
from tests.support.clock import SequentialIds
from tests.support.service import RunningService, start_service

PROMPT = "a-secret-prompt"
UNKNOWN = "0" * 32
# What stands for each part of a path; the tests fail for a part that isn't here.
NOBODYS = {
    "response_id": f"resp_{UNKNOWN}",
    "task_id": f"resp_{UNKNOWN}",
    "completion_id": f"chatcmpl-{UNKNOWN}",
    "client_id": f"cli_{UNKNOWN}",
    "model": "no-such-model",
}
OF_A_TASK = ("response_id", "task_id", "completion_id")
ROUTES = sorted(NEEDED, key=lambda route: route[::-1])
GUARDED = [route for route in ROUTES if NEEDED[route] is not None]
OPEN = [route for route in ROUTES if NEEDED[route] is None]
OF_TASKS = [(method, path) for method, path in ROUTES if any(f"{{{part}}}" in path for part in OF_A_TASK)]


@dataclass
class Place:
    """A running service, and its clients by what they may do."""

    service: RunningService
    tokens: dict[str, str] = field(default_factory=dict[str, str])
    ids: dict[str, str] = field(default_factory=dict[str, str])
    task: str = ""

    def send(self, method: str, path: str, token: str | None, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        body = {} if method in {"GET", "DELETE"} else {"json": {}}
        return httpx.request(method, self.service.url + path, headers=headers, timeout=30, **(body | options))

    def pair(self, name: str, *scopes: str) -> None:
        code = f"CODE{len(self.tokens):04}"
        store = SqliteStore(self.service.data_dir / "retoma.db")
        now_ms = SystemClock().wall_ms()
        command = OpenPairing(SequentialIds(len(self.tokens)).new("pair"), code, name, frozenset(scopes), now_ms)
        store.transact(partial(open_pairing, command=command))
        store.close()
        made = self.send("POST", "/v1/pairings", None, json={"code": code}).json()
        self.tokens[name], self.ids[name] = made["token"], made["client"]["id"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with start_service(tmp_path_factory.mktemp("service") / "data") as service:
        made = Place(service)
        for scope in SCOPES:
            made.pair(scope, scope)
        everything_else = [scope for scope in SCOPES if scope != ADMIN]
        for name in ("owner", "other", "revoked"):
            made.pair(name, *everything_else)
        assert made.send("DELETE", f"/v1/clients/{made.ids['revoked']}", service.token).status_code == 200
        body = {"model": "scripted", "input": PROMPT, "max_output_tokens": 4}
        answer = made.send("POST", "/v1/responses", made.tokens["owner"], json=body)
        made.task = answer.json()["id"]
        yield made


def filled(path: str, values: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)(?::path)?\}", lambda part: values[part[1]], path)


def of_owner(place: Place, path: str) -> str:
    """The path to what the owner has."""
    number = place.task.removeprefix("resp_")
    own = {"response_id": place.task, "task_id": place.task, "completion_id": f"chatcmpl-{number}"}
    return filled(path, NOBODYS | own)


def code_of(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


def ids_of(route: tuple[str, str]) -> str:
    return " ".join(route)


def test_the_table_has_a_line_for_every_route_and_for_nothing_else(server: Server, tmp_path: Path) -> None:
    app = create_app(server.instance, Settings(data_dir=tmp_path))
    app.include_router(make_router(lambda: asyncio.sleep(0)))  # as bootstrap does
    found: set[tuple[str, str]] = set()
    unguarded: set[str] = set()
    for context in iter_route_contexts(app.routes):
        if isinstance(context.original_route, APIRoute):
            found |= {(method, str(context.path)) for method in context.methods or ()}
        else:  # the guard is a dependency, which only FastAPI's own routes have
            unguarded.add(str(context.path))
    assert found == set(NEEDED)
    assert unguarded == {"/openapi.json"}
    assert {scope for scope in NEEDED.values() if scope is not None} == set(SCOPES)


def test_what_is_open_to_everybody_is_a_short_list() -> None:
    shell = {"/", "/dashboard/dashboard.css", "/dashboard/dashboard.js"}
    assert {path for _, path in OPEN} == {"/v1/pairings", "/healthz", "/readyz", "/metrics", "/docs"} | shell


@pytest.mark.parametrize("route", GUARDED, ids=ids_of)
def test_without_a_good_token_nothing_is_answered(place: Place, route: tuple[str, str]) -> None:
    method, path = route[0], filled(route[1], NOBODYS)
    bad = [None, "wrong", place.tokens["revoked"], place.tokens["owner"][:-1], place.ids["owner"]]
    for token in bad:
        reply = place.send(method, path, token)
        assert code_of(reply) == (401, "invalid_token"), token
        assert reply.headers["www-authenticate"] == "Bearer"
    # A token is read from one place: not from the address, nor from a cookie, which other sites could make one send.
    owner = place.tokens["owner"]
    assert place.send(method, f"{path}?token={owner}&access_token={owner}", None).status_code == 401
    assert place.send(method, path, None, cookies={"token": owner}).status_code == 401


@pytest.mark.parametrize("route", GUARDED, ids=ids_of)
@pytest.mark.parametrize("scope", SCOPES)
def test_a_route_answers_to_its_own_scope_and_to_admin(place: Place, route: tuple[str, str], scope: str) -> None:
    method, path = route[0], filled(route[1], NOBODYS)
    needed = NEEDED[route]
    reply = place.send(method, path, place.tokens[scope])
    if scope in {needed, ADMIN}:
        assert reply.status_code not in {401, 403}, reply.text
        assert reply.status_code < 500
    else:
        assert code_of(reply) == (403, "insufficient_scope")
        assert f"the scope {needed}" in reply.json()["error"]["message"]


@pytest.mark.parametrize("route", OF_TASKS, ids=ids_of)
def test_what_is_anothers_is_as_if_it_were_not_there(place: Place, route: tuple[str, str]) -> None:
    method, path = route
    before = place.send("GET", f"/v1/responses/{place.task}", place.tokens["owner"])
    foreign, absent = of_owner(place, path), filled(path, NOBODYS)
    replies = [place.send(method, one, place.tokens["other"]) for one in (foreign, absent)]
    if NEEDED[route] == ADMIN:
        assert [code_of(reply) for reply in replies] == [(403, "insufficient_scope")] * 2
        return
    assert [code_of(reply) for reply in replies] == [(404, "not_found")] * 2
    number = place.task.removeprefix("resp_")
    told = [reply.json()["error"]["message"].replace(number, UNKNOWN) for reply in replies]
    assert told[0] == told[1]
    assert place.send("GET", f"/v1/responses/{place.task}", place.tokens["owner"]).content == before.content
    if method == "GET":
        assert place.send(method, foreign, place.tokens["owner"]).status_code == 200
        assert place.send(method, foreign, place.tokens[ADMIN]).status_code == 200


@pytest.mark.parametrize("path", [path for method, path in GUARDED if method == "GET" and "{" not in path])
def test_no_list_shows_what_is_anothers(place: Place, path: str) -> None:
    shown = place.send("GET", path, place.tokens["other"]).text
    assert place.task not in shown
    assert place.ids["owner"] not in shown
    assert PROMPT not in shown


def test_a_response_of_another_can_not_be_continued_nor_its_key_be_used(place: Place) -> None:
    body = {"model": "scripted", "input": PROMPT, "max_output_tokens": 2}
    follow_up = {**body, "previous_response_id": place.task}
    assert place.send("POST", "/v1/responses", place.tokens["other"], json=follow_up).status_code == 404
    made: list[str] = []
    for name in ("owner", "other", "owner"):
        headers = {"Authorization": f"Bearer {place.tokens[name]}", "Idempotency-Key": "the-same"}
        reply = httpx.post(f"{place.service.url}/v1/responses", json=body, headers=headers, timeout=30)
        made.append(reply.json()["id"])
    assert made[0] == made[2] != made[1]


@pytest.mark.parametrize("path", [*(path for method, path in OPEN if method == "GET"), "/openapi.json"])
def test_what_is_open_tells_nothing_of_what_is_inside(place: Place, path: str) -> None:
    reply = place.send("GET", path, None)
    assert reply.status_code == 200
    seen = json.dumps([reply.text, *reply.headers.items()])
    secrets = [PROMPT, str(place.service.data_dir), place.service.token, *place.tokens.values()]
    assert [secret for secret in secrets if secret in seen] == []
    assert re.findall(r"(?:resp|cli|msg|evt|svc|inst)_[0-9a-f]{32}", seen) == []
    assert "server" not in reply.headers
    assert "set-cookie" not in reply.headers
