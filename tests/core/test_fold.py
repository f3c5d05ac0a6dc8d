"""A log adds up to the state and the text that it was made from."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retoma.core import events
from retoma.core.events import EventDraft, draft, pack_tokens
from retoma.core.fold import Folded, fold
from retoma.core.output import Output
from retoma.core.task import State

PIECES = st.lists(st.tuples(st.text(max_size=5), st.lists(st.integers(0, 100_000), max_size=3)), max_size=12)


def lifecycle(event_type: str, state: State) -> EventDraft:
    return draft(event_type, {"response": {"id": "resp_1", "task": {"state": state}}})


BEGINNING = [lifecycle(events.CREATED, State.QUEUED), lifecycle(events.QUEUED, State.QUEUED)]
RUNNING = [*BEGINNING, lifecycle(events.IN_PROGRESS, State.RUNNING)]
COMPLETED = lifecycle(events.COMPLETED, State.COMPLETED)


def rows(drafts: list[EventDraft], first: int = 0) -> list[tuple[int, str, str, bytes]]:
    return [(seq, one.type, one.body, pack_tokens(one.tokens)) for seq, one in enumerate(drafts, first)]


def test_no_events_add_up_to_a_task_that_is_not_there_yet() -> None:
    assert fold([]) == Folded(State.QUEUED, -1)


@pytest.mark.parametrize("seqs", [[1], [0, 2], [0, 0], [0, 1, 3]])
def test_a_gap_or_a_repetition_is_refused(seqs: list[int]) -> None:
    log = [(seq, *row[1:]) for seq, row in zip(seqs, rows(RUNNING), strict=False)]
    with pytest.raises(ValueError, match="follows event"):
        fold(log)


def test_nothing_follows_the_terminal_event() -> None:
    with pytest.raises(ValueError, match="event 4 follows the terminal event"):
        fold(rows([*RUNNING, COMPLETED, lifecycle(events.CANCELLED, State.CANCELLED)]))


@pytest.mark.parametrize(
    "wrong", [lifecycle(events.COMPLETED, State.RUNNING), lifecycle(events.IN_PROGRESS, State.COMPLETED)]
)
def test_a_terminal_event_and_a_finished_state_come_together(wrong: EventDraft) -> None:
    with pytest.raises(ValueError, match="but leaves the task"):
        fold(rows([*RUNNING, wrong]))


@given(PIECES, st.booleans())
def test_the_text_and_the_tokens_come_back_however_they_were_split(
    pieces: list[tuple[str, list[int]]], closed: bool
) -> None:
    written = Output()
    drafts = [one for text, tokens in pieces for one in written.append(text, tokens, "msg_1")]
    if closed:
        drafts += written.close("completed", [5], "msg_1")
    folded = fold(rows([*RUNNING, *drafts])).output
    assert folded.text == written.text == "".join(text for text, _ in pieces)
    assert folded.tokens == written.tokens == [t for _, tokens in pieces for t in tokens] + [5] * closed
    assert folded.closed is closed
    assert folded.items("completed") == written.items("completed")


@given(PIECES, PIECES)
def test_an_output_that_was_folded_goes_on_like_the_one_that_wrote_it(
    before: list[tuple[str, list[int]]], after: list[tuple[str, list[int]]]
) -> None:
    whole = Output()
    drafts = [one for text, tokens in before for one in whole.append(text, tokens, "msg_1")]
    resumed = fold(rows([*RUNNING, *drafts])).output
    for text, tokens in after:
        assert resumed.append(text, tokens, "msg_1") == whole.append(text, tokens, "msg_1")
    assert resumed.close("completed", [], "msg_1") == whole.close("completed", [], "msg_1")


def test_a_token_without_text_is_in_the_log() -> None:
    output = Output()
    drafts = [*output.append("", [9], "msg_1"), *output.append("x", [10], "msg_1")]
    assert fold(rows([*RUNNING, *drafts])).output.tokens == [9, 10]


def test_a_retry_drops_the_output_so_far() -> None:
    output = Output()
    drafts = output.append("lost", [1, 2], "msg_1")
    folded = fold(rows([*RUNNING, *drafts, lifecycle(events.QUEUED, State.QUEUED)]))
    assert (folded.output, folded.state) == (Output(), State.QUEUED)


def test_the_message_is_opened_once_with_its_first_text_and_closed_with_its_whole_text() -> None:
    output = Output()
    types = [one.type for one in output.append("a", [1], "msg_1") + output.append("b", [2], "msg_2")]
    assert types == [events.ITEM_ADDED, events.PART_ADDED, events.TEXT_DELTA, events.TEXT_DELTA]
    done = output.close("completed", [], "msg_3")
    assert [one.type for one in done] == [events.TEXT_DONE, events.PART_DONE, events.ITEM_DONE]
    assert output.items("completed") == [
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "ab", "annotations": [], "logprobs": []}],
        }
    ]


def test_an_output_without_text_is_an_empty_message_only_once_it_was_opened() -> None:
    output = Output()
    assert output.items("incomplete") == []
    types = [one.type for one in output.close("completed", [], "msg_1")]
    assert types == [events.ITEM_ADDED, events.PART_ADDED, events.TEXT_DONE, events.PART_DONE, events.ITEM_DONE]
    assert output.items("completed")[0]["content"][0]["text"] == ""


def test_the_fold_keeps_the_last_response_that_an_event_showed() -> None:
    response: dict[str, Any] = fold(rows([*RUNNING, COMPLETED])).response
    assert response["task"]["state"] == "completed"
