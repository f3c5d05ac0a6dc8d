"""The registry as OpenAI shows models, with what is known of their files."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from retoma.errors import NotFound
from retoma.http.guard import caller_of
from retoma.http.query import Query
from retoma.http.reply import Json
from retoma.runtime.service import ModelInfo

router = APIRouter(tags=["models"])


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
            return Json(_wire(found))
    raise NotFound(f"no model named {model[:200]!r} is registered; `retoma models list` shows those that are")


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
