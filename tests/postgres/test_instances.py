"""Several stores, threads and processes on one PostgreSQL database: races, wake-ups, locks of the living."""

# ruff: noqa: S608 - the names that are put into statements are the test's own
from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest

from retoma.errors import StoreUnavailable
from retoma.store import postgres_liveness
from retoma.store.liveness import FileLiveness
from retoma.store.postgres import PostgresStore
from retoma.store.postgres_liveness import AdvisoryLiveness
from retoma.store.postgres_liveness import key_of as lock_key_of
from retoma.store.postgres_notify import PAYLOAD_BYTES_MAX, payload_of, read_payload
from retoma.store.postgres_server import Server
from retoma.transactions.accept import accept
from retoma.transactions.claim import Claim, claim
from retoma.transactions.finish import finish
from retoma.transactions.instances import DeclareDead, Register, declare_dead, register, renew
from retoma.transactions.read import count_states
from tests.support import processes
from tests.support.clock import SequentialIds
from tests.support.postgres import administer
from tests.support.waiting import wait_for
from tests.support.world import World, key_of


@pytest.fixture
def world(postgres_store: PostgresStore) -> World:
    return World(postgres_store)


@pytest.fixture
def other(postgres_store: PostgresStore, postgres_url: str) -> Iterator[PostgresStore]:
    """Another store on the same schema, as in another process."""
    made = PostgresStore(postgres_url)
    yield made
    made.close()


def together(acts: list[partial[object]]) -> list[object]:
    """What they return, begun at the same moment in a thread each."""
    barrier = threading.Barrier(len(acts))
    found: queue.SimpleQueue[object] = queue.SimpleQueue()

    def run(act: partial[object]) -> None:
        barrier.wait(20)
        try:
            found.put(act())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            found.put(error)

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [found.get_nowait() for _ in acts]


# Races


@pytest.mark.requirement("S-002", "S-003")
def test_one_key_from_sixteen_threads_on_two_stores_is_one_task(world: World, other: PostgresStore) -> None:
    worlds = [world, World(other, ids=SequentialIds(1))]
    for number in range(20):
        commands = [worlds[client % 2].accept_command(key=key_of(f"K{number}")) for client in range(16)]
        accepted = together([partial(worlds[n % 2].does, accept, command) for n, command in enumerate(commands)])
        assert len({one.task_id for one in accepted}) == 1, accepted  # pyright: ignore[reportAttributeAccessIssue]
    assert world.store.read(count_states) == {"queued": 20}
    assert world.problems() == []


@pytest.mark.requirement("S-002", "S-003")
def test_one_key_from_several_processes_is_one_task_and_no_task_is_claimed_twice(
    world: World, postgres_url: str
) -> None:
    racing = [processes.python("tests.support.postgres_instance", postgres_url, str(space)) for space in range(2, 6)]
    for number in range(10):
        for process in racing:
            processes.tell(process, f"accept K{number}")
        assert len({processes.line(process) for process in racing}) == 1
    for _ in range(190):
        world.accept()
    for process in racing:
        processes.tell(process, "claim")
    claimed = [json.loads(processes.line(process)) for process in racing]
    assert [processes.end(process) for process in racing] == [0] * 4
    every = [task_id for one in claimed for task_id in one]
    assert len(every) == len(set(every)) == 200
    assert sum(bool(one) for one in claimed) > 1, "only one process claimed anything"
    assert world.problems() == []


@pytest.mark.requirement("S-002", "S-003")
def test_an_instance_passes_over_a_task_that_another_is_claiming(world: World, postgres_url: str) -> None:
    first, second = world.accept(), world.accept()
    with psycopg.connect(postgres_url) as claiming:
        claiming.execute("SELECT 1 FROM tasks WHERE id = %s FOR UPDATE", (first.id,))
        claimed = world.claim()
        assert claimed is not None
        assert claimed.id == second.id
        assert world.claim() is None
        assert world.does(claim, Claim("i", 0, "op", models=frozenset({"m"}))) is None
    claimed = world.claim()
    assert claimed is not None
    assert claimed.id == first.id


