from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retoma.engines.text import Group, TextAssembler

_WHOLE = "a\u00e9漢🌊 stop STOP abab\n".encode()
PIECES = st.lists(
    st.one_of(
        st.binary(max_size=3),
        st.sampled_from(
            [b"a", b"b", b"ab", b"", b" the", b"\xf0\x9f", b"\x8c\x8a", b"\xe6\xbc", b"\xa2", "é".encode()]
        ),
        st.integers(0, len(_WHOLE) - 1).map(lambda i: _WHOLE[i : i + 2]),
    ),
    max_size=40,
)
STOPS = st.lists(st.sampled_from(["ab", "aab", "abab", "é", "漢a", "the a", "b\ufffd", "🌊", "STOP"]), max_size=3)


def assemble(pieces: list[bytes], stop: list[str], committed: int = 0) -> list[Group]:
    """All groups, the last one being what `finish` gives; `committed` tokens are replayed first."""
    assembler = TextAssembler(stop)
    assembler.replay([(i, pieces[i]) for i in range(committed)])
    groups: list[Group] = []
    for token in range(committed, len(pieces)):
        if assembler.stopped:
            break
        group = assembler.push(token, pieces[token])
        groups += [group] if group is not None else []
    return [*groups, assembler.finish()]


def joined(groups: list[Group]) -> tuple[list[int], str]:
    return [token for group in groups for token in group.tokens], "".join(group.text for group in groups)


@given(PIECES, STOPS)
def test_the_text_is_what_decoding_everything_at_once_gives_up_to_the_first_stop_string(
    pieces: list[bytes], stop: list[str]
) -> None:
    tokens, text = joined(assemble(pieces, stop))
    whole = b"".join(pieces[: len(tokens)]).decode("utf-8", "replace")
    cuts = [at for at in (whole.find(word) for word in stop) if at >= 0]
    assert tokens == list(range(len(tokens)))
    if len(tokens) < len(pieces) or (cuts and text != whole):
        assert text == whole[: min(cuts)]
    else:
        assert text == whole


@given(PIECES, STOPS, st.data())
def test_after_any_number_of_committed_groups_the_text_goes_on_as_if_there_had_been_no_interruption(
    pieces: list[bytes], stop: list[str], data: st.DataObject
) -> None:
    groups = assemble(pieces, stop)
    kept = groups[: data.draw(st.integers(0, len(groups) - 1), label="groups committed")]
    tokens, text = joined(kept)
    more_tokens, more_text = joined(assemble(pieces, stop, committed=len(tokens)))
    assert (tokens + more_tokens, text + more_text) == joined(groups)


@given(st.lists(st.text(max_size=3), max_size=40), STOPS)
def test_no_more_than_what_may_be_a_stop_string_is_ever_withheld(texts: list[str], stop: list[str]) -> None:
    assembler = TextAssembler(stop)
    emitted = 0
    for token, text in enumerate(texts):
        group = assembler.push(token, text.encode())
        emitted += len(group.text) if group is not None else 0
        if assembler.stopped:
            return
        # A group ends with a token, so the token in which a stop string may begin waits as a whole.
        assert len("".join(texts[: token + 1])) - emitted < max(map(len, stop), default=1) + 3


def test_a_character_whose_bytes_are_spread_over_tokens_comes_with_its_last_token() -> None:
    assembler = TextAssembler()
    bytes_of_wave = [bytes([byte]) for byte in "🌊".encode()]
    assert [assembler.push(token, piece) for token, piece in enumerate(bytes_of_wave)] == [
        None,
        None,
        None,
        Group([0, 1, 2, 3], "🌊"),
    ]


def test_what_may_begin_a_stop_string_waits_and_comes_out_if_it_does_not() -> None:
    assembler = TextAssembler(["END"])
    assert assembler.push(1, b"the E") is None
    assert assembler.push(2, b"N") is None
    assert assembler.push(3, b"T") == Group([1, 2, 3], "the ENT")
    assert not assembler.stopped


def test_text_ends_before_a_stop_string_that_is_spread_over_tokens() -> None:
    assembler = TextAssembler(["END"])
    assert [assembler.push(1, b"the"), assembler.push(2, b" E"), assembler.push(3, b"ND of")] == [
        Group([1], "the"),
        None,
        None,
    ]
    assert assembler.stopped
    assert assembler.finish() == Group([2, 3], " ")


@pytest.mark.parametrize("tail", [b"\xf0\x9f\x8c", b"\xe6", b"\xff"])
def test_bytes_that_are_no_character_become_the_replacement_character_at_the_end_at_the_latest(tail: bytes) -> None:
    assembler = TextAssembler()
    group = assembler.push(1, tail)
    assert (group.text if group is not None else assembler.finish().text) == "\ufffd"


def test_replay_meets_the_stop_string_that_ended_the_text_before() -> None:
    assembler = TextAssembler(["END"])
    assembler.replay([(1, b"the E"), (2, b"ND")])
    assert assembler.stopped
    assert assembler.finish() == Group([], "")


def test_a_token_without_text_waits_for_the_next_text() -> None:
    assembler = TextAssembler()
    assert assembler.push(1, b"") is None
    assert assembler.push(2, b"x") == Group([1, 2], "x")
