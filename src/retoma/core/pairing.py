"""Pairing codes: how one is written, what the store keeps of it, and what a try to use one does.

A code is read off one screen and typed on another, so no two of its characters are taken for each other: without 0 and
O, without 1, I and L, and without U, which is taken for V. Thirty are left; eight of them make 6.6 · 10¹¹ codes. Of
those at most 16 are open at once, and the fifth wrong try ends them all, so whoever guesses has one chance in eight
thousand million before somebody has to make a new code.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from retoma.limits import CLIENT_NAME_CHARS_MAX, PAIRING_WRONG_TRIES_MAX

ALPHABET = "23456789ABCDEFGHJKMNPQRSTVWXYZ"
CODE_CHARS = 8
_SEPARATORS = re.compile(r"[\s\-\u2010-\u2015]+")


def code_of(key: bytes) -> str:
    """A code of 32 random bytes: their number modulo that of the codes, which favours none by more than 2⁻²¹⁶."""
    number, code = int.from_bytes(key), ""
    for _ in range(CODE_CHARS):
        number, place = divmod(number, len(ALPHABET))
        code += ALPHABET[place]
    return code


def normalised(typed: str) -> str:
    """The code that somebody has typed: small letters, spaces and dashes make no difference."""
    return _SEPARATORS.sub("", typed).upper()


def spaced(code: str) -> str:
    """The code as people read it: `ABCD-EFGH`."""
    middle = CODE_CHARS // 2
    return f"{code[:middle]}-{code[middle:]}"


def token_of(key: bytes) -> str:
    """A bearer token of these random bytes; its beginning lets people and scanners of secrets see what it is."""
    return f"rt_{base64.urlsafe_b64encode(key).decode().rstrip('=')}"


def hash_of(pairing_id: str, code: str) -> bytes:
    """What is stored: the SHA-256 of the id and the code, so that equal codes don't look equal."""
    return hashlib.sha256(f"{pairing_id} {code}".encode()).digest()


def is_name(value: object) -> bool:
    """What a client may be called: something that a line of a table can show."""
    if not isinstance(value, str) or not 0 < len(value) <= CLIENT_NAME_CHARS_MAX:
        return False
    return value.isprintable() and value == value.strip()


@dataclass(frozen=True, slots=True)
class Pairing:
    """A code that was given out. `scopes` is JSON; an empty name leaves the choice to whoever uses the code."""

    id: str
    code_hash: bytes
    name: str
    scopes: str
    wrong_tries: int
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class Tried:
    """What a try does: the pairing it uses, if it fits one, those that are over now, and those it counts against."""

    used: Pairing | None
    over: tuple[str, ...]
    counted: tuple[str, ...]


def decide_try(pairings: Sequence[Pairing], fits: Sequence[bool], now_ms: int) -> Tried:
    """A code that fits uses its pairing up; one that fits none counts against every open one, for it may be any.

    `fits` says of each pairing whether its hash is that of the code that was tried.
    """
    expired = tuple(pairing.id for pairing in pairings if pairing.expires_at_ms <= now_ms)
    for pairing, fit in zip(pairings, fits, strict=True):
        if fit and pairing.id not in expired:
            return Tried(pairing, (*expired, pairing.id), ())
    tries = {pairing.id: pairing.wrong_tries + 1 for pairing in pairings if pairing.id not in expired}
    exhausted = tuple(name for name, count in tries.items() if count >= PAIRING_WRONG_TRIES_MAX)
    return Tried(None, expired + exhausted, tuple(name for name in tries if name not in exhausted))
