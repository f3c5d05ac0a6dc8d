"""Clients of a running service, written into its store as `retoma clients` does it, without a process for each."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

from retoma.clock import SystemClock
from retoma.core.pairing import code_of
from retoma.ids import SystemIds
from retoma.store.contract import Tx
from retoma.store.sqlite import SqliteStore
from retoma.transactions.clients import Client, add_client
from retoma.transactions.pairings import OpenPairing, open_pairing
from tests.support.service import RunningService

_IDS = SystemIds(SystemClock())


def new_client(service: RunningService, *scopes: str) -> tuple[str, str]:
    """Id and token of a new client called `a phone`."""
    token = secrets.token_urlsafe(16)
    client = Client(_IDS.new("cli"), "a phone", frozenset(scopes))
    digest = hashlib.sha256(token.encode()).digest()
    _write(service, partial(add_client, client=client, token_hash=digest, now_ms=SystemClock().wall_ms()))
    return client.id, token


def new_code(service: RunningService, *scopes: str) -> str:
    """A one-time code."""
    code = code_of(_IDS.key())
    command = OpenPairing(_IDS.new("pair"), code, "", frozenset(scopes), SystemClock().wall_ms())
    _write(service, partial(open_pairing, command=command))
    return code


def _write(service: RunningService, change: Callable[[Tx], Any]) -> None:
    store = SqliteStore(service.data_dir / "retoma.db")
    try:
        store.transact(change)
    finally:
        store.close()
