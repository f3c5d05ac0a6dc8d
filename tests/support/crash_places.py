"""Where the children of tests/support/crash_server.py work: a store on either database, put back before each one."""

# ruff: noqa: S608 - the names that are put into statements are the test's own
from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Protocol

from retoma.store.contract import Store
from retoma.store.migrate_postgres import prepare
from retoma.store.postgres import PostgresStore
from tests.support.crash_server import fill
from tests.support.postgres import TABLES, administer, dump
from tests.support.stores import new_file, open_store, problems
from tests.support.waiting import wait_for
from tests.support.world import World


class Place(Protocol):
    """`target` is the file or the URL; nothing else works there."""

    target: str

    def put_back(self) -> None:
        """The store as it was when it was filled."""
        ...

    def problems(self) -> list[str]:
        """Everything that the offline checker finds."""
        ...


def opened(place: Place) -> Store:
    """The store; the caller closes it."""
    return open_store(place.target)


class SqlitePlace:
    """A file, and beside it, in a folder of its own, what it is copied from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "store"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.target = str(self.folder / "retoma.db")
        self._template = folder / "retoma.db"

    def filled(self) -> SqlitePlace:
        """With what an earlier instance left behind."""
        fill(open_store(str(new_file(self._template.parent))))
        return self

    def put_back(self) -> None:
        for old in self.folder.iterdir():
            old.unlink()
        shutil.copy(self._template, self.target)

    def files(self) -> dict[str, bytes]:
        """What a restart finds: without SQLite's shared index."""
        return {path.name: path.read_bytes() for path in self.folder.iterdir() if not path.name.endswith("-shm")}

    def problems(self) -> list[str]:
        return problems(Path(self.target))


class PostgresPlace:
    """A schema, and another one that keeps a copy of its rows."""

    def __init__(self, url: str) -> None:
        self.target = url
        (self._name,) = re.findall(r"%3D(\w+)", url)

    def filled(self) -> PostgresPlace:
        """With what an earlier instance left behind."""
        prepare(self.target, 0)
        fill(PostgresStore(self.target))
        copies = [f"CREATE TABLE {self._name}_kept.{table} AS TABLE {table}" for table in TABLES]
        administer(self.target, f"CREATE SCHEMA {self._name}_kept", *copies)
        return self

    def put_back(self) -> None:
        deletions = [f"DELETE FROM {table}" for table in TABLES]
        copies = [f"INSERT INTO {table} SELECT * FROM {self._name}_kept.{table}" for table in reversed(TABLES)]
        administer(self.target, "SET session_replication_role = replica", "; ".join(deletions + copies))

    def rows(self) -> dict[str, list[tuple[object, ...]]]:
        """All that must not depend on what happened meanwhile; leases are counted on a clock that nobody can hold."""
        return {table: rows for table, rows in dump(self.target).items() if table != "instances"}

    def problems(self) -> list[str]:
        store = PostgresStore(self.target)
        try:
            found = [f"{one.invariant} {one.task_id} {one.seq} {one.message}" for one in World(store).problems()]
            return found + store.integrity_problems()
        finally:
            store.close()

    def end_sessions(self, name: str) -> list[str]:
        """Ends every session of this name; what each was doing."""
        ended = f"SELECT state, pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = '{name}'"
        return [str(state) for state, _ in administer(self.target, ended)]

    def wait_until_alone(self, name: str) -> None:
        """Returns once the server has noticed that the process with these sessions is gone."""
        left = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'"
        wait_for(lambda: administer(self.target, left) == [(0,)], "the sessions of the dead process to end")
