"""Idempotency keys: hashed here, outside the store's transactions, and looked up before anything else is decided.

The look-up comes first so that a repeated request gets its first reply also when it couldn't be accepted any more: the
model was removed since, or the response it follows. The transaction looks again, and is what decides.
"""

from __future__ import annotations

import hashlib

from retoma.http.guard import Caller
from retoma.transactions.accept import Accepted, IdempotencyKey, read_key

_KEY_BYTES = 16
_HOUR_MS = 3_600_000


def hashed(caller: Caller, key: str, request_digest: bytes) -> IdempotencyKey:
    """The key as the store keeps it."""
    kept_ms = int(caller.context.settings.idempotency_hours * _HOUR_MS)
    return IdempotencyKey(
        key_hash=hashlib.sha256(key.encode()).digest()[:_KEY_BYTES],
        request_digest=request_digest,
        expires_at_ms=caller.service.clock.wall_ms() + kept_ms,
    )


async def earlier(caller: Caller, key: IdempotencyKey) -> Accepted | None:
    """What this key stands for already; raises IdempotencyConflict for another body."""
    now_ms = caller.service.clock.wall_ms()
    task_id = await caller.service.read(lambda tx: read_key(tx, caller.client.id, key, now_ms))
    return Accepted(task_id, replayed=True) if task_id else None
