"""Puts an instance together and runs it: the only place that picks a store, makes a clock and opens a socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Generator
from pathlib import Path

import uvicorn

from retoma import logs
from retoma.clock import Clock, SystemClock
from retoma.dashboard.router import make_router
from retoma.dashboard.sizes import measure
from retoma.errors import Refused, StoreUnavailable
from retoma.http.app import create_app
from retoma.ids import SystemIds
from retoma.runtime.instance import Instance, admin_token_path
from retoma.settings import Settings
from retoma.store import migrate
from retoma.store.contract import Store
from retoma.store.filesystem import require_local
from retoma.store.sqlite import SqliteStore
from retoma.telemetry import Telemetry
from retoma.tracing import open_tracing

_SHUTDOWN_S = 10
_NO_PSYCOPG = "a PostgreSQL store needs the extra: pip install 'retoma[postgres]'"


def open_store(settings: Settings, clock: Clock) -> Store:
    """Migrates and opens the store; raises Refused or StoreUnavailable with a sentence."""
    make_data_dir(settings.data_dir)
    migrate_store(settings, clock)
    return connect_server(settings) if settings.on_postgres else SqliteStore(settings.database)


def connect_server(settings: Settings) -> Store:
    """A store in PostgreSQL as it is, not migrated; raises Refused or StoreUnavailable with a sentence."""
    try:
        from retoma.store.postgres import PostgresStore  # noqa: PLC0415 - psycopg comes with an extra
    except ImportError as missing:
        raise Refused(_NO_PSYCOPG) from missing
    return PostgresStore(settings.store)


def migrate_store(settings: Settings, clock: Clock) -> int:
    """Brings the store to this release's schema, and returns its version; raises Refused or StoreUnavailable."""
    if not settings.on_postgres:
        require_local(settings.database)
        return migrate.prepare(settings.database, clock.wall_ms()).version
    try:
        from retoma.store import migrate_postgres  # noqa: PLC0415 - psycopg comes with an extra
    except ImportError as missing:
        raise Refused(_NO_PSYCOPG) from missing
    return migrate_postgres.prepare(settings.store, clock.wall_ms()).version


def schema_problems(settings: Settings) -> list[str]:
    """Where the tables of the store are not those that this release makes, one sentence each."""
    if not settings.on_postgres:
        return migrate.schema_problems(settings.database)
    from retoma.store import compare_postgres  # noqa: PLC0415 - psycopg comes with an extra

    return compare_postgres.schema_problems(settings.store)


def make_data_dir(data_dir: Path) -> None:
    """Makes the data directory, for its owner only; raises StoreUnavailable."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StoreUnavailable(f"the data directory {data_dir} can't be made: {error.strerror}") from error
    if not os.access(data_dir, os.W_OK | os.X_OK):
        raise StoreUnavailable(f"the data directory {data_dir} is not writable; choose another with --data-dir")


def keep_admin_token(data_dir: Path) -> str:
    """The token of the local command line, made at the first start; mode 0600. Raises StoreUnavailable."""
    path = admin_token_path(data_dir)
    try:
        if not path.exists():
            _write_new(path, secrets.token_urlsafe(32))
        return path.read_text().strip()
    except OSError as error:
        raise StoreUnavailable(f"{path} can't be written or read: {error.strerror}") from error


def _write_new(path: Path, text: str) -> None:
    """Writes a private file that is there whole or not at all; whoever comes second keeps the first one's."""
    staged = path.with_name(f"{path.name}.{os.getpid()}")
    fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(FileExistsError):
        os.link(staged, path)
    staged.unlink()


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
