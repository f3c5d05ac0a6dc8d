"""The application: routes, what stands before them, and how errors leave it."""

from __future__ import annotations

from functools import partial

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import retoma
from retoma.http import chat, clients, docs, health, metrics, models, responses, tasks, webhooks
from retoma.http import service as service_routes
from retoma.http.access import Access
from retoma.http.attendance import Attendance
from retoma.http.edge import BodyLimit, HostCheck
from retoma.http.errors import Net, on_http_exception, on_validation_error
from retoma.http.guard import Context, authorize
from retoma.http.sessions import Sessions
from retoma.runtime.service import Service
from retoma.settings import Settings

KEEP_ALIVE_S = 15.0


def create_app(service: Service, settings: Settings, *, keep_alive_s: float = KEEP_ALIVE_S) -> FastAPI:
    """The whole HTTP face of this instance. `keep_alive_s`: after so long a silence a stream sends a comment."""
    app = FastAPI(
        title="Retoma",
        version=retoma.__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(authorize)],
        # FastAPI's own spans and logs would hold paths, queries and what exceptions say; ours are in http/access.py.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.context = Context(service, settings, Attendance(), keep_alive_s)
    for module in (responses, chat, models, tasks, clients, service_routes, webhooks, health, metrics, docs):
        app.include_router(module.router)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    # The last one added is the outermost.
    app.add_middleware(Sessions)
    app.add_middleware(BodyLimit)
    app.add_middleware(HostCheck, host=settings.host)
    app.add_middleware(Net, ids=service.ids)
    app.add_middleware(Access, service=service)
    app.openapi = partial(docs.document, app)
    return app
