"""The bytes under which events are stored and sent."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retoma.core import events

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def test_an_event_is_sent_as_these_bytes_and_no_others() -> None:
    draft = events.draft(events.TEXT_DELTA, {"item_id": "msg_1", "delta": 'é "x" \\ \0 \n'})
    assert events.encode_event(draft.type, 7, draft.body).encode() == (
        b'{"type":"response.output_text.delta","sequence_number":7,'
        b'"item_id":"msg_1","delta":"\xc3\xa9 \\"x\\" \\\\ \\u0000 \\n"}'
    )


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1e", "\r", "\n"])
def test_no_character_ends_the_line_for_any_reader(separator: str) -> None:
    text = events.encode_json({"delta": f"one{separator}two é"})
    assert text.splitlines() == [text]
    assert json.loads(text) == {"delta": f"one{separator}two é"}


@given(st.dictionaries(st.text(), JSON, min_size=1, max_size=4), st.integers(0, 2**40))
def test_an_event_is_one_line_of_utf8_json_with_its_fields_in_order(fields: dict[str, object], seq: int) -> None:
    draft = events.draft("response.some", fields)
    sent = events.encode_event(draft.type, seq, draft.body)
    assert sent.splitlines() == [sent]
    assert sent.encode().decode() == sent
    names = [name for name, _ in json.loads(sent, object_pairs_hook=list)]
    assert names == ["type", "sequence_number", *fields]
    assert json.loads(draft.body) == fields
    assert events.encode_json(json.loads(draft.body)) == draft.body


def test_half_of_a_surrogate_pair_can_be_stored_and_comes_back() -> None:
    text = events.encode_json({"delta": "\ud83d and a whole one \U0001f600"})
    assert json.loads(text.encode()) == {"delta": "\ud83d and a whole one \U0001f600"}
    assert "\U0001f600" in text


def test_an_event_without_fields_is_a_mistake() -> None:
    with pytest.raises(AssertionError):
        events.draft("response.some", {})


def test_tokens_are_packed_as_four_bytes_little_endian() -> None:
    assert events.pack_tokens([1, 258, -1]) == bytes.fromhex("01000000 02010000 ffffffff")


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_packed_tokens_come_back(tokens: list[int]) -> None:
    assert events.unpack_tokens(events.pack_tokens(tokens)) == tokens


def test_every_status_of_a_finished_response_has_its_terminal_event() -> None:
    assert set(events.TERMINAL_BY_STATUS.values()) == events.TERMINAL
    assert {f"response.{status}" for status in events.TERMINAL_BY_STATUS} == events.TERMINAL
