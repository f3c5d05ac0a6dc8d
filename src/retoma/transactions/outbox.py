"""Outbox: the webhooks that are owed, and what came of each (I10, S-007).

A message's row is there from the task's acceptance on, and gets its body in the transaction that ends the task. Each
try is counted and committed before anything is sent; from then on the message is `unconfirmed`, because a process that
dies can't say whether it was received. The number of the try is its fencing token: only the outcome of the latest one
is written. Whoever counts a try also writes when the message comes due again should nothing more be heard, so a killed
sender needs no rescuer. A claim that was committed without its answer is found by nobody and costs that time only.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from retoma.core.task import State
from retoma.core.webhook import MessageState, Verdict, message_body, message_id
from retoma.failpoints import Failpoint, passing
from retoma.limits import PAGE_ITEMS_MAX, WEBHOOKS_COUNTED_MAX
from retoma.store.contract import Row, Tx
from retoma.store.rows import MessageRow, TaskRow
from retoma.store.statements import statement
from retoma.transactions import service

INSERT = statement("outbox.insert")
RELEASE = statement("outbox.release")
ENDED = statement("outbox.ended")
LEFT_WAITING = statement("outbox.left_waiting")
GIVE_UP = statement("outbox.give_up")
FIRST_DUE = statement("outbox.first_due")
DUE = statement("outbox.due")
LOCK_DUE = statement("outbox.lock_due")
COUNT_TRY = statement("outbox.count_try")
WRITE_OUTCOME = statement("outbox.write_outcome")
COUNT_WAITING = statement("outbox.count_waiting")
COUNT_OWED = statement("outbox.count_owed")
PAGE = statement("outbox.page")
PAGE_OF_CLIENT = statement("outbox.page_of_client")
OVER = statement("outbox.over")
DELETE_OVER = statement("outbox.delete_over")
AUDIT_PAGE = statement("outbox.audit_page")
OUTBOX = "outbox"
"""What is woken when a message is released: the sender follows this name as readers follow tasks."""
_KEY = "webhook_key"
_LAST_ID = "~"  # sorts after every id
_DELETED = "never sent: its response was deleted by a release that knows no webhooks"


@dataclass(frozen=True, slots=True)
class Due:
    """A message that could be sent now."""

    at_ms: int
    id: str
    url: str


@dataclass(frozen=True, slots=True)
class ClaimTries:
    """Count a try of each of these messages; they come due again at `again_at_ms`."""

    message_ids: Sequence[str]
    now_ms: int
    again_at_ms: int


@dataclass(frozen=True, slots=True)
class Try:
    """A try that is counted: this must be sent now. `number` is its fencing token.

    From `again_at_ms` on others may send the message, so an answer must be here by then.
    """

    message_id: str
    client_id: str
    url: str
    body: str
    number: int
    again_at_ms: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one try."""

    message_id: str
    number: int
    verdict: Verdict
    now_ms: int


@dataclass(frozen=True, slots=True)
class PruneMessages:
    """Delivered or given up before this instant."""

    before_ms: int
    limit: int


def keep_key(tx: Tx, candidate: bytes, now_ms: int) -> bytes:
    """The key from which each client's secret is derived, the same for all instances; `candidate` if it is new."""
    value = base64.b64encode(candidate).decode()
    tx.execute(service.INSERT, {"key": _KEY, "value": value, "now_ms": now_ms})
    row = tx.row(service.READ, {"key": _KEY})
    assert row is not None
    return base64.b64decode(row[0])


def write_waiting(tx: Tx, task: TaskRow, url: str) -> None:
    """The message that the end of this new task will make."""
    tx.execute(
        INSERT,
        {
            "id": message_id(task.id),
            "task_id": task.id,
            "client_id": task.client_id,
            "url": url,
            "now_ms": task.created_at_ms,
        },
    )


def release(tx: Tx, task_id: str, status: str, ended_at_ms: int) -> None:
    """Makes the task's message due, if it has one that waits; the task's row must have moved before."""
    params = {
        "id": message_id(task_id),
        "body": message_body(task_id, status, ended_at_ms),
        "now_ms": ended_at_ms,
    }
    if tx.execute(RELEASE, params):
        tx.wake(OUTBOX)


def release_if_ended(tx: Tx, task_id: str) -> bool:
    """As `release`, for a task that a release without an outbox has ended: its message still waits."""
    row = tx.row(ENDED, {"id": message_id(task_id)})
    if row is None:
        return False
    release(tx, task_id, *row)
    return True


def read_left_waiting(tx: Tx, after: str, limit: int = PAGE_ITEMS_MAX) -> list[tuple[str, str]]:
    """Messages, and their tasks, that should not be waiting any more, by id."""
    return [(found, task_id) for found, task_id in tx.rows(LEFT_WAITING, {"after": after, "limit": limit})]


