"""Named places where a test can make the process die, fail or stand still.

`RETOMA_FAILPOINT=NAME[@N][=kill|error|pause]` acts at the N-th passing of NAME (default: the first, with SIGKILL to the
process itself). Every step between two durable effects has a name here, so that a crash test can walk the whole list. A
name that starts with `snapshot.` or `engine.` is passed in the engine's process, every other in the service's.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from enum import Enum

ENVIRONMENT = "RETOMA_FAILPOINT"


class Failpoint(Enum):
    """One sentence each: what is already true when the process passes here."""

    ACCEPT_WRITTEN = ("accept.written", "The task, its first events and its key are written but not committed.")
    ACCEPT_COMMITTED = ("accept.committed", "The task is committed; the client has no answer yet.")
    CLAIM_WRITTEN = ("claim.written", "The task is `loading` under a new fencing token; not committed.")
    CLAIM_COMMITTED = ("claim.committed", "The claim is committed; the engine knows nothing yet.")
    START_WRITTEN = ("start.written", "`running` is written; not committed.")
    START_COMMITTED = ("start.committed", "`running` is committed; no output is.")
    APPEND_WRITTEN = ("append.written", "Output events are written; not committed.")
    APPEND_COMMITTED = ("append.committed", "Output events are committed; nobody was woken yet.")
    FINISH_WRITTEN = ("finish.written", "The terminal event and the response are written; not committed.")
    FINISH_COMMITTED = ("finish.committed", "The task is over; nobody was told.")
    REQUEUE_WRITTEN = ("requeue.written", "A task whose engine crashed is moved; not committed.")
    REQUEUE_COMMITTED = ("requeue.committed", "A task whose engine crashed is moved and committed.")
    CANCEL_WRITTEN = ("cancel.written", "`cancelling` or `cancelled` is written; not committed.")
    CANCEL_COMMITTED = ("cancel.committed", "The cancel is committed; the engine still generates.")
    RECOVER_WRITTEN = ("recover.written", "One left-behind task is moved; not committed.")
    RECOVER_COMMITTED = ("recover.committed", "One left-behind task is moved and committed; others may be waiting.")
    REGISTER_COMMITTED = ("register.committed", "The instance's row is committed; recovery has not begun.")
    DELETE_WRITTEN = ("delete.written", "A finished task's rows are deleted; not committed.")
    DELETE_COMMITTED = ("delete.committed", "A finished task's rows are gone; its snapshot files may be there.")
    PRUNE_WRITTEN = ("prune.written", "A batch of what has expired is deleted; not committed.")
    PRUNE_COMMITTED = ("prune.committed", "A batch of what has expired is gone; its files may be there.")
    OUTBOX_CLAIMED = ("outbox.claimed", "A webhook's try is counted and committed; nothing is sent.")
    OUTBOX_SENT = ("outbox.sent", "A webhook's receiver has answered; the outcome is not written.")
    OUTBOX_WRITTEN = ("outbox.written", "The outcome of a webhook's try is written; not committed.")
    OUTBOX_COMMITTED = ("outbox.committed", "The outcome of a webhook's try is committed.")
    PAIR_WRITTEN = ("pair.written", "A code is used up and its client is written; not committed.")
    PAIR_COMMITTED = ("pair.committed", "The client is committed; nobody was told its token.")
    SNAPSHOT_WRITTEN = ("snapshot.written", "The snapshot's temporary file is written and synced; not renamed.")
    SNAPSHOT_RENAMED = ("snapshot.renamed", "The snapshot has its final name; its directory is not synced.")
    SNAPSHOT_SYNCED = ("snapshot.synced", "The snapshot is durable; no row names it.")
    SNAPSHOT_ROW_WRITTEN = ("snapshot_row.written", "The snapshot's row is written; not committed.")
    SNAPSHOT_ROW_COMMITTED = ("snapshot_row.committed", "The snapshot's row is committed; older files are still there.")
    SNAPSHOT_ROWS_DROPPED = ("snapshot_row.dropped", "Rows of old snapshots are gone; their files are still there.")
    MODEL_STAGED = ("model.staged", "The model's bytes are staged and synced; not under their digest.")
    MODEL_RENAMED = ("model.renamed", "The model's file is under its digest; no row names it.")
    MODEL_ROW_WRITTEN = ("model_row.written", "The model's row is written; not committed.")
    MODEL_ROW_COMMITTED = ("model_row.committed", "The model's row is committed.")
    MODEL_ROW_REMOVED = ("model_row.removed", "The model's row is gone; its file is still there.")
    ENGINE_PREFILLED = ("engine.prefilled", "The prompt is decoded; no token is sampled.")
    ENGINE_TOKEN = ("engine.token", "A token is sampled; the service has not seen it.")

    @property
    def label(self) -> str:
        """The name that `RETOMA_FAILPOINT` takes."""
        return self.value[0]

    @property
    def sentence(self) -> str:
        """What is true when the process passes here."""
        return self.value[1]


class FailpointError(OSError):
    """What `=error` raises: an operating error at a place where one could happen."""


@dataclass
class _Armed:
    label: str
    passings_left: int
    action: str


def parse(text: str) -> _Armed:
    """Reads `NAME[@N][=ACTION]`; raises ValueError, which names what is wrong."""
    head, _, action = text.partition("=")
    label, _, count = head.partition("@")
    if label not in {point.label for point in Failpoint}:
        raise ValueError(f"unknown failpoint {label!r}; `retoma failpoints` lists them")
    if (action or "kill") not in {"kill", "error", "pause"}:
        raise ValueError(f"unknown action {action!r} in {text!r}; use kill, error or pause")
    if count and (not count.isdecimal() or int(count) < 1):
        raise ValueError(f"the passing after @ in {text!r} must be a number from 1 on")
    return _Armed(label, int(count or 1), action or "kill")


_armed: _Armed | None = None


def arm(text: str | None) -> None:
    """Sets or clears the failpoint of this process; raises ValueError for a text that names none."""
    global _armed  # noqa: PLW0603 - one failpoint per process is the point
    _armed = parse(text) if text else None


def arm_from_environment() -> None:
    """Called once at the start of every process of Retoma."""
    arm(os.environ.get(ENVIRONMENT))


def passing(point: Failpoint) -> None:
    """Marks that the process is at `point`; does nothing unless a test armed it."""
    if _armed is None or _armed.label != point.label:
        return
    _armed.passings_left -= 1
    if _armed.passings_left:
        return
    if _armed.action == "error":
        raise FailpointError(f"failpoint {point.label}")
    if _armed.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    # To this very thread: when another one takes the signal, this one runs on until that one is scheduled.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