@pytest.mark.requirement("P-11.2-cancel", "S-003")
def test_of_a_cancel_and_a_completion_on_two_stores_exactly_one_wins(world: World, other: PostgresStore) -> None:
    away = World(other, ids=SequentialIds(1))
    ends: set[str] = set()
    for turn in range(600):
        if turn >= 60 and len(ends) > 1:  # who comes first depends on the machine
            break
        task = world.running()
        # Made before the race: reading the log for it would let the cancel be first each time.
        completes = partial(world.does, finish, world.finish_command(task))
        answers = together([completes, partial(away.cancel, task.id)])
        state = world.task(task.id).state
        refused = [answer for answer in answers if isinstance(answer, Exception)]
        assert len(refused) == (state == "cancelling"), answers
        ends.add(state)
        if state == "cancelling":
            world.finish(task, "cancelled")
    assert ends == {"completed", "cancelling"}, "the race never went both ways"
    assert world.problems() == []


# Wake-ups


def heard(store: PostgresStore) -> queue.SimpleQueue[frozenset[str] | None]:
    """What the store hears from elsewhere, from now on."""
    told: queue.SimpleQueue[frozenset[str] | None] = queue.SimpleQueue()
    store.watch(told.put)
    assert told.get(timeout=20) is None  # it listens, and whatever happened before may have been missed
    return told


@pytest.mark.requirement("S-002")
def test_a_commit_wakes_the_other_store_by_the_tasks_name_and_not_its_own(world: World, other: PostgresStore) -> None:
    assert isinstance(world.store, PostgresStore)
    here, there = heard(world.store), heard(other)
    task = world.accept()
    assert there.get(timeout=20) == frozenset({task.id})
    answer = World(other, ids=SequentialIds(1)).accept()
    assert here.get(timeout=20) == frozenset({answer.id})
    assert here.empty()


def test_many_commits_at_once_are_few_notifications_and_none_is_left_out(world: World, other: PostgresStore) -> None:
    there = heard(other)
    tasks = {world.accept().id for _ in range(200)}
    told: list[frozenset[str]] = []
    while not tasks <= frozenset[str]().union(*told):
        one = there.get(timeout=20)
        assert one is not None
        told.append(one)
    assert len(told) < 150


def test_a_listener_that_was_lost_listens_again_and_says_that_anything_may_have_changed(
    world: World, other: PostgresStore, postgres_url: str
) -> None:
    there = heard(other)
    ended = administer(
        postgres_url,
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        f"WHERE query LIKE 'LISTEN%' AND application_name = '{other._server.application_name}'",
    )
    assert ended == [(True,)]
    assert there.get(timeout=20) is None
    task = world.accept()
    assert there.get(timeout=20) == frozenset({task.id})


def test_stores_in_other_schemas_of_the_database_are_not_woken(
    world: World, other: PostgresStore, shared_postgres_store: PostgresStore
) -> None:
    there = heard(other)
    World(shared_postgres_store, ids=SequentialIds(7)).accept()
    task = world.accept()
    assert there.get(timeout=20) == frozenset({task.id})


def test_too_many_names_for_one_notification_become_a_star() -> None:
    few, many = frozenset({"resp_1", "resp_2"}), frozenset(f"resp_{n:032}" for n in range(300))
    assert read_payload(payload_of("me", few)) == ("me", few)
    assert read_payload(payload_of("me", many)) == ("me", None)
    assert len(payload_of("me", many)) <= PAYLOAD_BYTES_MAX


# Liveness and leases


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's server has just been started, and nobody waits for its instances."""
    monkeypatch.setattr(postgres_liveness, "SERVER_GRACE_S", 0)


@pytest.mark.requirement("S-002", "S-006")
def test_the_lock_of_a_process_is_free_once_it_is_killed_and_not_before(
    quick: None, postgres_store: PostgresStore, postgres_url: str
) -> None:
    liveness = postgres_store.liveness()
    process = processes.python("tests.support.postgres_instance", postgres_url, "2")
    processes.tell(process, "hold inst_2")
    assert processes.line(process) == '"held"'
    assert not liveness.is_free("inst_2")
    process.kill()
    wait_for(lambda: liveness.is_free("inst_2"), "the lock of the dead process", 5)
    assert process.wait(20) == -9
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    liveness.release()


