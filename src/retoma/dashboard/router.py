"""The page's routes. The shell holds no data, so it is open; every fragment needs the scope `admin` (http/guard.py).

No cookie is ever set: a browser sends a cookie to every port of a host, so another server on this machine would get it.
The page's script keeps a bearer token in the tab's own storage and sends it as every other client does.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request
from starlette.responses import Response

from retoma.core.task import State
from retoma.dashboard.overview import overview
from retoma.dashboard.people import see_clients
from retoma.dashboard.registry import see_models
from retoma.dashboard.reply import Asset, Fragment
from retoma.dashboard.sizes import KnownSizes, Sizes
from retoma.dashboard.store import see_store
from retoma.dashboard.task import see_events, see_messages, see_task
from retoma.dashboard.tasks import see_tasks
from retoma.errors import InvalidRequest
from retoma.http.guard import caller_of
from retoma.http.query import Query, response_id_of

_TASK_ID = re.compile(r"resp_[0-9a-f]{32}", re.ASCII)
_CLIENT_ID = re.compile(r"cli_[0-9a-f]{32}", re.ASCII)


def make_router(look_at_sizes: Callable[[], Awaitable[Sizes]]) -> APIRouter:
    """The routes of the operator's page. `look_at_sizes` measures the store, without holding up the event loop."""
    router = APIRouter(include_in_schema=False)
    sizes = KnownSizes(look_at_sizes)
    _add_files(router)
    _add_lists(router, sizes)
    _add_task(router)
    return router


def _add_files(router: APIRouter) -> None:
    shell = Asset("index.html", "text/html")
    style = Asset("dashboard.css", "text/css")
    script = Asset("dashboard.js", "text/javascript")

    @router.get("/")
    async def page(request: Request) -> Response:
        return shell.reply(request)

    @router.get("/dashboard/dashboard.css")
    async def stylesheet(request: Request) -> Response:
        return style.reply(request)

    @router.get("/dashboard/dashboard.js")
    async def code(request: Request) -> Response:
        return script.reply(request)


def _add_lists(router: APIRouter, sizes: KnownSizes) -> None:
    @router.get("/dashboard/overview")
    async def show_overview(request: Request) -> Response:
        caller = caller_of(request)
        Query(request)
        return Fragment("overview.html", o=await overview(caller, await sizes.get(caller.service.clock)))

    @router.get("/dashboard/tasks")
    async def show_tasks(request: Request) -> Response:
        caller = caller_of(request)
        query = Query(request, ("state", "after"))
        state = query.text("state", tuple(State))
        return Fragment("tasks.html", page=await see_tasks(caller, state, _id_after(query, _TASK_ID)))

    @router.get("/dashboard/clients")
    async def show_clients(request: Request) -> Response:
        caller = caller_of(request)
        query = Query(request, ("after",))
        return Fragment("clients.html", page=await see_clients(caller, _id_after(query, _CLIENT_ID)))

    @router.get("/dashboard/store")
    async def show_store(request: Request) -> Response:
        caller = caller_of(request)
        Query(request)
        return Fragment("store.html", seen=await see_store(caller, await sizes.get(caller.service.clock)))

    @router.get("/dashboard/models")
    async def show_models(request: Request) -> Response:
        caller = caller_of(request)
        Query(request)
        return Fragment("models.html", models=await see_models(caller))


def _id_after(query: Query, shape: re.Pattern[str]) -> str:
    after = query.text("after")
    if after and not shape.fullmatch(after):
        raise InvalidRequest("after must be the last id of the page before", param="after")
    return after


def _add_task(router: APIRouter) -> None:
    @router.get("/dashboard/tasks/{task_id}")
    async def show_task(task_id: str, request: Request) -> Response:
        caller = caller_of(request)
        Query(request)
        return Fragment("task.html", seen=await see_task(caller, response_id_of(task_id)))

    @router.get("/dashboard/tasks/{task_id}/messages")
    async def show_messages(task_id: str, request: Request) -> Response:
        caller = caller_of(request)
        Query(request)
        return Fragment("messages.html", messages=await see_messages(caller, response_id_of(task_id)))

    @router.get("/dashboard/tasks/{task_id}/events")
    async def show_events(task_id: str, request: Request) -> Response:
        caller = caller_of(request)
        after = Query(request, ("after",)).integer("after")
        page = await see_events(caller, response_id_of(task_id), -1 if after is None else after)
        return Fragment("events.html", page=page)
