"""Service: the identity that outlives every instance."""

from __future__ import annotations

from retoma.store.contract import Tx
from retoma.store.statements import statement

INSERT = statement("service_config.insert")
READ = statement("service_config.read")


def keep_identity(tx: Tx, candidate: str, now_ms: int) -> str:
    """The service's id; `candidate` if it had none yet."""
    tx.execute(INSERT, {"key": "service_id", "value": candidate, "now_ms": now_ms})
    row = tx.row(READ, {"key": "service_id"})
    assert row is not None
    return row[0]
