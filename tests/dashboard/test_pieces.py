"""The page's pieces over plain HTTP: who gets them, with which headers, and that both stores can fill them."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import httpx
import pytest

from retoma.dashboard.router import make_router
from retoma.dashboard.sizes import Sizes
from retoma.http.guard import ADMIN, SCOPES
from tests.dashboard.people import new_client
from tests.dashboard.strangers import Tasks
from tests.support.api import Api
from tests.support.places import place_on
from tests.support.service import RunningService, start_service
from tools.tree import ROOT

OPEN = ["/", "/dashboard/dashboard.css", "/dashboard/dashboard.js"]
PACKAGE = resources.files("retoma.dashboard")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def routes() -> list[str]:
    async def no_sizes() -> Sizes:
        raise AssertionError

    return [route.path for route in make_router(no_sizes).routes]


def pieces(task: str) -> list[str]:
    """Every route that needs a token, for this task."""
    return [path.replace("{task_id}", task) for path in routes() if path not in OPEN]


def test_every_piece_needs_the_scope_admin_and_only_the_shell_is_open() -> None:
    assert set(OPEN) < set(routes())
    needed = {path: SCOPES["GET", path] for path in routes()}
    assert needed == {path: None if path in OPEN else ADMIN for path in routes()}


def test_nobody_else_gets_a_piece_and_nobody_keeps_one(service: RunningService, tasks: Tasks) -> None:
    _, token = new_client(service, "tasks:read", "responses:read")
    for path in pieces(tasks.completed):
        url = f"{service.url}{path}"
        refused = [httpx.get(url), httpx.get(url, headers={"Authorization": f"Bearer {token}"})]
        assert [reply.status_code for reply in refused] == [401, 403], path
        assert tasks.completed[-8:] not in refused[1].text
        assert httpx.post(url, headers=service.headers).status_code == 405
        reply = httpx.get(url, headers=service.headers)
        assert reply.status_code == 200, reply.text
        assert reply.headers["content-type"] == "text/html; charset=utf-8"
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["content-security-policy"] == POLICY
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "set-cookie" not in reply.headers


def test_the_shell_holds_no_data_and_is_confirmed_by_its_etag(service: RunningService) -> None:
    for path in OPEN:
        reply = httpx.get(f"{service.url}{path}")
        assert reply.status_code == 200
        assert reply.headers["content-security-policy"] == POLICY
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["cache-control"] == "no-cache"
        assert reply.content == httpx.get(f"{service.url}{path}", headers=service.headers).content
        again = httpx.get(f"{service.url}{path}", headers={"If-None-Match": reply.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_pages_of_other_sites_and_other_names_get_nothing(service: RunningService) -> None:
    for path in ("/", "/dashboard/overview"):
        url = f"{service.url}{path}"
        assert httpx.get(url, headers=service.headers | {"Origin": "http://evil.example"}).status_code == 403
        assert httpx.get(url, headers=service.headers | {"Host": "evil.example"}).status_code == 400


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/dashboard/overview?x=1", 400),
        ("/dashboard/tasks?state=done", 400),
        ("/dashboard/tasks?after=%00%ff'\"<b>", 400),
        ("/dashboard/clients?after=cli_local", 400),
        ("/dashboard/tasks/resp_1", 404),
        (f"/dashboard/tasks/resp_{'0' * 32}", 404),
        (f"/dashboard/tasks/resp_{'0' * 32}/messages", 404),
        (f"/dashboard/tasks/resp_{'0' * 32}/events?after=0", 404),
        (f"/dashboard/tasks/resp_{'0' * 32}/events?after=-1", 400),
        ("/dashboard/nothing", 404),
    ],
)
def test_bad_input_is_refused_in_a_sentence(service: RunningService, path: str, status: int) -> None:
    reply = httpx.get(f"{service.url}{path}", headers=service.headers)
    assert reply.status_code == status, reply.text
    assert reply.json()["error"]["message"]


def test_a_list_of_many_tasks_is_walked_page_by_page(tmp_path: Path) -> None:
    with start_service(tmp_path / "data", args=["--workers", "0"]) as service:
        api = Api(service)
        made = [api.create(str(number)) for number in range(53)]
        first = api.http.get("/dashboard/tasks?state=queued").text
        older = re.search(r'href="#(/tasks\?state=queued&amp;after=\w+)"', first)
        assert older
        second = api.http.get(f"/dashboard{older[1].replace('&amp;', '&')}").text
        rows = [re.findall(r'id="task-(\w+)"', text) for text in (first, second)]
        assert [len(page) for page in rows] == [50, 3]
        assert rows[0] + rows[1] == made[::-1]
        assert "Older" not in second
        assert "33 more tasks wait" in api.http.get("/dashboard/overview").text


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_both_stores_fill_every_piece(tmp_path: Path, request: pytest.FixtureRequest, database: str) -> None:
    data_dir = tmp_path / "data"
    if database == "postgres":
        place_on(request.getfixturevalue("postgres_url"), data_dir)
    with start_service(data_dir) as service:
        api = Api(service)
        ended = api.create(max_output_tokens=5)
        api.wait_finished(ended)
        crashed = api.create("[[crash]] at token 8")
        assert api.wait_finished(crashed)["status"] == "failed"
        for path in pieces(ended) + pieces(crashed):
            reply = api.http.get(path)
            assert reply.status_code == 200, reply.text
        store = api.http.get("/dashboard/store").text
        assert ("PostgreSQL" if database == "postgres" else "Write-ahead log") in store
        assert "Healthy" in api.http.get("/dashboard/overview").text
        page = api.http.get(f"/dashboard/tasks/{crashed}").text
        assert page.count("Found running: its engine&#39;s process ended.") == 2
        assert "Its engine ended several times before the text got further." in page


def test_no_script_and_no_style_stands_in_the_html() -> None:
    files = [*(PACKAGE / "templates").iterdir(), PACKAGE / "static" / "index.html"]
    assert len(files) > 5
    for file in files:
        text = file.read_text()
        assert not re.search(r"\sstyle\s*=|\son\w+\s*=|javascript:|<style|\|\s*safe|autoescape", text), file.name
        assert re.findall(r"<script[^>]*>", text) in ([], ['<script src="/dashboard/dashboard.js" defer>'])
        assert not re.search(r"(?:src|href)\s*=\s*\"?(?:https?:)?//", text), file.name


def test_the_page_weighs_what_its_document_says() -> None:
    weight = sum(len(asset(name)) for name in ("index.html", "dashboard.css", "dashboard.js"))
    said = re.search(r"([\d ]+) bytes", (ROOT / "docs" / "dashboard.md").read_text())
    assert said
    assert weight <= int(said[1].replace(" ", "")) < weight + 2_000


def asset(name: str) -> bytes:
    return (PACKAGE / "static" / name).read_bytes()
