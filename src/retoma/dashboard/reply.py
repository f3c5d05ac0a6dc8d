"""HTML replies, their headers, and the three static files.

What a model writes, what a prompt says and what a client calls itself is text of strangers. Two lines stand between it
and the browser: every template escapes, and the policy below runs no script and no style that isn't a file of ours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib import resources
from typing import cast

from fastapi import Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import Response

from retoma.dashboard import words

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FIXED = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("retoma.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = cast("dict[str, Callable[..., str]]", made.filters)  # jinja2 types them by the ones that it brings
    filters.update(
        duration=words.duration,
        size=words.size,
        number=words.number,
        instant=words.instant,
        instant_utc=words.instant_utc,
        short_id=words.short_id,
        plural=words.plural,
        plain=words.plain,
    )
    return made


_TEMPLATES = _environment()


class Fragment(Response):
    """A piece of the page, made for whoever asked just now, and kept nowhere."""

    media_type = "text/html"

    def __init__(self, template: str, /, **values: object) -> None:
        body = _TEMPLATES.get_template(template).render(values).encode("utf-8", "replace")
        super().__init__(body, headers={**_FIXED, "Cache-Control": "no-store"})


class Asset:
    """A static file of the package: sent whole once, then only confirmed as long as it is the same."""

    def __init__(self, name: str, media_type: str) -> None:
        self._body = (resources.files("retoma.dashboard") / "static" / name).read_bytes()
        etag = f'"{hashlib.sha256(self._body).hexdigest()[:16]}"'
        self._headers = {**_FIXED, "Cache-Control": "no-cache", "ETag": etag}
        self._media_type = media_type

    def reply(self, request: Request) -> Response:
        """200 with the file, or 304."""
        if request.headers.get("if-none-match") == self._headers["ETag"]:
            return Response(status_code=304, headers=self._headers)
        return Response(self._body, headers=self._headers, media_type=self._media_type)
