"""Opens what an installation has: its data directory, its token, its store. The only place that picks a store.

Nothing of the server is loaded here, so that the commands which only look at a store start at once.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from retoma.clock import Clock
from retoma.errors import Refused, StoreUnavailable
from retoma.settings import Settings
from retoma.store import migrate
from retoma.store.contract import Store
from retoma.store.filesystem import require_local
from retoma.store.sqlite import SqliteStore

_NO_PSYCOPG = "a PostgreSQL store needs the extra: pip install 'retoma[postgres]'"


def admin_token_path(data_dir: Path) -> Path:
    """Where the local command line finds its token."""
    return data_dir / "admin.token"


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
