"""The audit finds every way in which a log can be wrong, and nothing in one that is right."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from retoma.core import events
from retoma.core.audit import LoggedEvent, Problem, audit
from retoma.core.events import EventDraft, draft, pack_tokens
from retoma.core.output import Output
from retoma.core.task import State

RESTART = {"at": 1, "from": "running", "cause": "server_restarted", "path": None}


def shown(event_type: str, state: str, version: int, **changes: Any) -> EventDraft:
    task = {"state": state, "version": version, "attempt": 1, "instance": "a", "restarts": []} | changes
    return draft(event_type, {"response": {"id": "resp_1", "task": task}})


def whole_log() -> list[EventDraft]:
    """Accepted, claimed by `a`, running, taken over by `b`, continued, completed."""
    output = Output()
    taken = {"attempt": 2, "instance": "b", "restarts": [RESTART]}
    return [
        shown(events.CREATED, "queued", 1),
        shown(events.QUEUED, "queued", 1),
        shown(events.IN_PROGRESS, "loading", 2),
        shown(events.IN_PROGRESS, "running", 3),
        *output.append("x", [1], "msg_1"),
        shown(events.IN_PROGRESS, "running", 4, **taken),
        shown(events.IN_PROGRESS, "running", 5, **taken | {"restarts": [RESTART | {"path": "snapshot"}]}),
        *output.append("y", [2], "msg_1"),
        shown(events.COMPLETED, "completed", 6, **taken),
    ]


def logged(drafts: list[EventDraft]) -> list[LoggedEvent]:
    return [(seq, one.type, one.body, pack_tokens(one.tokens), f"op-{max(1, seq)}") for seq, one in enumerate(drafts)]


def problems(log: list[LoggedEvent]) -> list[tuple[str, int | None]]:
    return [(problem.invariant, problem.seq) for problem in audit(log).problems]


def test_a_right_log_has_no_problem_and_shows_each_grant_of_ownership() -> None:
    audited = audit(logged(whole_log()))
    assert audited.problems == []
    assert audited.grants == 2
    assert audited.folded is not None
    assert audited.folded.state is State.COMPLETED


def changed_task(seq: int, **changes: Any) -> Callable[[list[LoggedEvent]], None]:
    def change(log: list[LoggedEvent]) -> None:
        number, event_type, body, tokens, op_id = log[seq]
        fields = json.loads(body)
        fields["response"]["task"] |= changes
        log[seq] = (number, event_type, json.dumps(fields), tokens, op_id)

    return change


def changed(seq: int, **changes: Any) -> Callable[[list[LoggedEvent]], None]:
    def change(log: list[LoggedEvent]) -> None:
        names = ("seq", "type", "body", "tokens", "op_id")
        fields = dict(zip(names, log[seq], strict=True)) | changes
        log[seq] = tuple(fields[name] for name in names)  # pyright: ignore[reportArgumentType]

    return change


WRONG: list[tuple[str, Callable[[list[LoggedEvent]], None], tuple[str, int]]] = [
    ("a gap", lambda log: log.pop(4) and None, ("I2", 5)),
    ("a body that is no JSON", changed(5, body="{"), ("I2", 5)),
    ("a response without a task", changed(3, body='{"response":{}}'), ("I2", 3)),
    ("tokens that are no whole numbers", changed(6, tokens=b"abc"), ("I2", 6)),
    ("another beginning", changed(1, type=events.IN_PROGRESS), ("I2", 1)),
    ("an event after the end", lambda log: log.append((11, events.CANCELLED, "{}", b"", "op-11")), ("I2", 11)),
    ("an operation that wrote twice", changed(8, op_id="op-5"), ("I5", 8)),
    ("an event that shows another state", changed_task(2, state="queued"), ("I3", 2)),
    ("a move that no command makes", changed_task(3, state="cancelling"), ("I4", 7)),
    ("a version that stands still", changed_task(3, version=2), ("I3", 3)),
    ("an attempt that falls", changed_task(8, attempt=1), ("I6", 8)),
    ("an owner without a grant", changed_task(3, instance="b"), ("I6", 3)),
    ("output of a task that does not run", changed_task(3, state="loading"), ("I3", 4)),
]


@pytest.mark.parametrize(("change", "expected"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_wrong_log_is_noticed(change: Callable[[list[LoggedEvent]], None], expected: tuple[str, int]) -> None:
    log = logged(whole_log())
    change(log)
    assert expected in problems(log)


def test_output_before_any_lifecycle_event_is_noticed() -> None:
    output = Output().append("x", [1], "msg_1")
    assert ("I3", 0) in problems(logged(output))


def test_a_task_without_events_is_noticed() -> None:
    assert audit([]).problems == [Problem("I3", None, "the task has no events")]


@pytest.mark.parametrize(
    ("later", "grants"),
    [
        (shown(events.QUEUED, "queued", 2), 1),  # a queued task was taken over
        (shown(events.CANCELLED, "cancelled", 2), 0),  # a client cancelled it
        (shown(events.FAILED, "failed", 2, restarts=[RESTART]), 1),  # a restart failed it
    ],
)
def test_a_grant_is_seen_where_a_rescuer_wrote(later: EventDraft, grants: int) -> None:
    audited = audit(logged([*whole_log()[:2], later]))
    assert (audited.problems, audited.grants) == ([], grants)
