"""Clients: who holds a token, until when, and when it was last used."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from retoma.core.scopes import SCOPES
from retoma.errors import Conflict, NotFound
from retoma.store.contract import Tx
from retoma.store.statements import statement

BY_TOKEN = statement("clients.by_token")
INSERT = statement("clients.insert")
READ = statement("clients.read")
PAGE = statement("clients.page")
REVOKE = statement("clients.revoke")
NOTE_USE = statement("clients.note_use")
_LAST_ID = "~"  # sorts after every id
_CLIENT_ID = re.compile(r"cli_[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Client:
    """A client and what it may do."""

    id: str
    name: str
    scopes: frozenset[str]


# It has no row: its token lies in the data directory, and whoever can read that is the operator.
LOCAL_CLIENT = Client("cli_local", "this machine's command line", frozenset(SCOPES))


@dataclass(frozen=True, slots=True)
class ClientRow:
    """A client as it stands in the store. `scopes` is JSON; `last_used_at_ms` may be a minute late."""

    id: str
    name: str
    scopes: str
    created_at_ms: int
    last_used_at_ms: int | None
    revoked_at_ms: int | None

    @property
    def scope_list(self) -> list[str]:
        """The scopes, decoded."""
        return json.loads(self.scopes)


def is_client_id(text: str) -> bool:
    """It can be the id of a paired client."""
    return _CLIENT_ID.fullmatch(text) is not None


def add_client(tx: Tx, client: Client, token_hash: bytes, now_ms: int) -> None:
    """Stores a client with the SHA-256 of its token."""
    tx.execute(
        INSERT,
        {
            "id": client.id,
            "name": client.name,
            "token_hash": token_hash,
            "scopes": encode_scopes(client.scopes),
            "now_ms": now_ms,
        },
    )


def encode_scopes(scopes: Iterable[str]) -> str:
    """How scopes are stored."""
    return json.dumps(sorted(scopes))


def decode_client(row: tuple[Any, ...]) -> Client:
    """A client from its id, its name and its stored scopes."""
    return Client(row[0], row[1], frozenset(json.loads(row[2])))


def read_client(tx: Tx, token_hash: bytes) -> Client | None:
    """The client whose token has this SHA-256; None also for one that is revoked."""
    row = tx.row(BY_TOKEN, {"token_hash": token_hash})
    return decode_client(row) if row else None


def find_client(tx: Tx, client_id: str) -> ClientRow | None:
    """One client, revoked or not."""
    row = tx.row(READ, {"id": client_id})
    return ClientRow(*row) if row else None


def read_clients(tx: Tx, *, before: str, limit: int, revoked_too: bool) -> list[ClientRow]:
    """A page of clients, newest first, older than the id `before`; an empty one begins with the newest."""
    params = {"before": before or _LAST_ID, "limit": limit, "revoked_too": int(revoked_too)}
    return [ClientRow(*row) for row in tx.rows(PAGE, params)]


def revoke_client(tx: Tx, client_id: str, now_ms: int) -> None:
    """Takes the client's token away: from the commit on no instance knows it. Its tasks stay and go on.

    Again it changes nothing. Raises NotFound, or Conflict for the local command line.
    """
    if client_id == LOCAL_CLIENT.id:
        raise Conflict("this machine's command line can't be revoked; remove admin.token and start the service again")
    if not is_client_id(client_id) or find_client(tx, client_id) is None:
        raise NotFound(f"there is no client {client_id[:64]}; `retoma clients list` shows those that there are")
    tx.execute(REVOKE, {"id": client_id, "now_ms": now_ms})


def read_revoked(tx: Tx, client_ids: Iterable[str]) -> list[str]:
    """Those of these clients that may do nothing any more."""
    rows = {client_id: find_client(tx, client_id) for client_id in client_ids}
    return [client_id for client_id, row in rows.items() if row is None or row.revoked_at_ms is not None]


def note_uses(tx: Tx, used_at_ms: Mapping[str, int]) -> None:
    """Writes when each of these clients was last seen; never an earlier time over a later one.

    The rows are locked in the order of their ids, so that instances that write at once wait for each other in a line.
    """
    for client_id, at_ms in sorted(used_at_ms.items()):
        tx.execute(NOTE_USE, {"id": client_id, "used_at_ms": at_ms})
