"""Pages of other sites and names that lead here: refused on every open route, before anything is done."""

from __future__ import annotations

import httpx
import pytest

from retoma.http.guard import SCOPES
from tests.http.service import Server, raw_request

OPEN = sorted((method, path) for (method, path), scope in SCOPES.items() if scope is None and "dashboard" not in path)
ROUTES = pytest.mark.parametrize(("method", "path"), [*OPEN, ("GET", "/openapi.json"), ("GET", "/v1/models")])
FOREIGN_HOSTS = [
    "rebound.evil.example:8642",
    "localhost.",
    "localhost:8642.evil.example",
    "127.0.0.1.evil.example",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0.0.0.0",  # noqa: S104 - not bound, only named
    "[::ffff:127.0.0.1]",
    "[::1%25lo]",
    "localhost, evil.example",
    "localhost:8642:8642",
    "localhost:port",
    "user@localhost",
    "",
]
FOREIGN_ORIGINS = [
    "null",
    "http://evil.example",
    "http://localhost.evil.example:8642",
    "http://evil.example#localhost",
    "http://localhost@evil.example",
    "chrome-extension://localhost",
    "localhost",
    "http://",
    "",
]


@ROUTES
@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_a_name_that_was_made_to_lead_here_is_refused(api: httpx.Client, method: str, path: str, host: str) -> None:
    reply = api.request(method, path, headers={"Host": host})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "Host"


@ROUTES
@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
def test_a_page_of_another_site_is_refused(api: httpx.Client, method: str, path: str, origin: str) -> None:
    reply = api.request(method, path, headers={"Origin": origin})
    assert (reply.status_code, reply.json()["error"]["param"]) == (403, "Origin")
    assert not [name for name in reply.headers if name.startswith("access-control-")]


@ROUTES
@pytest.mark.parametrize(
    "lines",
    [
        "Host: localhost\r\nHost: localhost",
        "Host: localhost\r\nHost: evil.example",
        "Host: evil.example\r\nHost: localhost",
        "X-Forwarded-Host: localhost",
    ],
)
def test_not_exactly_one_host_is_refused(server: Server, method: str, path: str, lines: str) -> None:
    request = f"{method} {path} HTTP/1.1\r\n{lines}\r\nConnection: close\r\n\r\n"
    assert raw_request(server, request.encode()).startswith(b"HTTP/1.1 400 ")


@ROUTES
def test_one_good_origin_does_not_speak_for_another(server: Server, method: str, path: str) -> None:
    lines = "Host: localhost\r\nOrigin: http://localhost\r\nOrigin: http://evil.example"
    request = f"{method} {path} HTTP/1.1\r\n{lines}\r\nConnection: close\r\n\r\n"
    assert raw_request(server, request.encode()).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:65535", "LOCALHOST"])
def test_its_own_names_are_fine_with_any_port(api: httpx.Client, host: str) -> None:
    assert api.get("/healthz", headers={"Host": host, "Origin": f"http://{host}"}).status_code == 200


def test_a_forwarded_name_changes_nothing(api: httpx.Client) -> None:
    headers = {"X-Forwarded-Host": "evil.example", "Forwarded": "host=evil.example", "X-Forwarded-For": "10.0.0.1"}
    assert api.get("/healthz", headers=headers).status_code == 200


def test_a_preflight_of_another_site_is_not_allowed(api: httpx.Client) -> None:
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    reply = api.options("/v1/pairings", headers=asked)
    assert reply.status_code == 403
    assert "access-control-allow-origin" not in reply.headers
