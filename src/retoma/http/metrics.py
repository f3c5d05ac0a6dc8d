"""`/metrics`: numbers for Prometheus, without a token; they name no client, no model and no file."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from retoma.http.guard import context_of
from retoma.metrics import CONTENT_TYPE

router = APIRouter(tags=["health"])


@router.get("/metrics", summary="Numbers for Prometheus")
async def metrics(request: Request) -> Response:
    """Always 200: a store that can't be read is one of the numbers, and those of this process come all the same."""
    text = await context_of(request).service.measure()
    return Response(text, headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})
