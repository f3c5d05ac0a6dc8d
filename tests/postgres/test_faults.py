"""Connections and servers that go away: nothing that was acknowledged is lost, nothing is done twice."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from functools import partial

import psycopg
import pytest

from retoma.errors import Conflict, InvalidRequest, NotFound, Refused, RetomaError, StoreUnavailable
from retoma.store import postgres_server, postgres_tx
from retoma.store.contract import Outcome, Tx
from retoma.store.migrate_postgres import prepare
from retoma.store.postgres import PostgresStore
from retoma.store.postgres_server import Server
from retoma.store.postgres_tx import PostgresWriteConnection
from retoma.store.statements import Statement
from retoma.transactions.accept import accept
from retoma.transactions.append import append
from retoma.transactions.claim import claim
from retoma.transactions.finish import finish
from retoma.transactions.models import read_model
from retoma.transactions.read import count_states, read_task
from tests.support.postgres import NoServer, PostgresServer, administer, end_sessions, new_schema, sessions_of
from tests.support.waiting import wait_for
from tests.support.world import World, key_of


@pytest.fixture
def world(postgres_store: PostgresStore) -> World:
    return World(postgres_store)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    try:
        made = PostgresServer()
    except NoServer as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no PostgreSQL of our own to stop: {missing}")
    yield made
    made.close()


class Line:
    """Ends the session of a writer on the server, once, right before or right after its COMMIT."""

    def __init__(self, store: PostgresStore, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
        self.cut = 0
        self._store, self._when = store, when
        self._commit = PostgresWriteConnection.commit
        monkeypatch.setattr(PostgresWriteConnection, "commit", lambda made: self.commit(made))  # noqa: PLW0108

    def commit(self, connection: PostgresWriteConnection) -> None:
        if self.cut:
            self._commit(connection)
            return
        self.cut = 1
        if self._when == "before":
            end_sessions(self._store, f"pid = {connection.pid}")
            self._commit(connection)
        else:
            self._commit(connection)
            end_sessions(self._store, f"pid = {connection.pid}")
            connection._run(b"SELECT 1")  # the answer to the COMMIT would have come over this line


@pytest.mark.requirement("S-005")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verb", ["accept", "claim", "append", "finish"])
def test_a_connection_that_is_lost_around_a_commit_leaves_one_effect(
    world: World, monkeypatch: pytest.MonkeyPatch, when: str, verb: str
) -> None:
    assert isinstance(world.store, PostgresStore)
    task = world.accept() if verb == "claim" else world.running() if verb != "accept" else None
    line = Line(world.store, monkeypatch, when)
    match verb:
        case "accept":
            task_id = world.does(accept, world.accept_command(key=key_of("K"))).task_id
            expected = ["created", "queued"]
        case "claim":
            claimed = world.does(claim, world.claim_command())
            assert claimed is not None
            assert task is not None
            assert (claimed.id, claimed.fencing_token) == (task.id, 1)
            task_id, expected = claimed.id, ["created", "queued", "in_progress"]
        case "append":
            assert task is not None
            world.does(append, world.append_command(task))
            task_id, expected = task.id, world.types(task.id)
            assert expected.count("output_text.delta") == 1
        case _:
            assert task is not None
            assert world.does(finish, world.finish_command(task)).state == "completed"
            task_id, expected = task.id, world.types(task.id)
            assert expected.count("completed") == 1
    assert line.cut == 1, "the line was never cut"
    assert world.types(task_id) == expected
    assert world.problems() == []


def test_before_a_command_is_driven_again_its_lost_session_is_over(world: World) -> None:
    """The server may not have noticed that the line is cut: the session is there, and holds the task's row."""
    assert isinstance(world.store, PostgresStore)
    task = world.running()
    command = world.append_command(task)
    tries: list[int] = []

    def cut(tx: Tx) -> int:
        seq = append(tx, command)
        assert isinstance(tx, postgres_tx.PostgresTx)
        tries.append(tx.connection.info.backend_pid)
        if len(tries) == 1:
            held.append(tx.connection)  # kept open, as a server sees it behind a cut line
            raise postgres_tx.CommitUnknown("cut")
        return seq

    held: list[object] = []
    closed = PostgresWriteConnection.close
    rolled_back = PostgresWriteConnection.rollback_to_savepoint
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PostgresWriteConnection, "close", lambda connection: None if held else closed(connection))
        patch.setattr(
            PostgresWriteConnection,
            "rollback_to_savepoint",
            lambda connection: False if len(tries) == 1 else rolled_back(connection),
        )
        assert world.store.transact(cut) == command.after_seq + len(command.drafts)
    assert len(tries) == 2
    assert tries[0] not in sessions_of(world.store)
    assert world.types(task.id).count("output_text.delta") == 1
    held[0].close()  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.requirement("S-002")
