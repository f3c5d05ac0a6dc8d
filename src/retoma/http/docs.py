"""`/openapi.json` and a page that lists it; nothing is loaded from elsewhere."""

from __future__ import annotations

from html import escape
from typing import Any, cast

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import HTMLResponse, Response

from retoma.http import chat_wire
from retoma.http.wire import CreateResponse

router = APIRouter(include_in_schema=False)
_CHAT = "/v1/chat/completions"
_REF = "#/components/schemas/{model}"
_HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Retoma: HTTP API</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:50rem;margin:2rem auto;padding:0 1rem}code{font-weight:600}
dd{margin:0 0 1rem}</style><h1>Retoma: HTTP API</h1>
<p>The whole description for programs: <a href="/openapi.json">/openapi.json</a>.</p><dl>"""


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The routes as a page."""
    paths = cast("FastAPI", request.app).openapi()["paths"]
    rows = [
        f"<dt><code>{method.upper()} {escape(path)}</code> {escape(what['summary'])}</dt>"
        f"<dd>{escape(what.get('description', ''))}</dd>"
        for path, methods in paths.items()
        for method, what in methods.items()
    ]
    headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return HTMLResponse(f"{_HEAD}{''.join(rows)}</dl></html>", headers=headers)


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document; the bodies of `create` are read by hand, so their schemas are added here."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, routes=app.routes)
        schema = CreateResponse.model_json_schema(ref_template=_REF)
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(schema.pop("$defs", {}))
        chat_schema = chat_wire.schema(schema, _REF)
        schemas.update(chat_schema.pop("$defs", {}))
        bodies = {"CreateResponse": ("/v1/responses", schema), "CreateChatCompletion": (_CHAT, chat_schema)}
        for name, (path, body_schema) in bodies.items():
            schemas[name] = body_schema
            content = {"application/json": {"schema": {"$ref": _REF.format(model=name)}}}
            made["paths"][path]["post"]["requestBody"] = {"required": True, "content": content}
        made["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"bearer": []}]
        app.openapi_schema = made
    return app.openapi_schema