def reconcile(tx: Tx, left: Sequence[tuple[str, str]], now_ms: int) -> None:
    """Releases what `read_left_waiting` found; a message whose task is gone has failed, and says why.

    May be done any number of times and by several instances at once.
    """
    for found, task_id in left:
        if not release_if_ended(tx, task_id):
            tx.execute(GIVE_UP, {"id": found, "last_answer": _DELETED, "now_ms": now_ms})


def read_first_due(tx: Tx) -> int | None:
    """When the next try is due; None if nothing is to be sent."""
    row = tx.row(FIRST_DUE, {})
    return row[0] if row else None


def read_due(tx: Tx, now_ms: int, after: tuple[int, str], limit: int = PAGE_ITEMS_MAX) -> list[Due]:
    """Messages that are due, behind this place in their order; a look that locks nothing."""
    after_ms, after_id = after
    params = {"now_ms": now_ms, "after_ms": after_ms, "after": after_id, "limit": limit}
    return [Due(*row) for row in tx.rows(DUE, params)]


def claim_tries(tx: Tx, command: ClaimTries) -> list[Try]:
    """Counts a try of each message that is still due and that nobody else is claiming.

    If the process dies before the commit, nothing was counted and nothing may be sent; after it, the messages are
    `unconfirmed` and come due again by themselves, sent or not.
    """
    claimed: list[Try] = []
    for found in command.message_ids:
        row = tx.row(LOCK_DUE, {"id": found, "now_ms": command.now_ms})
        if row is None:
            continue
        client_id, url, body, tries = row
        params = {"id": found, "tries": tries, "now_ms": command.now_ms, "next_at_ms": command.again_at_ms}
        changed = tx.execute(COUNT_TRY, params)
        assert changed == 1, f"{found} changed under its lock"
        claimed.append(Try(found, client_id, url, body, tries + 1, command.again_at_ms))
    tx.after_commit(Failpoint.OUTBOX_CLAIMED)
    return claimed


def write_outcome(tx: Tx, command: Outcome) -> bool:
    """Writes what came of a try; False, with nothing written, if there was a later one or it is written already."""
    changed = tx.execute(
        WRITE_OUTCOME,
        {
            "id": command.message_id,
            "tries": command.number,
            "state": command.verdict.state,
            "next_at_ms": command.verdict.next_at_ms,
            "last_answer": command.verdict.last_answer,
            "now_ms": command.now_ms,
        },
    )
    passing(Failpoint.OUTBOX_WRITTEN)
    tx.after_commit(Failpoint.OUTBOX_COMMITTED)
    return changed == 1


def read_messages(tx: Tx, *, state: str, client_id: str, before: str, limit: int) -> list[MessageRow]:
    """A page of messages, newest first, older than the id `before`; empty filters take all."""
    params = {"state": state, "before": before or _LAST_ID, "limit": limit}
    if not client_id:
        return [MessageRow.of(row) for row in tx.rows(PAGE, params)]
    return [MessageRow.of(row) for row in tx.rows(PAGE_OF_CLIENT, {**params, "client_id": client_id})]


def read_backlog(tx: Tx) -> dict[str, int]:
    """How many messages there are in each state that isn't over, each counted up to a bound."""
    waiting = tx.row(COUNT_WAITING, {"limit": WEBHOOKS_COUNTED_MAX})
    owed = tx.row(COUNT_OWED, {"limit": WEBHOOKS_COUNTED_MAX})
    assert waiting is not None
    assert owed is not None
    due, unconfirmed = owed
    return {"waiting": waiting[0], "pending": due - unconfirmed, "unconfirmed": unconfirmed}


def prune_messages(tx: Tx, command: PruneMessages) -> int:
    """Removes at most `limit` messages past their time and never one that is still to be sent; how many went."""
    found = tx.rows(OVER, {"before_ms": command.before_ms, "limit": command.limit})
    return sum(tx.execute(DELETE_OVER, {"id": one, "before_ms": command.before_ms}) for (one,) in found)


def find_problems(tx: Tx) -> Iterator[tuple[str, str]]:
    """Tasks, and what is wrong with their messages, for the checker.

    A message that still waits though its task has ended or is gone is none: an older release leaves it so.
    """
    after = ""
    while page := tx.rows(AUDIT_PAGE, {"after": after, "limit": PAGE_ITEMS_MAX}):
        for row in page:
            yield from ((row[1], problem) for problem in _problems_of(row))
        after = page[-1][0]


def _problems_of(row: Row) -> Iterator[str]:
    found, task_id, client_id, state, body, tries, owner, task_state, ended_at_ms, status = row
    if found != message_id(task_id):
        yield f"the webhook {found} is not named after its task"
    if tries == 0 and state in {MessageState.UNCONFIRMED, MessageState.DELIVERED}:
        yield f"the webhook is {state}, and no try is counted"
    if task_state is None:
        return  # deleted; the message stays until its own time is over
    if owner != client_id:
        yield "the webhook belongs to another client than its task"
    if state != MessageState.WAITING and not State(task_state).finished:
        yield f"the webhook is {state}, and its task has not ended"
    elif body and status is not None and body != message_body(task_id, status, ended_at_ms):
        yield "the webhook is not what the end of its task makes"
