"""Retention on both stores: what is past its time goes, whatever happens between looking and deleting."""

# ruff: noqa: S608 - the statements are put together from this file's own words

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from retoma import limits
from retoma.core.events import encode_json
from retoma.core.task import FINISHED, UNFINISHED, State
from retoma.store.sqlite import SqliteStore
from retoma.store.statements import Statement, statement
from retoma.transactions.accept import accept
from retoma.transactions.prune import (
    DropSnapshots,
    ExpiredKey,
    ForgetKeys,
    Place,
    Prune,
    StaleSnapshot,
    Window,
    drop_snapshots,
    find_expired,
    find_expired_keys,
    find_stale_snapshots,
    forget_keys,
    prune,
    read_newest_finished,
    read_weight,
)
from tests.support.stores import plain_tx
from tests.support.world import DAY_MS, REQUEST, World, key_of

if TYPE_CHECKING:
    from retoma.store.contract import Tx

TABLES = ("tasks", "task_events", "responses", "idempotency_keys", "snapshots")
COUNTS = {table: Statement(f"test.count_{table}", "How many.", f"SELECT count(*) FROM {table}") for table in TABLES}


def counts(world: World) -> dict[str, int]:
    def look(tx: Tx) -> dict[str, int]:
        return {table: tx.rows(one, {})[0][0] for table, one in COUNTS.items()}

    return world.store.read(look)


def changed_by_hand(world: World, sql: str, **params: Any) -> None:
    world.store.transact(lambda tx: tx.execute(Statement("test.change", "By hand.", sql), params))


def everything(world: World, retention: str = "stored") -> Window:
    """All that is finished by now, and every key that has not expired is valid."""
    return Window(retention, world.clock.wall_ms() + 1, world.clock.wall_ms())


def found(world: World, window: Window, after: Place | None = None, limit: int = 100) -> Any:
    return world.store.read(partial(find_expired, window=window, after=after or Place(), limit=limit))


# What goes, and what does not


@pytest.mark.requirement("P-11.2-retain", "P-11.2-never")
def test_clean_up_takes_what_is_finished_past_its_time_and_of_its_kind_and_nothing_else(world: World) -> None:
    old = world.in_state(State.COMPLETED)
    unstored = world.in_state(State.FAILED, stored=False)
    unfinished = [world.in_state(state).id for state in UNFINISHED[1:]]
    world.clock.advance(DAY_MS)
    young = world.in_state(State.COMPLETED)
    unfinished.append(world.accept().id)
    before_ms = world.clock.wall_ms()
    assert world.prune("stored", before_ms) == [old.id]
    assert world.prune("stored", before_ms) == []
    assert world.prune("unstored", before_ms) == [unstored.id]
    world.clock.advance(1)
    assert world.prune("stored") == [young.id]
    assert sorted(unfinished) == sorted(task_id for task_id in unfinished if world.task(task_id))
    assert world.problems() == []


@pytest.mark.requirement("P-11.2-retain")
@pytest.mark.parametrize("state", sorted(FINISHED))
def test_a_task_past_its_time_goes_with_all_that_belongs_to_it(world: World, state: State) -> None:
    key = key_of("K", expires_at_ms=world.clock.wall_ms() - 1)
    task = world.in_state(state, key=key)
    assert world.does(prune, Prune(everything(world), [task.id])) == [task.id]
    assert counts(world) == dict.fromkeys(TABLES, 0)


@pytest.mark.requirement("P-11.2-retain")
def test_a_finished_task_stays_while_its_key_is_valid(world: World) -> None:
    key = key_of("K", expires_at_ms=world.clock.wall_ms() + DAY_MS)
    task = world.in_state(State.COMPLETED, key=key)
    world.clock.advance(DAY_MS)
    assert world.prune() == []
    assert world.does(accept, world.accept_command(key=key)).task_id == task.id
    world.clock.advance(1)
    assert world.prune() == [task.id]


def test_clean_up_goes_in_batches_oldest_first(world: World) -> None:
    tasks = []
    for _ in range(5):
        tasks.append(world.in_state(State.CANCELLED).id)
        world.clock.advance(1)
    assert [world.prune(limit=2), world.prune(limit=2), world.prune(limit=2)] == [tasks[:2], tasks[2:4], tasks[4:]]


