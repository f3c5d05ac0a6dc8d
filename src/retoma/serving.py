"""Puts an instance together and runs it: the only place that opens a socket and hears signals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Generator
from pathlib import Path

import uvicorn

from retoma import logs
from retoma.bootstrap import keep_admin_token, open_store
from retoma.clock import SystemClock
from retoma.dashboard.router import make_router
from retoma.dashboard.sizes import measure
from retoma.errors import Refused
from retoma.http.app import create_app
from retoma.ids import SystemIds
from retoma.runtime.instance import Instance
from retoma.settings import Settings
from retoma.telemetry import Telemetry
from retoma.tracing import open_tracing

_SHUTDOWN_S = 10


def listen(settings: Settings) -> socket.socket:
    """The bound socket; raises Refused when the port is taken."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is named; with it every reply waits 40 ms for an ACK.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((settings.host, settings.port))
    except OSError as error:
        bound.close()
        raise Refused(
            f"can't listen on {settings.host} port {settings.port}: {error.strerror}; choose another with --port"
        ) from error
    return bound


def base_url(bound: socket.socket) -> str:
    """Where clients find the service."""
    host, port = str(bound.getsockname()[0]), int(bound.getsockname()[1])
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - the wildcard, told from outside
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: it would raise the signal again before the instance has stopped."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does, and says so."""
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Signals are handled in `serve`."""
        yield


async def serve(settings: Settings) -> signal.Signals | None:
    """Runs the service until SIGTERM or SIGINT and returns which; raises Refused or Unavailable when it can't begin."""
    clock = SystemClock()
    asyncio.get_running_loop().set_exception_handler(logs.on_loop_error)
    telemetry = Telemetry(tracing=open_tracing(clock)) if settings.otel else Telemetry()
    bound = listen(settings)
    store = open_store(settings, clock)
    admin_token = keep_admin_token(settings.data_dir)
    instance = Instance(store, settings, clock, SystemIds(clock), admin_token, telemetry=telemetry)
    app = create_app(instance, settings)
    app.include_router(make_router(lambda: asyncio.to_thread(measure, store, settings)))
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=_SHUTDOWN_S,
        server_header=False,
    )
    server = _Server(config)
    stopped_by: list[signal.Signals] = []
    stopping: list[asyncio.Task[None]] = []

    async def drain_and_exit() -> None:
        await instance.drain()  # streams must have ended before uvicorn waits for its connections
        server.should_exit = True

    def stop(by: signal.Signals) -> None:
        stopped_by.append(by)
        _tell_supervisor("STOPPING=1")
        instance.begin_stop()
        server.force_exit = len(stopped_by) > 1
        _give_up_after(_SHUTDOWN_S if stopping else settings.grace_s + 3 * _SHUTDOWN_S)
        if not stopping:
            stopping.append(asyncio.create_task(drain_and_exit()))

    for by in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(by, stop, by)
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        await instance.start()
        await server.listening.wait()
        _announce(settings, base_url(bound))
        await serving
    finally:
        server.should_exit = True
        await instance.stop()
        await asyncio.gather(serving, return_exceptions=True)
        await asyncio.to_thread(telemetry.tracing.close)
    return stopped_by[0] if stopped_by else None


def _give_up_after(seconds: float) -> None:
    """Bounds the orderly stop, also against a store that takes requests and never answers.

    What is unfinished is recovered as after a kill. A thread and not the loop's timer, because the last thing to hang
    may be a thread that the interpreter waits for when the loop has gone.
    """

    def give_up() -> None:
        logging.getLogger("retoma").error(
            "no orderly stop within %.0f s; what is unfinished is left to recovery", seconds
        )
        os._exit(1)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()


def _announce(settings: Settings, url: str) -> None:
    """Requests are accepted: writes the ready file."""
    logging.getLogger("retoma").info("serving on %s, data in %s", url, settings.data_dir)
    if settings.ready_file:
        path = Path(settings.ready_file)
        staged = path.with_name(f"{path.name}.{os.getpid()}")
        staged.write_text(url + "\n")
        staged.replace(path)
    _tell_supervisor("READY=1")


def _tell_supervisor(word: str) -> None:
    """Says to systemd how far the service is, where its unit has `Type=notify`; nothing elsewhere (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told, contextlib.suppress(OSError):
        told.sendto(word.encode(), "\0" + address[1:] if address[0] == "@" else address)


def run(settings: Settings) -> signal.Signals | None:
    """As `serve`, from a program without an event loop."""
    return asyncio.run(serve(settings))
