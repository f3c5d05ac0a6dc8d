"""A task's webhook: owed from the acceptance on, due from the end on, counted before it is sent, never forgotten."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import apsw
import pytest

from retoma import failpoints
from retoma.core.task import OnRestart, State
from retoma.core.webhook import RETRY_MS_MAX, Answer, MessageState, message_body, message_id
from retoma.store.contract import Store, Tx
from retoma.store.sqlite import SqliteStore
from retoma.store.statements import Statement
from retoma.transactions import outbox
from retoma.transactions.accept import accept
from retoma.transactions.finish import finish
from tests.support.stores import new_store
from tests.support.world import DAY_MS, World

URL = "https://example.org/hook?token=1"
OK, ERROR, GONE = Answer("HTTP 200", 200), Answer("HTTP 500", 500), Answer("HTTP 410", 410)
UNANSWERED = Answer("no answer within 15 s")
TERMINAL_CRASHES = 3

COUNT = Statement("tests.count", "How many.", "SELECT count(*) FROM outbox")
DELETED_BY_AN_OLDER_RELEASE = [
    Statement("tests.delete_events", "With the next two all of a task.", "DELETE FROM task_events WHERE task_id = :id"),
    Statement("tests.delete_response", "The second.", "DELETE FROM responses WHERE id = :id"),
    Statement("tests.delete_task", "The third.", "DELETE FROM tasks WHERE id = :id"),
]


def count(world: World) -> int:
    return world.store.read(lambda tx: tx.rows(COUNT, {})[0][0])


def released(world: World, state: State = State.COMPLETED) -> str:
    """A finished task whose message is due."""
    return world.in_state(state, webhook=URL).id


def left_waiting(world: World, state: State = State.COMPLETED) -> str:
    """A finished task of a release without an outbox."""
    return world.left_waiting(URL, state)


def delete_as_an_older_release(world: World, task_id: str) -> None:
    def go(tx: Tx) -> None:
        for statement in DELETED_BY_AN_OLDER_RELEASE:
            tx.execute(statement, {"id": task_id})

    world.store.transact(go)


def reconciled(world: World) -> list[str]:
    """What one reconciliation found: task ids."""
    left = world.store.read(partial(outbox.read_left_waiting, after=""))
    world.store.transact(partial(outbox.reconcile, left=left, now_ms=world.clock.wall_ms()))
    return [task_id for _, task_id in left]


def due_now(world: World) -> list[str]:
    """The messages that are due, through all pages."""
    found: list[outbox.Due] = []
    after = (0, "")
    while page := world.store.read(partial(outbox.read_due, now_ms=world.clock.wall_ms(), after=after, limit=3)):
        found += page
        after = (page[-1].at_ms, page[-1].id)
    return [due.id for due in found]


# Owed from the acceptance on, due from the end on


def test_a_task_without_a_webhook_owes_none(world: World) -> None:
    world.in_state(State.COMPLETED)
    assert count(world) == 0


@pytest.mark.requirement("S-007")
@pytest.mark.parametrize("state", [State.QUEUED, State.LOADING, State.RUNNING, State.CANCELLING])
def test_the_message_of_an_unfinished_task_waits_and_can_not_be_claimed(world: World, state: State) -> None:
    task = world.in_state(state, webhook=URL)
    message = world.message(task.id)
    assert (message.state, message.body, message.tries, message.next_at_ms) == ("waiting", "", 0, None)
    assert (message.client_id, message.url) == (task.client_id, URL)
    world.clock.advance(DAY_MS)
    assert world.claim_tries(task.id) == []
    assert reconciled(world) == []
    assert world.problems() == []


def failed_by_recovery(world: World) -> str:
    task = world.in_state(State.RUNNING, OnRestart.FAIL, webhook=URL)
    world.recover(task)
    return task.id


def cancelled_by_recovery(world: World) -> str:
    task = world.in_state(State.CANCELLING, webhook=URL)
    world.recover(task)
    return task.id


def failed_by_crashes(world: World) -> str:
    task = world.in_state(State.LOADING, webhook=URL)
    for _ in range(TERMINAL_CRASHES - 1):
        world.crash(world.task(task.id))
        assert world.claim() is not None
    world.crash(world.task(task.id))
    return task.id


def cancelled_while_running(world: World) -> str:
    task = world.in_state(State.CANCELLING, webhook=URL)
    world.finish(task, "cancelled")
    return task.id


def incomplete(world: World) -> str:
    task = world.in_state(State.RUNNING, webhook=URL)
    world.finish(task, "incomplete")
    return task.id


ENDS: dict[str, tuple[Callable[[World], str], str]] = {
    "completed": (partial(released, state=State.COMPLETED), "completed"),
    "incomplete": (incomplete, "incomplete"),
    "failed by its owner": (partial(released, state=State.FAILED), "failed"),
    "failed by a restart": (failed_by_recovery, "failed"),
    "failed by its engine's crashes": (failed_by_crashes, "failed"),
    "cancelled in the queue": (partial(released, state=State.CANCELLED), "cancelled"),
    "cancelled while running": (cancelled_while_running, "cancelled"),
    "cancelled by a restart": (cancelled_by_recovery, "cancelled"),
}


@pytest.mark.requirement("S-005", "S-007")
@pytest.mark.parametrize("end", ENDS)
def test_every_end_releases_the_message_with_the_type_of_its_event(world: World, end: str) -> None:
    woken: list[frozenset[str]] = []
    world.store.listen(lambda thunk: thunk(), woken.append)
    lead_there, status = ENDS[end]
    world.clock.advance(1_234)
    task_id = lead_there(world)
    message = world.message(task_id)
    assert (message.state, message.tries, message.next_at_ms) == ("pending", 0, world.clock.wall_ms())
    assert message.body == message_body(task_id, status, world.clock.wall_ms())
    last_type = world.log(task_id)[-1][1]
    assert json.loads(message.body)["type"] == last_type == f"response.{status}"
    assert outbox.OUTBOX in woken[-1]
    assert world.problems() == []


@pytest.mark.requirement("S-005", "S-005c")
def test_an_end_that_is_not_committed_releases_nothing(world: World) -> None:
    task = world.in_state(State.RUNNING, webhook=URL)
    failpoints.arm("finish.written=error")
    try:
        with pytest.raises(failpoints.FailpointError):
            world.finish(task)
    finally:
        failpoints.arm(None)
    assert world.message(task.id).state == "waiting"
    assert world.task(task.id).state is State.RUNNING


def test_commands_that_are_driven_again_make_one_message(world: World) -> None:
    command = world.accept_command(webhook=URL)
    assert world.does(accept, command) == world.does(accept, command)
    claimed = world.claim()
    assert claimed is not None
    ending = world.finish_command(world.start(claimed))
    assert world.does(finish, ending) == world.does(finish, ending)
    assert count(world) == 1
    assert world.message(command.task_id).state == "pending"


# Tries


@pytest.mark.requirement("S-007", "S-007a")
def test_a_try_is_counted_before_it_is_sent_and_comes_due_again_if_nothing_more_is_heard(world: World) -> None:
    task_id = released(world)
    (tried,) = world.claim_tries(task_id, again_ms=20_000)
    message = world.message(task_id)
    assert tried == outbox.Try(message.id, "cli_1", URL, message.body, 1, world.clock.wall_ms() + 20_000)
    assert (message.state, message.tries, message.last_answer) == ("unconfirmed", 1, "")
    assert world.claim_tries(task_id) == []
    world.clock.advance(19_999)
    assert (due_now(world), world.claim_tries(task_id)) == ([], [])
    world.clock.advance(1)
    assert due_now(world) == [message.id]
    assert world.claim_tries(task_id) == [replace(tried, number=2, again_at_ms=tried.again_at_ms + 20_000)]


@pytest.mark.requirement("S-006", "S-006c")
def test_the_outcome_of_an_older_try_changes_nothing(world: World) -> None:
    task_id = released(world)
    (paused,) = world.claim_tries(task_id, again_ms=1_000)
    world.clock.advance(1_000)
    (later,) = world.claim_tries(task_id)
    for answer in (OK, ERROR, GONE):
        assert not world.answer(paused, answer)
    assert (world.message(task_id).state, world.message(task_id).tries) == ("unconfirmed", 2)
    assert world.answer(later, ERROR)
    assert not world.answer(paused, OK)
    assert world.message(task_id).last_answer == "HTTP 500"


@pytest.mark.requirement("S-005", "S-005b")
@pytest.mark.parametrize("answer", [OK, ERROR, UNANSWERED, GONE], ids=lambda answer: answer.text)
def test_an_outcome_that_is_driven_again_is_written_once(world: World, answer: Answer) -> None:
    task_id = released(world)
    (tried,) = world.claim_tries(task_id)
    world.answer(tried, answer)
    message = world.message(task_id)
    world.answer(tried, answer)
    assert world.message(task_id) == message


@pytest.mark.parametrize(("answer", "state"), [(OK, MessageState.DELIVERED), (GONE, MessageState.FAILED)])
def test_a_message_that_is_over_is_never_claimed_again(world: World, answer: Answer, state: MessageState) -> None:
    task_id = released(world)
    (tried,) = world.claim_tries(task_id)
    assert world.answer(tried, answer)
    world.clock.advance(10 * RETRY_MS_MAX)
    assert (due_now(world), world.claim_tries(task_id)) == ([], [])
    assert world.message(task_id).state is state


@pytest.mark.requirement("S-007", "S-007d")
def test_a_message_without_an_answer_is_unconfirmed_to_the_end_of_the_retries(world: World) -> None:
    task_id = released(world)
    seen: list[str] = []
    while (message := world.message(task_id)).next_at_ms is not None:
        world.clock.advance(message.next_at_ms - world.clock.wall_ms())
        (tried,) = world.claim_tries(task_id)
        world.answer(tried, UNANSWERED)
        seen.append(world.message(task_id).state)
    assert set(seen[:-1]) == {"unconfirmed"}
    assert seen[-1] == "failed"
    assert world.clock.wall_ms() - (world.task(task_id).finished_at_ms or 0) == pytest.approx(RETRY_MS_MAX, abs=1_000)
    assert world.problems() == []


@pytest.mark.requirement("S-002", "S-003a")
def test_of_many_that_claim_the_same_messages_at_once_one_gets_each(world: World) -> None:
    tasks = [released(world) for _ in range(20)]

    def claim(number: int) -> list[outbox.Try]:
        order = tasks if number % 2 else tasks[::-1]
        return [tried for start in range(0, 20, 4) for tried in world.claim_tries(*order[start : start + 4])]

    with ThreadPoolExecutor(8) as threads:
        claimed = [tried for found in threads.map(claim, range(8)) for tried in found]
    # One that is passed over, because another holds its row at that moment, is found at the next look.
    claimed += world.claim_tries(*tasks)
    assert sorted(tried.message_id for tried in claimed) == sorted(map(message_id, tasks))
    assert {tried.number for tried in claimed} == {1}


def test_due_messages_come_in_the_order_of_their_instants_and_ids(world: World) -> None:
    together = [released(world) for _ in range(5)]
    world.clock.advance(10)
    late = [released(world) for _ in range(3)]
    assert due_now(world) == [message_id(task_id) for task_id in [*together, *late]]
    world.clock.advance(-1)
    assert due_now(world) == [message_id(task_id) for task_id in together]
    assert world.store.read(outbox.read_first_due) == world.message(together[0]).next_at_ms


# Releases that know no outbox, and deletions


@pytest.mark.requirement("S-004", "S-004b", "S-007c")
@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.CANCELLED])
def test_a_message_that_an_older_release_left_waiting_is_released_with_the_very_same_body(
    world: World, state: State
) -> None:
    task_id = left_waiting(world, state)
    world.clock.advance(DAY_MS)
    assert reconciled(world) == [task_id]
    message = world.message(task_id)
    assert message.body == message_body(task_id, state, world.task(task_id).finished_at_ms or 0)
    assert (message.state, due_now(world)) == ("pending", [message.id])
    assert reconciled(world) == []
    assert world.problems() == []


@pytest.mark.requirement("S-004", "S-004b")
def test_a_message_whose_task_an_older_release_deleted_has_failed_and_says_why(world: World) -> None:
    gone, unfinished = left_waiting(world), world.in_state(State.RUNNING, webhook=URL).id
    delete_as_an_older_release(world, gone)
    assert reconciled(world) == [gone]
    message = world.message(gone)
    assert (message.state, message.tries, message.body) == ("failed", 0, "")
    assert "deleted" in message.last_answer
    assert world.message(unfinished).state == "waiting"
    assert world.problems() == []


@pytest.mark.requirement("S-007", "S-007c")
@pytest.mark.parametrize("make", [released, left_waiting], ids=["released", "left waiting"])
@pytest.mark.parametrize("how", ["deleted", "pruned"])
def test_a_task_that_goes_leaves_its_message_which_is_sent_all_the_same(
    world: World, how: str, make: Callable[[World], str]
) -> None:
    task_id = make(world)
    ended_at_ms = world.task(task_id).finished_at_ms or 0
    world.clock.advance(DAY_MS)
    if how == "deleted":
        world.delete(task_id)
    else:
        assert world.prune() == [task_id]
    message = world.message(task_id)
    assert (message.state, message.body) == ("pending", message_body(task_id, "completed", ended_at_ms))
    assert world.problems() == []
    (tried,) = world.claim_tries(task_id)
    assert world.answer(tried, OK)
    assert world.message(task_id).state == "delivered"


@pytest.mark.requirement("P-11.2-never")
def test_clean_up_takes_messages_that_are_over_past_their_time_and_no_others(world: World) -> None:
    """Whatever their age: what is still owed is never taken."""
    owed = [world.in_state(State.RUNNING, webhook=URL).id, released(world), released(world)]
    world.claim_tries(owed[-1])
    over: list[str] = []
    for answer in (OK, GONE, OK):
        over.append(released(world))
        (tried,) = world.claim_tries(over[-1])
        assert world.answer(tried, answer)
        world.clock.advance(1)

    def prune(before_ms: int, limit: int = 100) -> int:
        return world.store.transact(partial(outbox.prune_messages, command=outbox.PruneMessages(before_ms, limit)))

    assert prune(world.message(over[0]).updated_at_ms) == 0
    assert prune(world.message(over[1]).updated_at_ms) == 1
    world.clock.advance(100 * DAY_MS)
    assert [prune(world.clock.wall_ms(), limit=1) for _ in range(3)] == [1, 1, 0]
    assert count(world) == len(owed)
    assert [world.message(task_id).state for task_id in owed] == ["waiting", "pending", "unconfirmed"]


# Lists, and the key of the secrets


def test_messages_are_listed_by_client_and_state_page_by_page(world: World) -> None:
    mine = [released(world) for _ in range(3)]
    other = world.in_state(State.COMPLETED, webhook=URL, client_id="cli_2").id
    waiting = world.in_state(State.QUEUED, webhook=URL).id

    def listed(**filters: str | int) -> list[str]:
        fields = {"state": "", "client_id": "", "before": "", "limit": 10} | filters
        return [row.task_id for row in world.store.read(partial(outbox.read_messages, **fields))]

    assert listed() == [waiting, other, *mine[::-1]]
    assert listed(client_id="cli_1") == [waiting, *mine[::-1]]
    assert listed(client_id="cli_2") == [other]
    assert listed(state="waiting") == [waiting]
    assert listed(client_id="cli_1", state="pending", limit=2) == [mine[2], mine[1]]
    assert listed(client_id="cli_1", state="pending", before=message_id(mine[1])) == [mine[0]]
    assert listed(before=message_id(other), limit=1) == [mine[2]]


def test_what_is_owed_is_counted_and_what_is_over_is_not(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        world.claim_tries(released(world))
    for _ in range(3):
        released(world)
    for answer in (OK, GONE):
        (tried,) = world.claim_tries(released(world))
        assert world.answer(tried, answer)
    world.in_state(State.RUNNING, webhook=URL)
    assert world.store.read(outbox.read_backlog) == {"waiting": 1, "pending": 3, "unconfirmed": 2}
    monkeypatch.setattr(outbox, "WEBHOOKS_COUNTED_MAX", 4)
    assert sum(world.store.read(outbox.read_backlog).values()) == 5


def test_the_key_of_the_secrets_is_made_once(store: Store) -> None:
    def keep(candidate: bytes) -> bytes:
        return store.transact(partial(outbox.keep_key, candidate=candidate, now_ms=0))

    assert keep(b"a" * 32) == b"a" * 32
    assert keep(b"b" * 32) == b"a" * 32


# The checker


DAMAGES = {
    "is not named after its task": "UPDATE outbox SET id = 'evt_other'",
    "belongs to another client": "UPDATE outbox SET client_id = 'cli_2'",
    "no try is counted": "UPDATE outbox SET tries = 0",
    "is not what the end of its task makes": "UPDATE outbox SET body = replace(body, 'completed', 'failed')",
    "has not ended": (
        "UPDATE outbox SET task_id = (SELECT id FROM tasks WHERE state = 'running'),"
        " id = 'evt_' || (SELECT substr(id, 6) FROM tasks WHERE state = 'running')"
    ),
}


@pytest.mark.parametrize("problem", DAMAGES)
def test_the_checker_finds_a_message_that_does_not_fit_its_task(tmp_path: Path, problem: str) -> None:
    store = new_store(tmp_path)
    world = World(store)
    task_id = released(world)
    (tried,) = world.claim_tries(task_id)
    assert world.answer(tried, OK)
    world.running()
    assert world.problems() == []
    store.close()
    damage(store, DAMAGES[problem])
    store = SqliteStore(store.path)
    found = [finding for finding in World(store).problems() if finding.invariant == "I10"]
    store.close()
    assert len(found) == 1
    assert problem in found[0].message


def damage(store: SqliteStore, sql: str) -> None:
    connection = apsw.Connection(str(store.path))
    for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute(sql)
    connection.close()
