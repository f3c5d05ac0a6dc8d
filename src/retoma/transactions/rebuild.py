"""Rebuild: the stored responses are derived again from the logs (requirement S-001c)."""

from __future__ import annotations

from dataclasses import dataclass, field

from retoma.core import events
from retoma.core.fold import Folded
from retoma.store.contract import Tx
from retoma.store.statements import statement
from retoma.transactions import log

FINISHED_PAGE = statement("tasks.finished_page")
WHOLE_RESPONSE = statement("responses.whole")
REPLACE_RESPONSE = statement("responses.replace")


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A page of the finished tasks, by id; the first begins after the empty one."""

    after: str
    limit: int


@dataclass(slots=True)
class Rebuilt:
    """The ids of a page whose stored response was missing or another one, and now is right."""

    differed: list[str] = field(default_factory=list[str])
    unreadable: list[str] = field(default_factory=list[str])
    """Tasks whose log can't be folded to an end; their rows were left as they are."""
    next_after: str | None = None
    """Where the next page begins; None after the last one."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A row of `responses`, without its id."""

    client_id: str
    status: str
    body: str
    last_seq: int
    completed_at_ms: int


def rebuild(tx: Tx, command: Rebuild) -> Rebuilt:
    """Compares one page of responses with what the logs add up to, and replaces those that differ.

    May be killed anywhere and run again; a second run finds no difference.
    """
    page = tx.rows(FINISHED_PAGE, {"after": command.after, "limit": command.limit})
    rebuilt = Rebuilt(next_after=page[-1][0] if len(page) == command.limit else None)
    for task_id, client_id, finished_at_ms in page:
        try:
            derived = derive_response(log.fold_log(tx, task_id), client_id, finished_at_ms)
        except (ValueError, KeyError, TypeError):
            rebuilt.unreadable.append(task_id)
            continue
        if read_stored_response(tx, task_id) != derived:
            _replace(tx, task_id, derived)
            rebuilt.differed.append(task_id)
    return rebuilt


def derive_response(folded: Folded, client_id: str, finished_at_ms: int) -> StoredResponse:
    """The row that belongs to a finished log; raises ValueError for an unfinished one."""
    if not folded.state.finished:
        raise ValueError(f"the log ends with a {folded.state} task")
    body = events.encode_json(folded.response)
    return StoredResponse(client_id, folded.response["status"], body, folded.last_seq, finished_at_ms)


def read_stored_response(tx: Tx, task_id: str) -> StoredResponse | None:
    """The row as it stands."""
    row = tx.row(WHOLE_RESPONSE, {"id": task_id})
    return StoredResponse(*row) if row else None


def _replace(tx: Tx, task_id: str, derived: StoredResponse) -> None:
    tx.execute(
        REPLACE_RESPONSE,
        {
            "id": task_id,
            "client_id": derived.client_id,
            "status": derived.status,
            "body": derived.body,
            "last_seq": derived.last_seq,
            "completed_at_ms": derived.completed_at_ms,
        },
    )
