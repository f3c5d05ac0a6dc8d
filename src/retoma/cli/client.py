"""The service as the other commands see it, over HTTP; every failure is a sentence that says what to do next."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import click

from retoma.cli.failures import Answered, ConnectionLost, NothingListens
from retoma.cli.options import Command, data_dir_of, data_dir_option, named_data_dir
from retoma.limits import PAGE_ITEMS_MAX

if TYPE_CHECKING:
    import httpx

DEFAULT_URL = "http://127.0.0.1:8642"
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_ANSWER_S = 60.0
# The service sends a comment every 15 s on an open stream; three missed ones mean that the connection is dead.
_SILENCE_S = 45.0
_CONNECT_S = 5.0


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a response's log."""

    seq: int
    type: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """Which service, and how to show that one may talk to it."""

    url: str
    token: str
    missing_token: str = ""
    """Why there is no token, for the case that the service asks for one."""


def find_target(url: str | None, token: str | None, data_dir: str | None) -> Target:
    """From the options, else the environment, else the data directory's token.

    The data directory's token is not sent to another machine unless the person names that directory: it is the key to
    everything here, and a mistyped address must not get it.
    """
    url = (url or os.environ.get("RETOMA_URL") or DEFAULT_URL).rstrip("/")
    host = _host_of(url)
    if not host:
        raise click.UsageError(f"{url!r} is no URL of a service; it looks like {DEFAULT_URL}")
    if given := token or os.environ.get("RETOMA_TOKEN"):
        return Target(url, given.strip())
    if host not in _LOOPBACK and named_data_dir(data_dir) is None:
        return Target(url, "", "no token was given for another machine; use --token or RETOMA_TOKEN")
    return local_target(url, data_dir_of(data_dir))


def _host_of(url: str) -> str:
    """The host of a service's URL; empty for what can't be one."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.port != 0  # a port that is none raises ValueError
    except ValueError:
        return ""
    return (parts.hostname or "") if usable else ""


def local_target(url: str, data_dir: Path) -> Target:
    """A service of this data directory, with the directory's own token."""
    path = data_dir / "admin.token"
    try:
        return Target(url, path.read_text().strip())
    except OSError as error:
        return Target(url, "", f"{path} can't be read ({error.strerror}); name the service's --data-dir or a --token")


def connection_options(command: Command) -> Command:
    """The options --url, --token and --data-dir."""
    command = data_dir_option(command)
    command = click.option("--token", help="A client's token [env: RETOMA_TOKEN].")(command)
    return click.option("--url", help=f"Where the service is [env: RETOMA_URL; default: {DEFAULT_URL}].")(command)


def with_client(command: Command) -> Command:
    """Gives the command a `client` in place of those three options."""

    @wraps(command)
    def connected(*, url: str | None, token: str | None, data_dir: str | None, **rest: Any) -> Any:
        with Client(find_target(url, token, data_dir)) as client:
            return command(client=client, **rest)

    return connection_options(connected)  # pyright: ignore[reportReturnType] - the same options, and three more


class Client:
    """A connection to one service."""

    def __init__(self, target: Target) -> None:
        import httpx  # noqa: PLC0415 - heavy, and not needed for --help

        self._httpx = httpx
        self.target = target
        headers = {"Authorization": f"Bearer {target.token}"} if target.token else {}
        self._http = httpx.Client(
            base_url=target.url,
            headers=headers,
            timeout=httpx.Timeout(_ANSWER_S, connect=_CONNECT_S),
            # A proxy of the environment must not stand between a machine and itself.
            trust_env=urlsplit(target.url).hostname not in _LOOPBACK,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON object at `path`; empty parameters are left out."""
        given = {name: value for name, value in (params or {}).items() if value not in {None, ""}}
        with self._failures():
            return self._decode(self._http.get(path, params=given))

    def newest(self, path: str, state: str | None, limit: int) -> Iterator[dict[str, Any]]:
        """At most `limit` objects of a list that is served newest first, page by page."""
        after, left = "", limit
        while left > 0:
            page = self.get(path, {"state": state, "after": after, "limit": min(left, PAGE_ITEMS_MAX)})
            yield from page["data"]
            left -= len(page["data"])
            if not page["has_more"]:
                return
            after = page["data"][-1]["id"]

    def post(
        self, path: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Sends a JSON object; the JSON object of the reply."""
        with self._failures():
            return self._decode(self._http.post(path, json=body, headers=dict(headers or {})))

    @contextmanager
    def stream(
        self,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Generator[Iterator[Event], None, None]:
        """The events of a stream: a POST when there is a body. It ends without an error when the service closes it."""
        timeout = self._httpx.Timeout(_SILENCE_S, connect=_CONNECT_S)
        method = "GET" if body is None else "POST"
        with (
            self._failures(),
            self._http.stream(
                method, path, params=params, json=body, headers=dict(headers or {}), timeout=timeout
            ) as reply,
        ):
            if reply.status_code != HTTPStatus.OK:
                reply.read()
                self._decode(reply)
            yield self._events(reply)

    def _events(self, reply: httpx.Response) -> Iterator[Event]:
        import httpx_sse  # noqa: PLC0415 - as httpx

        try:
            for event in httpx_sse.EventSource(reply).iter_sse():
                if not event.data:  # it was a comment, to those who remember the last id
                    continue
                fields = event.json()
                yield Event(fields["sequence_number"], fields["type"], fields)
        except (httpx_sse.SSEError, ValueError, KeyError, TypeError) as error:
            raise Answered(self._not_ours(reply), status=reply.status_code, code="") from error

    def _decode(self, reply: httpx.Response) -> dict[str, Any]:
        try:
            body = reply.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise Answered(self._not_ours(reply), status=reply.status_code, code="")
        if reply.is_success:
            return body  # pyright: ignore[reportUnknownVariableType] - JSON
        raise self._error(reply, body)  # pyright: ignore[reportUnknownArgumentType]

    def _error(self, reply: httpx.Response, body: dict[str, Any]) -> Answered:
        envelope = body.get("error")
        if not isinstance(envelope, dict) or not isinstance(envelope.get("message"), str):  # pyright: ignore[reportUnknownMemberType]
            return Answered(self._not_ours(reply), status=reply.status_code, code="")
        message, code = str(envelope["message"]), str(envelope.get("code"))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        if reply.status_code == HTTPStatus.UNAUTHORIZED:
            message = self.target.missing_token or (
                f"{self.target.url} doesn't accept this token; use the one in the service's data directory "
                "(--data-dir) or a client's own (--token)"
            )
        return Answered(message, status=reply.status_code, code=code)

    def _not_ours(self, reply: httpx.Response) -> str:
        return f"{self.target.url} answered {reply.status_code} in a way that Retoma doesn't; check --url"

    @contextmanager
    def _failures(self) -> Generator[None, None, None]:
        """Every way in which a connection can fail."""
        url = self.target.url
        try:
            yield
        except (self._httpx.ConnectError, self._httpx.ConnectTimeout) as error:
            raise NothingListens(
                f"nothing listens on {url}; start it with `retoma serve`, or use `retoma ask --local`"
            ) from error
        except (self._httpx.InvalidURL, self._httpx.UnsupportedProtocol, UnicodeError) as error:
            raise click.UsageError(f"{url!r} is no URL of a service: {error}") from error
        except self._httpx.HTTPError as error:
            raise ConnectionLost(
                f"the connection to {url} broke off; look at the service's log, then try again"
            ) from error
