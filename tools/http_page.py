"""Renders docs/http.md, the HTTP reference, from the routes, their scopes, the request's model and the error tree.

The parameters of a query are read by hand in each route (`Query(request, (…))`), so that an unknown one is refused;
they are taken from there.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel

from retoma import errors
from retoma.errors import EngineError, RequestError, RetomaError, Unavailable
from retoma.http.app import create_app
from retoma.http.errors import RETRY_AFTER_S, error_type
from retoma.http.guard import SCOPES
from retoma.http.wire import NOTHING_ASKED, CreateResponse
from retoma.runtime.service import Service
from retoma.settings import Settings
from tools.markdown import table

_HEAD = """\
# HTTP reference

Written by `make docs` from the routes themselves; a test fails when this page is stale. `/openapi.json` of a running
service is the same for programs. What a response's events mean is in [state-machine.md](state-machine.md); pages for
people: [programs.md](programs.md), [chat-completions.md](chat-completions.md), [webhooks.md](webhooks.md),
[clients.md](clients.md).

Every request but those marked "nobody" carries `Authorization: Bearer TOKEN`. A client sees only its own responses and
tasks; others' ids answer 404. `admin` may do everything. Bodies are JSON; an unknown field or parameter is refused by
name, never ignored.
"""


def render() -> str:
    """The page as it should be now."""
    return "\n".join([_HEAD, *_groups(), _fields(), _errors()])


def application() -> FastAPI:
    """The application with all of its routes and nothing behind it."""
    nobody = cast("Service", SimpleNamespace(ids=None, clock=None))
    return create_app(nobody, Settings(data_dir=Path("data")))


def _groups() -> Iterator[str]:
    groups: dict[str, list[APIRoute]] = {}
    for route in routes():
        if route.include_in_schema and route.tags:
            groups.setdefault(str(route.tags[0]), []).append(route)
    for name, members in groups.items():
        yield f"## {name.capitalize()}\n"
        yield from map(_route, members)


def routes() -> Iterator[APIRoute]:
    """Every route of the application that was written by us."""
    for included in application().routes:
        router: APIRouter | None = getattr(included, "original_router", None)
        for route in router.routes if router else ():
            assert isinstance(route, APIRoute)
            yield route


def _route(route: APIRoute) -> str:
    (method,) = route.methods or {""}
    scope = SCOPES[method, route.path]
    facts = [f"Scope: {f'`{scope}`' if scope else 'nobody needs a token'}."]
    if parameters := list(_query_parameters(route.endpoint)):
        facts.append(f"Query: {', '.join(f'`{name}`' for name in parameters)}.")
    path = route.path.replace(":path}", "}")
    summary = route.summary if (route.summary or "").endswith("?") else f"{route.summary}."
    return f"### `{method} {path}`\n\n{summary} {_prose(route.endpoint.__doc__)}\n\n{' '.join(facts)}\n"


def _query_parameters(endpoint: Callable[..., Any]) -> Iterator[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(endpoint)))
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="Query"), args=[_, ast.Tuple(elts=names)]):
                yield from (str(name.value) for name in names if isinstance(name, ast.Constant))
            case _:
                pass


def _prose(docstring: str | None) -> str:
    return " ".join((docstring or "").split())


def _fields() -> str:
    text = (
        "## The body of `POST /v1/responses`\n\n"
        "Fields of OpenAI's API that this server can't honour may be sent with a value that asks for nothing.\n\n"
    )
    rows = [(f"`{name}`", _type_of(CreateResponse, name), _only_nothing(name)) for name in CreateResponse.model_fields]
    return text + table(("field", "takes", "note"), rows)


def _only_nothing(name: str) -> str:
    if name not in NOTHING_ASKED:
        return ""
    values = ", ".join(f"`{value!r}`" for value in NOTHING_ASKED[name])
    return f"refused, but for null{f' and {values}' if values else ''}"


def _type_of(model: type[BaseModel], name: str) -> str:
    schema = model.model_json_schema(ref_template="{model}")
    field = schema["properties"][model.model_fields[name].alias or name]
    return _words(field, schema.get("$defs", {}))


def _words(field: dict[str, Any], named: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_words(one, named) for one in field["anyOf"] if one.get("type") != "null")
    if "$ref" in field:
        return _words(named[field["$ref"]], named)
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    bounds = [
        f"{word} {field[key]}"
        for key, word in (
            ("minimum", "from"),
            ("exclusiveMinimum", "above"),
            ("maximum", "to"),
            ("maxItems", "at most"),
        )
        if key in field
    ]
    if field.get("type") == "object" and "properties" in field:
        inner = ", ".join(f"`{name}`" for name in field["properties"])
        return f"object: {inner}"
    kind = field.get("type", "anything")
    if kind == "array":
        kind = f"list of {_words(field.get('items', {}), named)}"
    return " ".join([kind, *bounds])


def _errors() -> str:
    text = (
        "## Errors\n\n"
        '`{"error": {"message", "type", "code", "param", "request_id"}}`. Of the 503s nothing was accepted, and the '
        "same request may be sent again.\n\n"
    )
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, RetomaError)]
    answered = [one for one in classes if issubclass(one, RequestError | Unavailable) or one is RetomaError]
    rows = sorted(
        {
            (int(one.status), one.code): (
                str(int(one.status)),
                f"`{one.code}`",
                f"`{error_type(one.status)}`",
                _prose(one.__doc__),
                f"after {RETRY_AFTER_S[one.code]} s" if one.code in RETRY_AFTER_S else "",
            )
            for one in reversed(answered)
        }.values()
    )
    failed = [(f"`{one.code}`", _prose(one.__doc__)) for one in classes if issubclass(one, EngineError)]
    return (
        text
        + table(("status", "code", "type", "meaning", "again"), rows)
        + "\nA task that failed has one of these in its `error`, beside `server_restarted` and `internal`:\n\n"
        + table(("code", "meaning"), [row for row in failed if row[0] != "`internal`"])
    )
