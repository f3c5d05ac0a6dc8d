"""Is the process there, and does it take requests."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from retoma.errors import Unavailable
from retoma.http.guard import context_of
from retoma.http.reply import Json
from retoma.runtime.service import RECOVERING, STOPPING

router = APIRouter(tags=["health"])
_STORE_PROBLEM = "the store can't be reached or written now; the service's log and its dashboard say why"


@router.get("/healthz", summary="Is the process alive?")
async def healthz() -> Response:
    """Always 200: a service that can't reach its store is not mended by being killed."""
    return Json({"status": "ok"})


@router.get("/readyz", summary="Are requests accepted?")
async def readyz(request: Request) -> Response:
    """200, or 503 and the reason in a sentence. Where the store is, and what it said, is nothing for strangers."""
    problem = context_of(request).service.not_ready()
    if problem is not None:
        raise Unavailable(problem if problem in {RECOVERING, STOPPING} else _STORE_PROBLEM)
    return Json({"status": "ready"})
