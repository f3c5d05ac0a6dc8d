"""Query parameters and headers, read strictly: what isn't understood is refused, never ignored."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fastapi import Request

from retoma.errors import InvalidRequest, NotFound
from retoma.limits import IDEMPOTENCY_KEY_CHARS_MAX

_INTEGER = re.compile(r"\d{1,18}", re.ASCII)
_ETAG = re.compile(r'"(\d{1,18})"|(\d{1,18})', re.ASCII)
_RESPONSE_ID = re.compile(r"resp_[0-9a-f]{32}", re.ASCII)
_VISIBLE = re.compile(r"[\x21-\x7e]+", re.ASCII)
_WORDS = {"true": True, "1": True, "false": False, "0": False}


class Query:
    """The parameters of one request; raises InvalidRequest for one that isn't in `known` or is there twice."""

    def __init__(self, request: Request, known: Sequence[str] = ()) -> None:
        self._values: dict[str, str] = {}
        for name, value in request.query_params.multi_items():
            plain = name.removesuffix("[]")  # how the openai package writes a list
            if plain not in known:
                raise InvalidRequest(f"unknown query parameter {name!r}", param=name)
            if plain in self._values and plain == name:
                raise InvalidRequest(f"{name} is given twice", param=name)
            self._values[plain] = value

    def text(self, name: str, choices: Sequence[str] = ()) -> str:
        """The value, or nothing; with `choices`, one of them or nothing."""
        value = self._values.get(name, "")
        if value and choices and value not in choices:
            raise InvalidRequest(f"{name} must be one of {', '.join(choices)}", param=name)
        return value

    def flag(self, name: str) -> bool:
        """A yes or no; no when it isn't given."""
        value = self._values.get(name, "false").lower()
        if value not in _WORDS:
            raise InvalidRequest(f"{name} must be true or false", param=name)
        return _WORDS[value]

    def integer(self, name: str, *, low: int = 0, high: int | None = None) -> int | None:
        """A number within bounds, or None when it isn't given."""
        value = self._values.get(name)
        return None if value is None else _integer(name, value, low, high)


def _integer(name: str, text: str, low: int, high: int | None) -> int:
    number = int(text) if _INTEGER.fullmatch(text) else -1
    if number < low or (high is not None and number > high):
        bounds = f"from {low} to {high}" if high is not None else f"of at least {low}"
        raise InvalidRequest(f"{name} must be an integer {bounds}", param=name)
    return number


def cursor_of(request: Request, query: Query) -> int:
    """The number of the last event that the client has, -1 for none; `starting_after` wins over Last-Event-ID."""
    header = request.headers.get("last-event-id") or None
    seen = None if header is None else _integer("Last-Event-ID", header, 0, None)
    after = query.integer("starting_after")
    if after is None:
        after = seen
    return -1 if after is None else after


def response_id_of(text: str, param: str | None = None) -> str:
    """The id, if it can be one; raises NotFound, as for any other id that leads nowhere."""
    if not _RESPONSE_ID.fullmatch(text):
        raise NotFound(f"there is no response {text[:64]}", param=param)
    return text


def expected_version(request: Request) -> int | None:
    """The version in If-Match; None when any will do."""
    values = request.headers.getlist("if-match")
    if not values or values == ["*"]:
        return None
    found = _ETAG.fullmatch(values[0].strip()) if len(values) == 1 else None
    if found is None:
        raise InvalidRequest('If-Match must be one ETag of this response, such as "17", or *', param="If-Match")
    return int(found[1] or found[2])


def idempotency_key_of(request: Request) -> str | None:
    """The key, as it was sent."""
    values = request.headers.getlist("idempotency-key")
    if not values:
        return None
    if len(values) > 1 or len(values[0]) > IDEMPOTENCY_KEY_CHARS_MAX or not _VISIBLE.fullmatch(values[0]):
        raise InvalidRequest(
            f"Idempotency-Key must be 1 to {IDEMPOTENCY_KEY_CHARS_MAX} visible ASCII characters, without spaces",
            param="Idempotency-Key",
        )
    return values[0]
