"""Housekeeping: what goes by the clock, what a wrong clock must not take, how much is looked at, and the space."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest

from retoma import limits
from retoma.blobs.models import ModelFiles
from retoma.blobs.snapshots import SnapshotFolder
from retoma.core.clock_watch import DOUBTED_FOR_MS
from retoma.core.events import encode_json
from retoma.core.task import UNFINISHED, State
from retoma.runtime.bridge import AsyncStore
from retoma.runtime.feed import Feed
from retoma.runtime.housekeeping import Housekeeping
from retoma.runtime.retention import Retention, Windows
from retoma.runtime.stored_settings import StoredSettings
from retoma.settings import Settings
from retoma.store.sqlite import SqliteStore, open_connection
from retoma.store.sqlite_space import read_space
from retoma.transactions.service import ChangeService, change_service, keep_service
from tests.support.stores import new_store
from tests.support.world import DAY_MS, REQUEST, World, key_of

MINUTE_MS, HOUR_MS, YEAR_MS = 60_000, 3_600_000, 365 * DAY_MS


@dataclass
class Home:
    """A store with its folders. `world` is used between the passes: it waits for its commits by itself."""

    folder: Path
    store: SqliteStore
    world: World
    settings: Settings

    def keep(self, passes: int = 1, *, every_ms: int = MINUTE_MS) -> None:
        """So many passes of one service, the first one now."""
        self.alternate(*[lambda: self.world.clock.advance(every_ms)] * (passes - 1))

    def alternate(self, *between: Any) -> None:
        """Passes of one service, and between them what is done to the store or the clock."""

        async def run() -> None:
            housekeeping = self._housekeeping()
            await housekeeping.once()
            for act in between:
                self.store.listen(lambda thunk: thunk(), lambda _: None)
                act()
                self.store.listen(self._async._deliver, lambda _: None)
                await housekeeping.once()

        asyncio.run(run())
        self.store.listen(lambda thunk: thunk(), lambda _: None)

    def _housekeeping(self) -> Housekeeping:
        self._async = AsyncStore(self.store, Feed())
        stored = StoredSettings(self._async, self.world.clock, self.settings)
        snapshots, models = SnapshotFolder(self.folder / "snapshots"), ModelFiles(self.folder / "models")
        clock = self.world.clock
        days = self.settings.webhook_days
        return Housekeeping(self._async, snapshots, models, clock, stored, webhook_days=days)

    @property
    def tasks(self) -> list[str]:
        with closing(open_connection(self.folder / "retoma.db", read_only=True)) as connection:
            return [task_id for (task_id,) in connection.execute("SELECT id FROM tasks ORDER BY id")]

    @property
    def sizes(self) -> tuple[int, int]:
        """Of the file and of its WAL."""
        return (self.folder / "retoma.db").stat().st_size, (self.folder / "retoma.db-wal").stat().st_size


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    store = new_store(tmp_path)
    world = World(store)
    world.store.transact(lambda tx: keep_service(tx, "svc_1", 0))
    yield Home(tmp_path, store, world, Settings(data_dir=tmp_path, retention_days=30, unstored_minutes=60))
    store.close()


# What goes


@pytest.mark.requirement("P-11.2-retain", "P-11.2-never")
def test_each_kind_goes_when_its_own_window_is_over(home: Home) -> None:
    world = home.world
    now_ms = world.clock.wall_ms()
    stored = world.in_state(State.COMPLETED, key=key_of("K", expires_at_ms=now_ms + DAY_MS)).id
    unstored = world.in_state(State.COMPLETED, stored=False).id
    by_key = world.in_state(State.COMPLETED, stored=False, key=key_of("L", expires_at_ms=now_ms + DAY_MS)).id
    unfinished = [world.in_state(state).id for state in UNFINISHED[1:]] + [world.accept().id]

    def after(ms: int, *expected: str) -> Any:
        def act() -> None:
            world.clock.advance(ms)

        return act, sorted([*expected, *unfinished])

    steps = [
        after(HOUR_MS, stored, unstored, by_key),
        after(1, stored, by_key),
        after(DAY_MS, stored),
        after(28 * DAY_MS, stored),
        after(DAY_MS, *()),
    ]
    seen: list[list[str]] = []
    home.alternate(*[act for act, _ in steps for act in (act, lambda: seen.append(home.tasks))])
    assert seen == [expected for _, expected in steps]
    assert world.problems() == []


def test_snapshots_of_a_waiting_text_go_only_when_a_setting_says_so(home: Home) -> None:
    task = home.world.running()
    home.world.append(task)
    home.world.snapshot(task, 1)
    file = home.folder / "snapshots" / task.id / f"{task.fencing_token}-1.snap"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"state")
    home.world.clock.advance(3 * HOUR_MS)
    home.keep()
    assert file.exists()
    home.world.does(change_service, ChangeService({"snapshot_hours": 2}, None, 0, "op"))
    home.keep()
    assert not file.exists()
    assert home.tasks == [task.id]
    home.world.finish(home.world.task(task.id))


# A wrong clock


@pytest.mark.requirement("P-11.2-retain", "P-11.2-never")
def test_a_clock_that_is_ten_years_ahead_for_one_pass_takes_nothing(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    world, clock = home.world, home.world.clock
    tasks = [world.in_state(State.COMPLETED, key=key_of("K")).id, world.in_state(State.FAILED, stored=False).id]
    orphan = home.folder / "models" / "incoming" / "1.part"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"GGUF")
    os.utime(orphan, (clock.wall_ms() / 1000,) * 2)

    def jump(ms: int) -> Any:
        def act() -> None:
            clock._wall_ms += ms

        return act

    def nothing_is_gone() -> None:
        assert home.tasks == tasks
        assert orphan.exists()

    with caplog.at_level(logging.WARNING):
        home.alternate(jump(10 * YEAR_MS), nothing_is_gone, jump(-10 * YEAR_MS), nothing_is_gone)
    assert caplog.text.count("nothing is deleted for 60 minutes") == 1
    clock.advance(HOUR_MS + 1)
    home.keep()
    assert home.tasks == tasks[:1]


@pytest.mark.requirement("P-11.2-retain")
def test_a_service_that_starts_with_a_clock_far_ahead_deletes_nothing_for_an_hour(home: Home) -> None:
    task = home.world.in_state(State.COMPLETED).id
    home.world.clock.advance(40 * DAY_MS)
    home.keep(DOUBTED_FOR_MS // MINUTE_MS)
    assert home.tasks == [task]
    home.keep(DOUBTED_FOR_MS // MINUTE_MS + 1)
    assert home.tasks == []


# How much is looked at


class Counted(SqliteStore):
    """Counts its reads: each looks at one page."""

    reads = 0

    def read(self, function: Any) -> Any:
        self.reads += 1
        return super().read(function)


def test_a_pass_goes_on_where_the_last_one_came_to_and_a_key_that_expires_brings_its_task(tmp_path: Path) -> None:
    with closing(new_store(tmp_path)) as store:
        world = World(store)
        start_ms = world.clock.wall_ms()
        expiring = [start_ms + 2 * HOUR_MS + number * MINUTE_MS for number in range(250)]
        tasks = [
            world.in_state(State.CANCELLED, stored=False, key=key_of(str(at_ms), expires_at_ms=at_ms)).id
            for at_ms in expiring
        ]
        windows = Windows(30, 60, 0)

        async def passes() -> list[tuple[int, int, int]]:
            retention = Retention(AsyncStore(store, Feed()), SnapshotFolder(tmp_path / "snapshots"))
            found = []
            for at_ms in (start_ms + 90 * MINUTE_MS, expiring[0], expiring[10] + 1):
                pruned = await retention.prune(windows, at_ms, anew=False)
                found.append((pruned.looked_at, pruned.keys, pruned.unstored))
            pruned = await retention.prune(windows, expiring[10] + 1, anew=True)
            return [*found, (pruned.looked_at, pruned.keys, pruned.unstored)]

        first, second, third, anew = asyncio.run(passes())
        assert first == (250, 0, 0)
        assert second[0] <= limits.PRUNE_BATCH_MAX
        assert third == (second[0], 11, 11)
        assert anew == (239, 0, 0)
        store.listen(lambda thunk: thunk(), lambda _: None)
        with pytest.raises(Exception, match="there is no response"):
            world.task(tasks[10])
        assert world.task(tasks[11])


# Space


def fill(world: World, count: int, size_bytes: int) -> None:
    request = encode_json({**REQUEST, "input": "x" * size_bytes})
    for _ in range(count):
        world.in_state(State.CANCELLED, request=request, stored=False)


def test_the_file_is_cut_when_much_of_it_has_been_deleted_and_the_wal_stays_short(home: Home) -> None:
    fill(home.world, 24, 8_000_000)
    kept = home.world.in_state(State.COMPLETED).id
    large, _ = home.sizes
    home.world.clock.advance(HOUR_MS + 1)
    home.keep()
    database, wal = home.sizes
    assert home.tasks == [kept]
    assert database < limits.FREE_BYTES_KEPT + 8_000_000 < large // 2
    assert wal < 16_000_000
    assert home.world.problems() == []
    assert home.store.integrity_problems() == []


def test_a_little_free_space_is_left_for_what_comes(home: Home) -> None:
    fill(home.world, 4, 8_000_000)
    large, _ = home.sizes
    home.world.clock.advance(HOUR_MS + 1)
    home.keep()
    assert home.sizes[0] >= large


def test_a_wal_that_a_reader_made_long_is_cut_once_the_reader_has_gone(home: Home) -> None:
    with closing(open_connection(home.folder / "retoma.db", read_only=True)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM tasks").fetchall()
        fill(home.world, 12, 8_000_000)
        assert home.sizes[1] > limits.WAL_BYTES_KEPT
        reader.execute("COMMIT")
    fill(home.world, 3, 8_000_000)
    fill(home.world, 3, 10)
    assert home.sizes[1] <= limits.WAL_BYTES_KEPT + 1_000_000


def test_a_step_that_is_undone_with_its_neighbours_harms_nothing(home: Home) -> None:
    """A step shares its transaction with others, of which each may be refused."""
    fill(home.world, 24, 8_000_000)
    home.world.clock.advance(HOUR_MS + 1)
    home.world.prune("unstored")
    with closing(open_connection(home.folder / "retoma.db")) as connection:
        free = read_space(connection).free_pages
        for undo in (True, False):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("SAVEPOINT item")
            connection.execute("PRAGMA incremental_vacuum(500)").fetchall()
            connection.execute("ROLLBACK TO item" if undo else "RELEASE item")
            connection.execute("UPDATE service_config SET updated_at_ms = updated_at_ms + 1")
            connection.execute("COMMIT")
            assert read_space(connection).free_pages == free - (0 if undo else 500)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_an_older_releases_file_keeps_its_free_pages_and_works(tmp_path: Path) -> None:
    with closing(new_store(tmp_path)) as store:
        store.close()
        with closing(apsw.Connection(str(tmp_path / "retoma.db"))) as connection:
            connection.execute("PRAGMA journal_mode = DELETE; PRAGMA auto_vacuum = NONE; VACUUM").fetchall()
    store = SqliteStore(tmp_path / "retoma.db")
    world = World(store)
    world.store.transact(lambda tx: keep_service(tx, "svc_1", 0))
    home = Home(tmp_path, store, world, Settings(data_dir=tmp_path))
    fill(world, 10, 8_000_000)
    large, _ = home.sizes
    world.clock.advance(HOUR_MS + 1)
    home.keep()
    assert (home.tasks, home.sizes[0] >= large) == ([], True)
    store.close()