def test_sessions_that_are_ended_while_they_are_idle_cost_nobody_an_error(world: World) -> None:
    assert isinstance(world.store, PostgresStore)
    task = world.accept()
    world.task(task.id)
    for at_least in (6, 1, 1):  # four writers, a reader and the one that notifies; later those that were needed
        assert end_sessions(world.store) >= at_least
        assert world.task(task.id) == task
        world.accept()
    assert world.store.problem() is None
    assert world.store.read(count_states) == {"queued": 4}


@pytest.mark.requirement("P-11.2-persist", "S-002")
def test_a_server_that_is_restarted_under_load_loses_nothing_that_was_acknowledged(  # noqa: C901 - one story
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    if postgres_server.RECONNECT_S:
        monkeypatch.setattr(postgres_server, "RECONNECT_S", 30.0)  # for a machine on which a restart takes long
    url = new_schema(server.url)
    prepare(url, 0)
    store = PostgresStore(url)
    world = World(store)
    acknowledged: list[str] = []
    unknown: list[str] = []
    failed_tries: list[RetomaError] = []
    enough, done = threading.Event(), threading.Event()

    def client(number: int) -> None:
        count = 0
        while not done.is_set():
            count += 1
            key = key_of(f"{number}-{count}")
            commands = [world.accept_command(key=key)]
            while True:
                try:
                    acknowledged.append(world.does(accept, commands[0]).task_id)
                    break
                except StoreUnavailable as error:  # as a client does: the same request again under the same key
                    failed_tries.append(error)
                    if done.is_set():
                        unknown.append(commands[0].task_id)
                        break
            if len(acknowledged) > 200:
                enough.set()

    clients = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in clients:
        thread.start()
    assert enough.wait(30)
    before = len(acknowledged)
    server.stop("fast")
    server.start()
    wait_for(lambda: len(acknowledged) > before + 200, "accepts after the restart")
    done.set()
    for thread in clients:
        thread.join(30)
    assert failed_tries == [], "what was under way was not driven again"
    assert len(set(acknowledged)) == len(acknowledged)
    counted = store.read(count_states)["queued"]
    assert len(acknowledged) <= counted <= len(acknowledged) + len(unknown)
    for task_id in acknowledged:
        store.read(partial(read_task, task_id=task_id))
    assert world.problems() == []
    assert store.problem() is None
    store.close()


def test_a_store_that_is_away_is_reported_and_comes_back_by_itself(server: PostgresServer) -> None:
    url = new_schema(server.url)
    prepare(url, 0)
    store = PostgresStore(url)
    world = World(store)
    task = world.accept()
    server.stop("immediate")
    with pytest.raises(StoreUnavailable, match="can't be reached"):
        world.task(task.id)
    outcomes: list[Outcome] = []
    for _ in range(20):
        store.submit(partial(accept, command=world.accept_command()), outcomes.append)
    wait_for(lambda: len(outcomes) == 20, "twenty refusals", 20)
    assert {type(one.error) for one in outcomes} == {StoreUnavailable}
    assert store.problem() is not None
    with pytest.raises(StoreUnavailable, match=r"^PostgreSQL at .* can't be reached: [^\n]+$"):
        PostgresStore(url)
    server.start()
    wait_for(lambda: succeeds(world), "the store to be back", 20)
    assert world.task(task.id) == task
    assert store.problem() is None
    store.close()


def succeeds(world: World) -> bool:
    try:
        world.accept()
    except StoreUnavailable:
        return False
    return True


# Errors by their codes


def raising(sqlstate: str) -> Statement:
    body = f"BEGIN RAISE EXCEPTION 'on purpose' USING ERRCODE = ''{sqlstate}''; END".replace("''", "'")
    return Statement(f"faults.raise_{sqlstate}", "Fails.", f"DO $body{'$'}{body}$body{'$'}")


class Plain(Statement):
    """A statement without the dialect's words."""

    def render(self, dialect: object) -> str:
        return self.text


@pytest.mark.parametrize(
    ("sqlstate", "expected", "times"),
    [
        ("53100", "StoreFull", 1),
        ("40001", "StoreUnavailable", 4),
        ("40P01", "StoreUnavailable", 4),
        ("55P03", "StoreUnavailable", 4),
        ("23505", "Conflict", 4),
        ("23514", "Conflict", 1),
        ("23000", "Conflict", 1),
        ("22021", "InvalidRequest", 1),
        ("57014", "StoreUnavailable", 1),
        ("XX000", "StoreUnavailable", 1),
    ],
)
def test_an_error_of_the_server_is_known_by_its_code(world: World, sqlstate: str, expected: str, times: int) -> None:
    tried: list[int] = []
    bad = Plain("faults.bad", "Fails.", raising(sqlstate).text)

    def fail(tx: Tx) -> None:
        tried.append(1)
        tx.execute(bad, {})

    with pytest.raises(RetomaError) as caught:
        world.store.transact(fail)
    assert (type(caught.value).__name__, len(tried)) == (expected, times)
    assert world.accept().state == "queued"


def test_a_transaction_that_swallowed_an_error_is_not_taken_for_committed(world: World) -> None:
    command = world.accept_command()

    def swallow(tx: Tx) -> None:
        accept(tx, command)
        with pytest.raises(Conflict):
            tx.execute(Plain("faults.bad", "Fails.", raising("23514").text), {})

    with pytest.raises(StoreUnavailable, match="nothing was written"):
        world.store.transact(swallow)
    with pytest.raises(NotFound):
        world.task(command.task_id)


def test_a_text_that_the_database_can_not_hold_is_the_callers_mistake(world: World) -> None:
    with pytest.raises(InvalidRequest, match="NUL"):
        world.store.read(partial(read_model, name="a\0b"))
    assert world.accept().state == "queued"


def test_a_row_that_is_locked_for_too_long_is_an_error_and_no_wait_for_ever(
    world: World, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(postgres_server._SESSION, "lock_timeout", 50)
    task = world.running()
    hasty = World(PostgresStore(postgres_url), me="instance-2")
    with psycopg.connect(postgres_url) as holding:
        holding.execute("SELECT 1 FROM tasks FOR UPDATE")
        with pytest.raises(StoreUnavailable, match="busy"):
            hasty.cancel(task.id)
    assert hasty.cancel(task.id).state == "cancelling"
    hasty.store.close()


SETTINGS = {
    "lock_timeout": "2s",
    "statement_timeout": "30s",
    "idle_in_transaction_session_timeout": "5s",
    "synchronous_commit": "on",
}


def test_every_connection_has_its_bounds_and_the_urls_own_options(postgres_url: str) -> None:
    (schema,) = re.findall(r"%3D(\w+)", postgres_url)
    with Server(f"{postgres_url}%20-csynchronous_commit%3Doff").connect() as connection:
        found = {name: connection.execute(f"SHOW {name}".encode()).fetchone() for name in SETTINGS}
        assert found == {name: (value,) for name, value in SETTINGS.items()}
        assert connection.execute("SELECT current_schema()").fetchone() == (schema,)
        parameters = connection.info.get_parameters()
    assert parameters["keepalives_idle"] == "3"
    assert parameters["tcp_user_timeout"] == "6000"
    assert parameters["application_name"].startswith("retoma ")


def test_a_broken_url_is_refused_without_its_password() -> None:
    with pytest.raises(Refused) as caught:
        Server("postgresql://me:secret@[broken/db?nonsense=1")
    assert "secret" not in str(caught.value)


def test_a_database_that_takes_no_more_connections_is_unavailable(server: PostgresServer) -> None:
    administer(server.url, "CREATE ROLE poor LOGIN CONNECTION LIMIT 2", "CREATE SCHEMA poor AUTHORIZATION poor")
    url = server.url.replace("postgres@", "poor@") + "&options=-csearch_path%3Dpoor"
    prepare(url, 0)
    with pytest.raises(StoreUnavailable, match="too many connections"):
        PostgresStore(url)
    wait_for(
        lambda: administer(server.url, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'poor'") == [(0,)],
        "the connections that were made to be closed",
    )