def holder_pid(url: str, instance_id: str) -> int | None:
    key = lock_key_of(instance_id) % 2**64
    rows = administer(
        url,
        f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = {key >> 32} AND objid = {key % 2**32}",
    )
    return int(str(rows[0][0])) if rows else None


def test_a_lock_whose_session_was_ended_is_taken_again_before_it_counts_as_free(
    quick: None, postgres_store: PostgresStore, postgres_url: str
) -> None:
    holding, looking = postgres_store.liveness(), postgres_store.liveness()
    holding.hold("inst_1")
    for _ in range(3):
        pid = holder_pid(postgres_url, "inst_1")
        administer(postgres_url, f"SELECT pg_terminate_backend({pid}, 5000)")
        assert not looking.is_free("inst_1")
        wait_for(lambda gone=pid: holder_pid(postgres_url, "inst_1") not in {None, gone}, "the lock to be held again")
    holding.release()
    assert looking.is_free("inst_1")
    looking.release()


def test_no_lock_counts_as_free_right_after_a_start_of_the_server(
    postgres_store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    liveness = postgres_store.liveness()
    monkeypatch.setattr(postgres_liveness, "SERVER_GRACE_S", 3600)
    assert not liveness.is_free("inst_nobody")
    monkeypatch.setattr(postgres_liveness, "SERVER_GRACE_S", 0)
    assert liveness.is_free("inst_nobody")
    liveness.release()


@pytest.mark.requirement("S-006")
def test_an_instance_that_can_not_hold_its_lock_is_told_so(quick: None, postgres_url: str) -> None:
    first, second = AdvisoryLiveness(Server(postgres_url)), AdvisoryLiveness(Server(postgres_url))
    first.hold("inst_1")
    first.hold("inst_1")
    with pytest.raises(StoreUnavailable, match="another session holds"):
        second.hold("inst_1")
    first.hold("inst_new")
    second.hold("inst_1")
    assert not second.is_free("inst_new")
    first.release()
    second.release()


def test_the_two_kinds_of_liveness_agree_that_a_held_lock_is_not_free(
    quick: None, postgres_url: str, tmp_path: Path
) -> None:
    for liveness in (AdvisoryLiveness(Server(postgres_url)), FileLiveness(tmp_path)):
        assert liveness.is_free("inst_1")
        liveness.hold("inst_1")
        assert not liveness.is_free("inst_1")
        liveness.hold("inst_2")
        assert liveness.is_free("inst_1")
        liveness.release()
        assert liveness.is_free("inst_2")
        liveness.forget("inst_2")
        liveness.release()


@pytest.mark.requirement("S-006")
def test_of_a_renewal_and_a_declaration_of_death_at_once_only_one_wins(world: World, other: PostgresStore) -> None:
    seen: set[tuple[bool, bool]] = set()
    for number in range(60):
        name = f"inst_{number}"
        world.does(register, Register(name, "host", "boot", 1, -1, 0))
        declare = partial(
            other.transact, partial(declare_dead, command=DeclareDead(name, lock_is_free=False, boot_id=None))
        )
        prolong = partial(world.store.transact, partial(renew, instance_id=name, lease_ms=60_000))
        kinds: dict[str, bool] = {}

        def noted(kind: str, act: partial[object], kinds: dict[str, bool] = kinds) -> None:
            kinds[kind] = bool(act())

        together([partial(noted, "dead", declare), partial(noted, "renewed", prolong)])
        assert kinds["dead"] is not kinds["renewed"], kinds
        seen.add((kinds["dead"], kinds["renewed"]))
    assert len(seen) == 2, "the race never went both ways"


def test_the_time_of_leases_is_the_servers(world: World, postgres_url: str) -> None:
    ((server_ms,),) = administer(postgres_url, "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
    now_ms = world.store.read(lambda tx: tx.now_ms())
    assert isinstance(server_ms, int)
    assert 0 <= now_ms - server_ms < 60_000
