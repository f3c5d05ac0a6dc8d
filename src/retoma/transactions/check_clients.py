"""Check of the clients and of the codes that make them: what their rows alone can show to be wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from retoma.core.scopes import SCOPES
from retoma.limits import PAGE_ITEMS_MAX, PAIRING_MS, PAIRING_WRONG_TRIES_MAX
from retoma.store.contract import Tx
from retoma.store.statements import statement
from retoma.transactions.clients import ClientRow, read_clients

PAIRINGS = statement("pairings.audit")


def client_problems(tx: Tx) -> Iterator[tuple[str, str]]:
    """The id of each client or code that breaks a rule, and the rule, in a sentence."""
    for client in _clients(tx):
        if problem := _problem_of(client.scopes):
            yield client.id, problem
    for pairing_id, scopes, wrong_tries, created_at_ms, expires_at_ms in tx.rows(PAIRINGS, {}):
        if problem := _problem_of(scopes):
            yield pairing_id, problem
        if wrong_tries >= PAIRING_WRONG_TRIES_MAX:
            yield pairing_id, f"the code was guessed at {wrong_tries} times and is still there"
        if expires_at_ms - created_at_ms > PAIRING_MS:
            yield pairing_id, f"the code is good for more than {PAIRING_MS // 60_000} minutes"


def _clients(tx: Tx) -> Iterator[ClientRow]:
    before = ""
    while page := read_clients(tx, before=before, limit=PAGE_ITEMS_MAX, revoked_too=True):
        yield from page
        before = page[-1].id


def _problem_of(scopes: str) -> str | None:
    try:
        listed: Any = json.loads(scopes)
    except ValueError:
        listed = None
    if not isinstance(listed, list) or not listed:
        return f"its scopes are {scopes[:100]!r}, which is no list of any"
    unknown = [scope for scope in listed if scope not in SCOPES]  # pyright: ignore[reportUnknownVariableType] - JSON
    return f"its scope {unknown[0]!r} is unknown to this release" if unknown else None
