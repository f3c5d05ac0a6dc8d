"""Clients: their names for the lists of tasks, and the page on which one is revoked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from retoma.http.guard import Caller
from retoma.store.contract import Tx
from retoma.transactions.clients import LOCAL_CLIENT, ClientRow, find_client

CLIENTS_SHOWN = 50


def names_of(tx: Tx, client_ids: Iterable[str]) -> Mapping[str, str]:
    """The names of these clients, by id; one that is not in the store any more is left out."""
    found = {client_id: find_client(tx, client_id) for client_id in set(client_ids) - {LOCAL_CLIENT.id}}
    return {LOCAL_CLIENT.id: LOCAL_CLIENT.name, **{row.id: row.name for row in found.values() if row is not None}}


@dataclass(frozen=True, slots=True)
class ClientPage:
    """A page of clients, newest first. `me` is the client that this browser is; `next_after` is empty on the last."""

    clients: list[ClientRow]
    after: str
    next_after: str
    me: str
    now_ms: int
    local: str = LOCAL_CLIENT.name
    local_id: str = LOCAL_CLIENT.id


async def see_clients(caller: Caller, after: str) -> ClientPage:
    """Clients that are older than the id `after`, the revoked ones too."""
    service = caller.service
    found = await service.clients.page(after, CLIENTS_SHOWN + 1, revoked_too=True)
    shown = found[:CLIENTS_SHOWN]
    next_after = shown[-1].id if len(found) > CLIENTS_SHOWN else ""
    return ClientPage(shown, after, next_after, caller.client.id, service.clock.wall_ms())
