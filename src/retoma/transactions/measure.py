"""Measure: what all instances of a store have in common, in numbers. Nothing here changes anything.

It is read at every scrape, so its cost may grow with the queue, which is bounded, and never with what is finished.
"""

from __future__ import annotations

from collections import Counter

from retoma.core.task import UNFINISHED
from retoma.metrics import StoreSeen
from retoma.store.contract import Tx
from retoma.store.rows import InstanceRow
from retoma.store.statements import statement
from retoma.transactions import outbox
from retoma.transactions.instances import ALL

COUNT_WAITING = statement("tasks.count_waiting")
COUNT_UNDER_WAY = statement("tasks.count_under_way")
ACCEPTED_AT = statement("tasks.accepted_at")


def measure(tx: Tx, now_ms: int) -> StoreSeen:
    """The numbers of `metrics.STORED` that are in the store; `now_ms` is UTC, as in the tasks' rows."""
    waiting = tx.row(COUNT_WAITING, {})
    under_way = tx.row(COUNT_UNDER_WAY, {})
    assert waiting is not None
    assert under_way is not None
    counts = (waiting[0], *under_way)
    return {
        "retoma_tasks": {str(state): count for state, count in zip(UNFINISHED, counts, strict=True)},
        "retoma_queue_oldest_age_seconds": {"": _age_s(tx, waiting[1], now_ms)},
        "retoma_instances": _instances(tx),
        "retoma_webhooks": outbox.read_backlog(tx),
    }


def _age_s(tx: Tx, task_id: str | None, now_ms: int) -> float:
    row = tx.row(ACCEPTED_AT, {"id": task_id}) if task_id else None
    return max(0, now_ms - row[0]) / 1000 if row else 0.0


def _instances(tx: Tx) -> dict[str, float]:
    store_now_ms = tx.now_ms()
    states = Counter({"alive": 0, "expired": 0, "dead": 0})
    for row in tx.rows(ALL, {}):
        instance = InstanceRow(*row)
        expired = instance.state == "alive" and instance.lease_until_ms < store_now_ms
        states["expired" if expired else instance.state] += 1
    return dict(states)
