"""The service as all of its instances share it: who it is, and the settings that are stored for all of them."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

import retoma
from retoma.errors import InvalidRequest
from retoma.http.guard import Caller, caller_of
from retoma.http.query import Query, expected_version
from retoma.http.reply import Json
from retoma.http.wire import read_json
from retoma.runtime.service import ServiceInfo
from retoma.transactions.service import ChangeService

router = APIRouter(tags=["service"])


@router.get("/v1/service", summary="Retrieve the service")
async def retrieve_service(request: Request) -> Response:
    """Its identity, what is stored, and what is in force on the instance that answers."""
    caller = caller_of(request)
    Query(request)
    return _reply(caller, await caller.service.describe())


@router.patch("/v1/service", summary="Change the stored settings")
async def change_service(request: Request) -> Response:
    """Merges `{"queue_max": 100, …}` into what is stored; null takes a value away. `If-Match` must say what it goes by.

    Every instance knows of a change within a few seconds.
    """
    caller = caller_of(request)
    Query(request)
    if "if-match" not in request.headers:
        raise InvalidRequest("send If-Match with the ETag of GET /v1/service, or * for any version", param="If-Match")
    version = expected_version(request)
    changes = await read_json(request)
    service = caller.service
    command = ChangeService(changes, version, service.clock.wall_ms(), service.ids.op_id())
    return _reply(caller, await service.change(command))


def _reply(caller: Caller, found: ServiceInfo) -> Json:
    return Json(
        {
            "id": found.id,
            "object": "service",
            "version": found.version,
            "release": retoma.__version__,
            "instance": caller.service.instance_id,
            "stored": dict(found.stored),
            "settings": dict(found.in_force),
        },
        headers={"ETag": f'"{found.version}"'},
    )
