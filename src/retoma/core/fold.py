"""The fold of a log: what a task's events add up to. The state in the row must be the same (invariant I2)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from retoma.core import events
from retoma.core.output import Output
from retoma.core.task import State


@dataclass(slots=True)
class Folded:
    """The sum of a log's events."""

    state: State = State.QUEUED
    last_seq: int = -1
    output: Output = field(default_factory=Output)
    response: dict[str, Any] = field(default_factory=dict[str, Any])
    """The response as the last event that carried one showed it."""


def fold(log: Iterable[tuple[int, str, str, bytes]]) -> Folded:
    """Folds rows (sequence number, type, body, packed tokens) from number 0 on; raises ValueError for a misfit."""
    folded = Folded()
    for seq, event_type, body, tokens in log:
        if seq != folded.last_seq + 1:
            raise ValueError(f"event {seq} follows event {folded.last_seq}")
        if folded.state.finished:
            raise ValueError(f"event {seq} follows the terminal event")
        folded.last_seq = seq
        fields = json.loads(body)
        if event_type == events.QUEUED:
            folded.output = Output()  # a retry begins the text again
        response = fields.get("response")
        if response is not None:
            folded.response = response
            folded.state = State(response["task"]["state"])
        folded.output.fold(event_type, fields, events.unpack_tokens(tokens))
        if (event_type in events.TERMINAL) != folded.state.finished:
            raise ValueError(f"event {seq} is {event_type} but leaves the task {folded.state}")
    return folded