def test_a_batch_ends_with_the_task_that_makes_it_too_large(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    large = encode_json({**REQUEST, "input": "x" * 40_000})
    tasks = [world.in_state(State.CANCELLED, request=large).id for _ in range(3)]
    monkeypatch.setattr(limits, "PRUNE_BATCH_BYTES", 60_000)
    first = found(world, everything(world))
    assert first.task_ids == tasks[:2]
    second = found(world, everything(world), first.next_after)
    assert (second.task_ids, second.next_after) == (tasks[2:], None)


# The two halves, driven apart


@pytest.mark.requirement("P-11.2-never")
@pytest.mark.parametrize("state", UNFINISHED)
def test_an_unfinished_task_that_a_faulty_look_has_found_does_not_go(world: World, state: State) -> None:
    task = world.in_state(state)
    before = counts(world)
    assert world.does(prune, Prune(everything(world), [task.id])) == []
    assert (world.task(task.id), counts(world)) == (task, before)


@pytest.mark.requirement("P-11.2-never")
@pytest.mark.parametrize("state", UNFINISHED)
def test_the_deleting_statement_itself_and_the_triggers_behind_it_keep_an_unfinished_task(
    world: World, state: State
) -> None:
    task = world.in_state(state)
    window = everything(world)
    place = {
        "id": task.id,
        "retention": "stored",
        "before_ms": window.before_ms + DAY_MS,
        "now_ms": window.now_ms,
    }
    assert world.store.transact(lambda tx: tx.execute(statement("tasks.delete_expired"), place)) == 0
    with pytest.raises(Exception, match="never deleted"):
        changed_by_hand(world, "DELETE FROM task_events WHERE task_id = :id", id=task.id)
    assert world.task(task.id) == task
    assert world.problems() == []


NOT_YET: dict[str, dict[str, Any]] = {
    "of another retention": {"retention": "unstored"},
    "too young": {"before_ms": 1_700_000_000_000},
    "with a valid key": {"now_ms": 1_700_000_000_000},
}


@pytest.mark.parametrize("why", NOT_YET)
def test_the_deleting_statement_itself_keeps_a_finished_task_that_is_not_past_its_time(world: World, why: str) -> None:
    task = world.in_state(State.COMPLETED, key=key_of("K", expires_at_ms=1_700_000_000_000))
    window = {"retention": "stored", "before_ms": 1_700_000_000_001, "now_ms": 1_700_000_000_001}
    place = {"id": task.id, **window, **NOT_YET[why]}
    assert world.store.transact(lambda tx: tx.execute(statement("tasks.delete_expired"), place)) == 0
    with pytest.raises(Exception, match=r"(?i)foreign key"):  # it would have gone, but for what belongs to it
        world.store.transact(lambda tx: tx.execute(statement("tasks.delete_expired"), {"id": task.id, **window}))
    assert world.task(task.id) == task


def test_a_key_that_becomes_valid_after_the_look_keeps_its_task_whole(world: World) -> None:
    kept, goes = (
        world.in_state(State.COMPLETED, key=key_of(name, expires_at_ms=world.clock.wall_ms() - 1)) for name in "KL"
    )
    window = everything(world)
    page = found(world, window)
    assert page.task_ids == [kept.id, goes.id]
    changed_by_hand(
        world,
        "UPDATE idempotency_keys SET expires_at_ms = :later WHERE task_id = :id",
        later=world.clock.wall_ms() + DAY_MS,
        id=kept.id,
    )
    assert world.does(prune, Prune(window, page.task_ids)) == [goes.id]
    assert world.task(kept.id) == kept
    assert counts(world)["idempotency_keys"] == 1
    assert world.problems() == []


def test_what_another_instance_has_deleted_meanwhile_hinders_nobody(world: World) -> None:
    tasks = [world.in_state(State.COMPLETED) for _ in range(3)]
    window = everything(world)
    page = found(world, window)
    world.delete(tasks[1].id)
    assert world.does(prune, Prune(window, page.task_ids)) == [tasks[0].id, tasks[2].id]
    assert world.does(prune, Prune(window, page.task_ids)) == []


def test_a_window_that_has_grown_after_the_look_keeps_what_is_in_it_now(world: World) -> None:
    task = world.in_state(State.COMPLETED)
    page = found(world, everything(world))
    longer = Window("stored", world.clock.wall_ms() - DAY_MS, world.clock.wall_ms())
    other = replace(everything(world), retention="unstored")
    assert page.task_ids == [task.id]
    assert world.does(prune, Prune(longer, page.task_ids)) == []
    assert world.does(prune, Prune(other, page.task_ids)) == []
    assert world.task(task.id) == task


@pytest.mark.requirement("S-003", "S-003a")
def test_of_a_key_that_is_used_anew_after_the_look_only_the_old_meaning_goes(world: World) -> None:
    key = key_of("K", expires_at_ms=world.clock.wall_ms())
    old = world.in_state(State.COMPLETED, key=key)
    world.clock.advance(1)
    keys = world.store.read(partial(find_expired_keys, now_ms=world.clock.wall_ms(), after=ExpiredKey())).keys
    assert [one.task_id for one in keys] == [old.id]
    new = world.accept(key=replace(key, expires_at_ms=world.clock.wall_ms() + DAY_MS))
    assert world.does(forget_keys, ForgetKeys(keys, world.clock.wall_ms())) == []
    assert world.does(accept, world.accept_command(key=key)).task_id == new.id


# Keys and snapshots by themselves


@pytest.mark.requirement("P-11.2-retain")
def test_a_key_goes_when_it_has_expired_and_its_task_is_finished_though_the_task_stays(world: World) -> None:
    expires_at_ms = world.clock.wall_ms() + DAY_MS
    finished, valid = (
        world.in_state(State.COMPLETED, key=key_of(name, expires_at_ms=expires_at_ms + more))
        for name, more in (("A", 0), ("B", 1))
    )
    unfinished = world.accept(key=key_of("C", expires_at_ms=expires_at_ms))
    world.clock.advance(DAY_MS + 1)
    now_ms = world.clock.wall_ms()
    page = world.store.read(partial(find_expired_keys, now_ms=now_ms, after=ExpiredKey()))
    assert ([key.task_id for key in page.keys], page.next_after) == ([finished.id], None)
    others = (key_of("B").key_hash, key_of("C").key_hash, b"x" * 16)
    forced = [*page.keys, *(replace(page.keys[0], key_hash=key_hash) for key_hash in others)]
    assert world.does(forget_keys, ForgetKeys(forced, now_ms)) == [finished.id]
    assert counts(world)["idempotency_keys"] == 2
    for task in (finished, valid, unfinished):
        assert world.task(task.id) == task
    assert world.problems() == []


def test_keys_come_in_pages_none_twice(world: World) -> None:
    for number in range(5):
        world.in_state(State.CANCELLED, key=key_of(str(number), expires_at_ms=7 + number // 3))
    after: ExpiredKey | None = ExpiredKey()
    seen: list[ExpiredKey] = []
    while after is not None:
        page = world.store.read(partial(find_expired_keys, now_ms=8_000, after=after, limit=2))
        assert len(page.keys) <= 2
        seen, after = seen + page.keys, page.next_after
    assert (len(seen), seen) == (5, sorted(set(seen)))


def stale(world: World, before_ms: int) -> list[StaleSnapshot]:
    return world.store.read(partial(find_stale_snapshots, before_ms=before_ms, after_path="", limit=10))


def test_a_snapshot_goes_when_neither_it_nor_its_task_has_changed_for_long(world: World) -> None:
    waiting, moving = world.running(), world.running()
    for task in (waiting, moving):
        world.append(task)
        world.snapshot(task, 1)
    world.clock.advance(DAY_MS)
    before_ms = world.clock.wall_ms()
    world.append(moving)
    seen = stale(world, before_ms)
    assert [one.task_id for one in seen] == [waiting.id]
    assert [one.path for one in world.does(drop_snapshots, DropSnapshots(seen, before_ms))] == [seen[0].path]
    assert counts(world)["snapshots"] == 1
    assert world.problems() == []
    world.finish(world.task(waiting.id))


def test_a_task_that_moves_after_the_look_keeps_its_snapshot(world: World) -> None:
    task = world.running()
    world.append(task)
    world.snapshot(task, 1)
    world.clock.advance(DAY_MS)
    before_ms = world.clock.wall_ms()
    seen = stale(world, before_ms)
    world.append(task)
    assert world.does(drop_snapshots, DropSnapshots(seen, before_ms)) == []
    assert counts(world)["snapshots"] == 1


# How much work it is


def test_nothing_is_looked_at_twice_in_a_pass_however_many_keys_are_valid(world: World) -> None:
    kept = [world.in_state(State.CANCELLED, key=key_of(str(number))).id for number in range(9)]
    goes = [world.in_state(State.CANCELLED).id for _ in range(3)]
    looked_at, gone, pages = 0, [], 0
    after: Place | None = Place()
    while after is not None:
        page = found(world, everything(world), after, 4)
        assert page.looked_at <= 4
        looked_at, pages = looked_at + page.looked_at, pages + 1
        gone += world.does(prune, Prune(everything(world), page.task_ids))
        after = page.next_after
    assert (looked_at, gone, len(kept)) == (12, goes, 9)
    assert pages <= 4


def test_what_is_stored_is_not_looked_at_for_what_is_not(world: World) -> None:
    """Counted in the steps of SQLite's machine; on PostgreSQL the plan is the test (tests/postgres/test_schema.py)."""
    if not isinstance(world.store, SqliteStore):
        pytest.skip("PostgreSQL has no such counter")
    few = steps_of_a_look(world)
    for _ in range(300):
        world.in_state(State.CANCELLED)
    assert steps_of_a_look(world) == few


def steps_of_a_look(world: World) -> int:
    assert isinstance(world.store, SqliteStore)
    connection, tx = plain_tx(world.store.path)
    steps = [0]

    def count() -> bool:
        steps[0] += 1
        return False

    connection.set_progress_handler(count, 1)
    assert find_expired(tx, everything(world, "unstored"), Place()).looked_at == 0
    connection.close()
    return steps[0]


def test_what_a_task_takes_and_when_the_last_one_ended_can_be_asked(world: World) -> None:
    assert world.store.read(read_newest_finished) is None
    task = world.in_state(State.COMPLETED)
    world.clock.advance(5)
    last = world.in_state(State.FAILED)
    assert world.store.read(read_newest_finished) == last.finished_at_ms == world.clock.wall_ms()
    weight = world.store.read(partial(read_weight, task_id=task.id))
    assert weight.events == task.last_seq + 1
    assert weight.size_bytes > len(task.request)
    assert world.store.read(partial(read_weight, task_id="resp_none")).size_bytes == 0
