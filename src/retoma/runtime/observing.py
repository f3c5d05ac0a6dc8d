"""What tasks and attempts tell of themselves: counted after the commit, once for each, with the ids in the log."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager

from retoma import logs
from retoma.clock import Clock
from retoma.core.events import EventDraft
from retoma.core.response import Ending
from retoma.core.task import State
from retoma.store.contract import Tx
from retoma.store.rows import TaskRow
from retoma.telemetry import Telemetry
from retoma.tracing import Span
from retoma.transactions import log
from retoma.transactions.accept import Accepted
from retoma.transactions.cancel import Cancel, cancel

logger = logging.getLogger(__name__)
_EVENTS_OF_ACCEPTANCE = 2


def tell_accepted(telemetry: Telemetry, accepted: Accepted, span: Span) -> None:
    """A request has become a task, or had before."""
    logs.bind(task_id=accepted.task_id)
    span.set("retoma.task.id", accepted.task_id)
    span.set("retoma.replayed", accepted.replayed)
    if not accepted.replayed:
        telemetry.tracing.remember(accepted.task_id)
        telemetry.metrics.accepted.inc()
        telemetry.metrics.events.inc(_EVENTS_OF_ACCEPTANCE)


def cancel_once(tx: Tx, command: Cancel) -> tuple[TaskRow, bool]:
    """As `cancel`, and whether it changed anything: a cancel may be repeated at will."""
    before = log.lock_task(tx, command.task_id)
    after = cancel(tx, command)
    return after, after.version != before.version


def tell_cancelled(telemetry: Telemetry, task: TaskRow) -> None:
    """A cancel has changed this task; one that was queued has ended."""
    telemetry.metrics.events.inc()
    if task.state.finished:
        telemetry.metrics.finished.labels(State.CANCELLED).inc()


def tell_recovered(telemetry: Telemetry, task: TaskRow) -> None:
    """An unfinished task was moved, after the end of its instance or of its engine."""
    restart, metrics = task.restart_list[-1], telemetry.metrics
    metrics.recoveries.labels(restart["policy"], restart["from"], task.state, restart["cause"]).inc()
    metrics.events.inc()
    if task.state.finished:
        metrics.finished.labels(task.state).inc()
    # A long queue that only changes hands is no news.
    level = logging.DEBUG if task.state is State.QUEUED and restart["from"] == State.QUEUED else logging.INFO
    with logs.bound(task_id=task.id):
        old, policy, cause = restart["from"], restart["policy"], restart["cause"]
        logger.log(level, "moved from %s to %s by the policy %s: %s", old, task.state, policy, cause)


class Observer:
    """What one attempt tells of itself."""

    def __init__(self, telemetry: Telemetry, clock: Clock, task: TaskRow, instance_id: str) -> None:
        self._telemetry = telemetry
        self._metrics = telemetry.metrics
        self._clock = clock
        self._task = task
        self._instance_id = instance_id
        self._span = Span()
        self._tokens = 0
        self._no_output_yet = task.attempt == 1 and not task.tokens

    @contextmanager
    def attempting(self) -> Generator[None]:
        """Around the attempt: its ids are in the log and in its span."""
        about = {"retoma.task.id": self._task.id, "retoma.attempt": self._task.attempt}
        span = self._telemetry.tracing.span("attempt", about, after=self._task.id)
        with logs.bound(task_id=self._task.id, instance=self._instance_id), span as self._span:
            logger.debug("attempt %d begins, the task is %s", self._task.attempt, self._task.state)
            yield
            self._span.set("retoma.output_tokens", self._tokens)

    def started(self, path: str) -> None:
        """`running` is committed; `path` tells how the committed part came back."""
        self._metrics.events.inc()
        self._metrics.started.labels(path).inc()
        if path == "snapshot":
            self._metrics.snapshots_used.inc()
        self._span.set("retoma.resume.path", path)
        logger.info("attempt %d generates, from %s", self._task.attempt, path)

    def appending(self) -> AbstractContextManager[None]:
        """Around an append."""
        return self._telemetry.tracing.unnoticed()

    def appended(self, drafts: Sequence[EventDraft]) -> None:
        """Output is committed."""
        tokens = sum(len(event.tokens) for event in drafts)
        self._tokens += tokens
        self._metrics.events.inc(len(drafts))
        self._metrics.output_tokens.inc(tokens)
        if drafts and self._no_output_yet:
            self._no_output_yet = False
            waited_ms = self._clock.wall_ms() - self._task.created_at_ms
            self._metrics.first_token_s.observe(max(0, waited_ms) / 1000)

    def ended(self, ending: Ending, before: Sequence[EventDraft]) -> None:
        """The task is over; `before` is the output that was committed with its end."""
        self.appended(before)
        self._metrics.events.inc()
        self._metrics.finished.labels(ending.status).inc()
        self._span.set("retoma.outcome", ending.status)
        if ending.code:
            self._span.fail(ending.code)
        logger.info(
            "%s after %d tokens of this attempt%s", ending.status, self._tokens, f": {ending.code}" * bool(ending.code)
        )

    def crashed(self, code: str, moved: TaskRow) -> None:
        """The engine died, and the task is moved by its restart policy."""
        self._span.fail(code)
        tell_recovered(self._telemetry, moved)

    def registered(self) -> None:
        """A snapshot's row is committed."""
        self._metrics.snapshots_written.inc()

    def fenced(self) -> None:
        """The store refused a write: the task has another owner."""
        self._metrics.fenced_writes.inc()
