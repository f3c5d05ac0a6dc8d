"""How the two databases differ, in a handful of words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """Words that stand in the SQL files as `$WORD`."""

    name: str
    words: Mapping[str, str]


# SQLite has one writer at a time, so a transaction that has begun to write already holds every lock.
SQLITE = Dialect("sqlite", {"FOR_UPDATE": "", "SKIP_LOCKED": ""})
POSTGRES = Dialect("postgres", {"FOR_UPDATE": "FOR UPDATE", "SKIP_LOCKED": "FOR UPDATE SKIP LOCKED"})
