"""Codes: no two characters alike, typed in any way the same, and what a try does."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from random import Random

import pytest

from retoma.core.pairing import (
    ALPHABET,
    CODE_CHARS,
    Pairing,
    code_of,
    decide_try,
    hash_of,
    is_name,
    normalised,
    spaced,
    token_of,
)
from retoma.core.scopes import ADMIN, DEFAULT_SCOPES, SCOPES
from retoma.limits import PAIRING_WRONG_TRIES_MAX

NOW_MS = 1_000_000


def pairing(name: str, wrong_tries: int = 0, left_ms: int = 1) -> Pairing:
    return Pairing(name, hash_of(name, "ABCDEFGH"), "", "[]", wrong_tries, NOW_MS + left_ms)


def test_a_code_has_no_two_characters_that_are_taken_for_each_other() -> None:
    for alike in ("0OQ", "1IL", "UV"):
        assert len(set(alike) & set(ALPHABET)) <= 1
    assert len(set(ALPHABET)) == len(ALPHABET) == 30
    assert not set("01IOUL") & set(ALPHABET)


def test_codes_are_of_eight_characters_and_use_all_of_them_alike(rng: Random) -> None:
    codes = [code_of(rng.randbytes(32)) for _ in range(3_000)]
    assert {len(code) for code in codes} == {CODE_CHARS} == {8}
    assert len(set(codes)) == len(codes)
    for place in range(CODE_CHARS):
        counts = Counter(code[place] for code in codes)
        assert counts.keys() == set(ALPHABET)
        assert min(counts.values()) > 50
        assert max(counts.values()) < 170


@pytest.mark.parametrize(
    "typed",
    ["ABCDEFGH", "abcdefgh", "ABCD-EFGH", "abcd efgh", " AbCd\u2013eFgH\n", "ABCD\u00a0EFGH", "a-b-c-d-e-f-g-h"],
)
def test_a_code_is_the_same_however_it_is_typed(typed: str) -> None:
    assert normalised(typed) == "ABCDEFGH"
    assert normalised(spaced("ABCDEFGH")) == "ABCDEFGH"


def test_what_is_stored_of_a_code_differs_with_the_pairing() -> None:
    assert hash_of("pair_1", "ABCDEFGH") != hash_of("pair_2", "ABCDEFGH")
    assert hash_of("pair_1", "ABCDEFGH") == sha256(b"pair_1 ABCDEFGH").digest()


def test_a_token_holds_all_256_bits() -> None:
    assert token_of(bytes(32)) == f"rt_{'A' * 43}"
    assert token_of(b"\xff" * 32) == f"rt_{'_' * 42}8"
    assert token_of(bytes(31) + b"\x01") != token_of(bytes(32))


def test_a_code_that_fits_uses_up_its_own_pairing_and_counts_against_no_other() -> None:
    pairings = [pairing("a"), pairing("b", wrong_tries=4), pairing("c")]
    tried = decide_try(pairings, [False, True, False], NOW_MS)
    assert (tried.used, tried.over, tried.counted) == (pairings[1], ("b",), ())


def test_a_wrong_code_counts_against_every_open_one_and_the_fifth_ends_it() -> None:
    pairings = [pairing(str(tries), wrong_tries=tries) for tries in range(PAIRING_WRONG_TRIES_MAX)]
    tried = decide_try(pairings, [False] * 5, NOW_MS)
    assert (tried.used, tried.over, tried.counted) == (None, ("4",), ("0", "1", "2", "3"))


def test_an_expired_code_is_swept_and_fits_no_more() -> None:
    pairings = [pairing("old", left_ms=0), pairing("new")]
    assert decide_try(pairings, [True, False], NOW_MS).used is None
    assert decide_try(pairings, [True, False], NOW_MS).over == ("old",)
    assert decide_try(pairings, [True, False], NOW_MS - 1).used == pairings[0]
    assert decide_try(pairings, [False, True], NOW_MS).over == ("old", "new")


def test_without_any_code_nothing_fits() -> None:
    assert decide_try([], [], NOW_MS).used is None


@pytest.mark.parametrize("name", ["x", "my phone", "Gerät 7 📱", "x" * 100])
def test_a_name_is_what_a_line_can_show(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", ["", " ", "a\nb", " a", "a ", "x" * 101, "\x1b[31m", 7, None, ["a"], "\ud800"])
def test_what_a_line_can_not_show_is_no_name(name: object) -> None:
    assert not is_name(name)


def test_a_new_client_gets_no_more_than_asking_and_reading_unless_told() -> None:
    assert ADMIN not in DEFAULT_SCOPES
    assert set(DEFAULT_SCOPES) < set(SCOPES)
