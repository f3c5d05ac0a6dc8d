"""Both halves of retention in one transaction, for tests that want a command which looks and deletes at once."""

from __future__ import annotations

from dataclasses import dataclass

from retoma.store.contract import Tx
from retoma.transactions import prune as halves


@dataclass(frozen=True)
class Prune:
    """At most `limit` tasks of this retention that ended before an instant."""

    retention: str
    before_ms: int
    now_ms: int
    limit: int


def prune(tx: Tx, command: Prune) -> list[str]:
    """The ids of those that went, oldest first."""
    window = halves.Window(command.retention, command.before_ms, command.now_ms)
    found: list[str] = []
    after: halves.Place | None = halves.Place()
    while after is not None and len(found) < command.limit:
        page = halves.find_expired(tx, window, after, command.limit)
        found, after = found + page.task_ids, page.next_after
    return halves.prune(tx, halves.Prune(window, found[: command.limit]))
