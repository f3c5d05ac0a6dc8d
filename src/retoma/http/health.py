"""Is the process there, and does it take requests."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from retoma.errors import Unavailable
from retoma.http.guard import context_of
from retoma.http.reply import Json

router = APIRouter(tags=["health"])


@router.get("/healthz", summary="Is the process alive?")
async def healthz() -> Response:
    """Always 200: a service that can't reach its store is not mended by being killed."""
    return Json({"status": "ok"})


@router.get("/readyz", summary="Are requests accepted?")
async def readyz(request: Request) -> Response:
    """200, or 503 and the reason in a sentence."""
    problem = context_of(request).service.not_ready()
    if problem is not None:
        raise Unavailable(problem)
    return Json({"status": "ready"})
