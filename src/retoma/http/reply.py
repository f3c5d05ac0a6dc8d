"""The replies that are not streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from starlette.responses import Response

from retoma.core.events import encode_json

T = TypeVar("T")
REPLAYED = {"Idempotency-Replayed": "true"}


class Json(Response):
    """JSON in the project's one encoding; never kept by a cache."""

    media_type = "application/json"

    def __init__(self, content: object, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(encode_json(content).encode(), status_code, {"Cache-Control": "no-store", **(headers or {})})


def response_reply(body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Json:
    """A Response object, with its task's version as ETag."""
    return Json(body, status, {"ETag": f'"{body["task"]["version"]}"', **(headers or {})})


def list_reply(data: Sequence[Mapping[str, Any]], *, has_more: bool) -> Json:
    """A page in OpenAI's list shape."""
    ids = [item["id"] for item in data]
    return Json(
        {
            "object": "list",
            "data": data,
            "first_id": ids[0] if ids else None,
            "last_id": ids[-1] if ids else None,
            "has_more": has_more,
        }
    )


def page_reply(found: Sequence[T], limit: int, show: Callable[[T], Mapping[str, Any]]) -> Json:
    """A page of rows of which one more than `limit` was asked for."""
    return list_reply([show(item) for item in found[:limit]], has_more=len(found) > limit)
