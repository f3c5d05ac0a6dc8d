"""Pairings: one-time codes that make a client.

Whoever tries a code learns one bit, whether it fits, and pays for it: the hash is compared with that of every code that
was given out, in constant time and without an early end, and a try that fits none counts against all of them.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass

from retoma.core.pairing import Pairing, decide_try, hash_of
from retoma.errors import Conflict
from retoma.failpoints import Failpoint, passing
from retoma.limits import PAIRING_MS, PAIRINGS_OPEN_MAX
from retoma.store.contract import Tx
from retoma.store.statements import statement
from retoma.transactions.clients import Client, add_client, encode_scopes, find_client

INSERT = statement("pairings.insert")
LOCK = statement("pairings.lock")
COUNT = statement("pairings.count")
COUNT_TRY = statement("pairings.count_try")
DELETE = statement("pairings.delete")
_UNNAMED = "client"


@dataclass(frozen=True, slots=True)
class OpenPairing:
    """A code to give out, as core/pairing.py writes it."""

    pairing_id: str
    code: str
    name: str
    scopes: frozenset[str]
    now_ms: int


@dataclass(frozen=True, slots=True)
class UseCode:
    """A code that somebody has sent, normalised, and the client that it would make. `token_hash` is a SHA-256."""

    code: str
    client_id: str
    name: str
    token_hash: bytes
    now_ms: int


def open_pairing(tx: Tx, command: OpenPairing) -> int:
    """Writes the code's hash and sweeps codes that have expired; returns when this one will, in wall-clock time.

    Raises Conflict when too many are open. Driven again, it finds its id and writes nothing.
    """
    expires_at_ms = command.now_ms + PAIRING_MS
    for pairing in _locked(tx):
        if pairing.id == command.pairing_id:
            return pairing.expires_at_ms
        if pairing.expires_at_ms <= command.now_ms:
            tx.execute(DELETE, {"id": pairing.id})
    counted = tx.row(COUNT, {})
    assert counted is not None
    if counted[0] >= PAIRINGS_OPEN_MAX:
        raise Conflict(f"{PAIRINGS_OPEN_MAX} codes are open already; use one of them, or wait until one has expired")
    tx.execute(
        INSERT,
        {
            "id": command.pairing_id,
            "code_hash": hash_of(command.pairing_id, command.code),
            "name": command.name,
            "scopes": encode_scopes(command.scopes),
            "now_ms": command.now_ms,
            "expires_at_ms": expires_at_ms,
        },
    )
    return expires_at_ms


def use_code(tx: Tx, command: UseCode) -> Client | None:
    """Makes the client that the code is for, and uses the code up; None, and one wrong try counted, if it fits none.

    That nothing fits is an answer and no error, because the count has to be committed. If the process dies before the
    commit the code is as good as before; after it the client is there, and nobody knows its token unless the answer got
    out. Driven again after an unknown commit it finds its client; a wrong try may then be counted twice.
    """
    known = find_client(tx, command.client_id)
    if known is not None:
        return Client(known.id, known.name, frozenset(known.scope_list))
    pairings = _locked(tx)
    fits = [hmac.compare_digest(one.code_hash, hash_of(one.id, command.code)) for one in pairings]
    tried = decide_try(pairings, fits, command.now_ms)
    for pairing_id in tried.over:
        tx.execute(DELETE, {"id": pairing_id})
    for pairing_id in tried.counted:
        tx.execute(COUNT_TRY, {"id": pairing_id})
    if tried.used is None:
        return None
    scopes = frozenset[str](json.loads(tried.used.scopes))
    client = Client(command.client_id, command.name or tried.used.name or _UNNAMED, scopes)
    add_client(tx, client, command.token_hash, command.now_ms)
    passing(Failpoint.PAIR_WRITTEN)
    tx.after_commit(Failpoint.PAIR_COMMITTED)
    return client


def _locked(tx: Tx) -> list[Pairing]:
    return [Pairing(*row) for row in tx.rows(LOCK, {})]
