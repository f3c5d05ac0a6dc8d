"""Clients: who holds a token."""

from __future__ import annotations

import json
from dataclasses import dataclass

from retoma.store.contract import Tx
from retoma.store.statements import statement

BY_TOKEN = statement("clients.by_token")
INSERT = statement("clients.insert")


@dataclass(frozen=True, slots=True)
class Client:
    """A client and what it may do."""

    id: str
    name: str
    scopes: frozenset[str]


def add_client(tx: Tx, client: Client, token_hash: bytes, now_ms: int) -> None:
    """Stores a client with the SHA-256 of its token."""
    scopes = json.dumps(sorted(client.scopes))
    tx.execute(
        INSERT,
        {"id": client.id, "name": client.name, "token_hash": token_hash, "scopes": scopes, "now_ms": now_ms},
    )


def read_client(tx: Tx, token_hash: bytes) -> Client | None:
    """The client whose token has this SHA-256."""
    row = tx.row(BY_TOKEN, {"token_hash": token_hash})
    return Client(row[0], row[1], frozenset(json.loads(row[2]))) if row else None
