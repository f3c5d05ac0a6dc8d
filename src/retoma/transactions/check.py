"""Check: every invariant that can be seen in a store's rows. Nothing here changes anything.

The store itself is looked at by its driver (`SqliteStore.integrity_problems`, `migrate.schema_problems`), the files
beside it by `check_files`. Memory is bounded: tasks and events are read in pages, and the findings have a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from retoma.core.audit import Audited, LoggedEvent, audit
from retoma.core.fold import Folded
from retoma.limits import EVENTS_PAGE_MAX, PAGE_ITEMS_MAX, RESTARTS_KEPT_MAX
from retoma.store.contract import Tx
from retoma.store.rows import TaskRow
from retoma.store.statements import statement
from retoma.transactions import outbox
from retoma.transactions.check_clients import client_problems
from retoma.transactions.log import task_extension
from retoma.transactions.rebuild import derive_response, read_stored_response

TASKS = statement("tasks.audit_page")
EVENTS = statement("task_events.audit_page")
ORPHAN_EVENTS = statement("task_events.orphans")
ORPHAN_RESPONSES = statement("responses.orphans")
ORPHAN_KEYS = statement("idempotency_keys.orphans")
ORPHAN_SNAPSHOTS = statement("snapshots.orphans")
FINDINGS_MAX = 1_000

_ORPHANS = (
    (ORPHAN_EVENTS, "I3", "there are events of a task that is not there"),
    (ORPHAN_RESPONSES, "I8", "there is a response of a task that is not there or has not ended"),
    (ORPHAN_KEYS, "I5", "an idempotency key names a task that is not there or belongs to another client"),
    (ORPHAN_SNAPSHOTS, "I8", "there is a snapshot of a task that is not under way, or under a later fencing token"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken invariant, named as in reliability.md, and where."""

    invariant: str
    task_id: str
    seq: int | None
    message: str


@dataclass(frozen=True, slots=True)
class CheckedPage:
    """What a page of tasks showed; `next_after` is None after the last page."""

    findings: list[Finding]
    next_after: str | None


def check(tx: Tx) -> list[Finding]:
    """All of the store in one consistent view: an empty list, or at most `FINDINGS_MAX` findings."""
    findings = check_references(tx)
    after: str | None = ""
    while after is not None and len(findings) < FINDINGS_MAX:
        page = check_tasks(tx, after)
        findings += page.findings
        after = page.next_after
    return findings[:FINDINGS_MAX]


def check_tasks(tx: Tx, after: str, limit: int = PAGE_ITEMS_MAX) -> CheckedPage:
    """The tasks whose ids follow `after`, with logs and responses; a running service may be checked page by page."""
    tasks = [TaskRow.of(row) for row in tx.rows(TASKS, {"after": after, "limit": limit})]
    findings = [finding for task in tasks for finding in _check_task(tx, task)]
    return CheckedPage(findings, tasks[-1].id if len(tasks) == limit else None)


def check_references(tx: Tx) -> list[Finding]:
    """Rows that name a task which is not there or in the wrong state, and webhooks that don't fit their tasks.

    Clients and their codes too, which belong to no task.
    """
    found = [
        Finding(invariant, task_id, None, message)
        for orphans, invariant, message in _ORPHANS
        for (task_id,) in tx.rows(orphans, {"limit": FINDINGS_MAX})
    ]
    webhooks = (Finding("I10", task_id, None, message) for task_id, message in outbox.find_problems(tx))
    people = (Finding("S-001", name, None, message) for name, message in client_problems(tx))
    return [*found, *islice(webhooks, FINDINGS_MAX), *islice(people, FINDINGS_MAX)]


def _check_task(tx: Tx, task: TaskRow) -> Iterator[Finding]:
    audited = audit(_read_log(tx, task.id))
    for problem in audited.problems:
        yield Finding(problem.invariant, task.id, problem.seq, problem.message)
    if not task.state.finished and not task.instance_id:
        yield Finding("I6", task.id, None, f"nobody owns this {task.state} task")
    if audited.folded is None:
        return
    for invariant, message in _row_against_log(task, audited, audited.folded):
        yield Finding(invariant, task.id, task.last_seq, message)
    for invariant, message in _response_against_log(tx, task, audited.folded):
        yield Finding(invariant, task.id, task.last_seq, message)


def _read_log(tx: Tx, task_id: str) -> Iterator[LoggedEvent]:
    after = -1
    while rows := tx.rows(EVENTS, {"task_id": task_id, "after": after, "limit": EVENTS_PAGE_MAX}):
        yield from ((seq, event_type, body, tokens, op_id) for seq, event_type, body, tokens, op_id in rows)
        after = rows[-1][0]


def _row_against_log(task: TaskRow, audited: Audited, folded: Folded) -> Iterator[tuple[str, str]]:
    if task.last_seq != folded.last_seq:
        yield "I2", f"the row ends at event {task.last_seq}, the log at {folded.last_seq}"
    if task.state is not folded.state:
        yield "I2", f"the row says {task.state}, the log adds up to {folded.state}"
    if task.tokens != len(folded.output.tokens):
        yield "I2", f"the row counts {task.tokens} tokens, the log {len(folded.output.tokens)}"
    shown: dict[str, Any] = folded.response.get("task", {})
    for name, value in task_extension(task).items():
        if name not in {"state", "queue_position"} and shown.get(name) != value:
            yield "I3", f"the row's {name} is {value!r}, the last event showed {shown.get(name)!r}"
    # The oldest restarts are dropped from the list in the end, and with them the trace of some grants.
    exact = len(task.restart_list) < RESTARTS_KEPT_MAX
    if task.fencing_token < audited.grants or (exact and task.fencing_token != audited.grants):
        yield "I6", f"the fencing token is {task.fencing_token}, the log shows {audited.grants} grants"


def _response_against_log(tx: Tx, task: TaskRow, folded: Folded) -> Iterator[tuple[str, str]]:
    if not task.state.finished or not folded.state.finished:
        return  # a response without its end is an orphan, and a state that differs has been reported
    assert task.finished_at_ms is not None, "a CHECK of the table"
    stored = read_stored_response(tx, task.id)
    if stored is None:
        yield "I4", f"the {task.state} task has no response"
    elif stored != derive_response(folded, task.client_id, task.finished_at_ms):
        yield "I4", "the stored response is not what the log adds up to"
    if _text_of(folded.response) != folded.output.text:
        yield "I2", "the terminal event's output is not the text that the log adds up to"


def _text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])
