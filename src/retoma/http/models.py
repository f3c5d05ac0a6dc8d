"""The registry as OpenAI shows models, with what is known of their files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from retoma.errors import InvalidRequest, NotFound
from retoma.http.guard import caller_of
from retoma.http.query import Query, expected_version
from retoma.http.reply import Json
from retoma.http.wire import read_json
from retoma.runtime.service import ModelInfo

router = APIRouter(tags=["models"])
_FILE = re.compile(r"[^./\0][^/\0]{0,254}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}", re.ASCII)


@router.get("/v1/models", summary="List models")
async def list_models(request: Request) -> Response:
    """Every model that a request may name; there are few, so they come in one page."""
    Query(request)
    models = await caller_of(request).service.models()
    return Json({"object": "list", "data": [_wire(model) for model in models]})


@router.get("/v1/models/{model:path}", summary="Retrieve a model")
async def retrieve_model(model: str, request: Request) -> Response:
    """One model; its name may hold slashes."""
    Query(request)
    for found in await caller_of(request).service.models():
        if found.name == model:
            return _reply(found)
    raise NotFound(f"no model named {model[:200]!r} is registered; `retoma models list` shows those that are")


@router.post("/v1/models", summary="Register a model file", status_code=201)
async def register_model(request: Request) -> Response:
    """Takes in a file that lies in the folder `models/incoming` of the data directory: `{"file", "name"}`."""
    caller = caller_of(request)
    Query(request)
    body = await read_json(request)
    for field in body:
        if field not in {"file", "name"}:
            raise InvalidRequest(f"{field[:100]}: there is no such field", param=field[:100])
    file, name = body.get("file"), body.get("name")
    if not isinstance(file, str) or not _FILE.fullmatch(file):
        raise InvalidRequest("file must be the name of a file in the folder models/incoming", param="file")
    if name is None:
        name = file.removesuffix(".gguf").lower()
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest("name may have up to 200 letters, digits and . _ : / - in it", param="name")
    model = await caller.service.register_model(file, name)
    return _reply(model, 201, {"Location": f"/v1/models/{model.name}"})


@router.delete("/v1/models/{model:path}", summary="Remove a model")
async def remove_model(model: str, request: Request) -> Response:
    """Refused while an unfinished task needs it. The file goes later, unless another name stands for it."""
    caller = caller_of(request)
    Query(request)
    await caller.service.remove_model(model, expected_version(request))
    return Json({"id": model, "object": "model", "deleted": True})


def _reply(model: ModelInfo, status: int = 200, headers: Mapping[str, str] | None = None) -> Json:
    return Json(_wire(model), status, {"ETag": f'"{model.version}"', **(headers or {})})


def _wire(model: ModelInfo) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created_at_ms // 1000,
        "owned_by": "retoma",
        "digest": model.digest,
        "size": model.size_bytes,
        "state": model.state,
        "engine": model.engine,
    }
