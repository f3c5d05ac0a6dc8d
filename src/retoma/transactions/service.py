"""Service: the identity that outlives every instance, and the settings that are stored for all of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from retoma.core.events import encode_json
from retoma.errors import InvalidRequest, StaleVersion
from retoma.store.contract import Tx
from retoma.store.statements import statement

INSERT = statement("service_config.insert")
READ = statement("service_config.read")
LOCK = statement("service_config.lock")
UPDATE = statement("service_config.update")
_ID, _SETTINGS = "service_id", "settings"
_NOTHING_STORED = encode_json({"op_id": "", "values": {}})
_NAME_CHARS_MAX = 100
_NUMBER_MAX = 10**9

# What may be stored, with the least value of those that are numbers. `queue_max` counts tasks, so it is whole.
STORABLE: Mapping[str, float | None] = MappingProxyType(
    {"name": None, "queue_max": 1, "retention_days": 0, "unstored_minutes": 0, "snapshot_hours": 0}
)


@dataclass(frozen=True, slots=True)
class StoredService:
    """`values` are the stored settings: each goes before an instance's own. The version rises with each change."""

    id: str
    version: int
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChangeService:
    """New values; None takes a stored one away. `version` is the one that the change goes by; None: any."""

    changes: Mapping[str, Any]
    version: int | None
    now_ms: int
    op_id: str


def keep_identity(tx: Tx, candidate: str, now_ms: int) -> str:
    """The service's id; `candidate` if it had none yet."""
    tx.execute(INSERT, {"key": _ID, "value": candidate, "now_ms": now_ms})
    row = tx.row(READ, {"key": _ID})
    assert row is not None
    return row[0]


def keep_service(tx: Tx, candidate: str, now_ms: int) -> StoredService:
    """The service as it is stored, made if it is new; what every instance does at its start."""
    keep_identity(tx, candidate, now_ms)
    tx.execute(INSERT, {"key": _SETTINGS, "value": _NOTHING_STORED, "now_ms": now_ms})
    return read_service(tx)


def read_service(tx: Tx) -> StoredService:
    """Identity and stored settings; there before any instance answers."""
    identity, settings = tx.row(READ, {"key": _ID}), tx.row(READ, {"key": _SETTINGS})
    assert identity is not None
    assert settings is not None
    value, version = settings
    return StoredService(identity[0], version, json.loads(value)["values"])


def read_stored_values(tx: Tx) -> Mapping[str, Any]:
    """The stored settings; none in a store that no instance has used yet."""
    row = tx.row(READ, {"key": _SETTINGS})
    return json.loads(row[0])["values"] if row else {}


def change_service(tx: Tx, command: ChangeService) -> StoredService:
    """Merges the changes into what is stored, under the version that they go by (S-003).

    Raises InvalidRequest for an unknown name or a value out of its bounds, and StaleVersion, with nothing written.
    Driven again, it finds its operation id beside the values and changes nothing.
    """
    changes = checked(command.changes)
    row = tx.row(LOCK, {"key": _SETTINGS})
    assert row is not None
    value, version = row
    stored = json.loads(value)
    if stored["op_id"] == command.op_id:
        return read_service(tx)
    if command.version not in {None, version}:
        raise StaleVersion(f"the service is at version {version}, not {command.version}; nothing was changed")
    values = {name: kept for name, kept in {**stored["values"], **changes}.items() if kept is not None}
    changed = tx.execute(
        UPDATE,
        {
            "key": _SETTINGS,
            "value": encode_json({"op_id": command.op_id, "values": values}),
            "version": version,
            "now_ms": command.now_ms,
        },
    )
    assert changed == 1, "the stored settings changed under their lock"
    return read_service(tx)


def checked(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes, each of a known name and within its bounds; raises InvalidRequest, naming the first that isn't."""
    for name, value in changes.items():
        if name not in STORABLE:
            raise InvalidRequest(f"{name[:100]} can't be stored; these can: {', '.join(STORABLE)}", param=name[:100])
        if value is not None and not _fits(name, value):
            raise InvalidRequest(f"{name} must be {_bounds_of(name)}, or null", param=name)
    return dict(changes)


def _fits(name: str, value: object) -> bool:
    low = STORABLE[name]
    if low is None:
        return isinstance(value, str) and 0 < len(value) <= _NAME_CHARS_MAX and value.isprintable()
    if isinstance(value, bool) or not isinstance(value, int if name == "queue_max" else int | float):
        return False
    number = cast("float", value)
    return math.isfinite(number) and low <= number <= _NUMBER_MAX


def _bounds_of(name: str) -> str:
    low = STORABLE[name]
    if low is None:
        return f"a text of 1 to {_NAME_CHARS_MAX} printable characters"
    kind = "a whole number" if name == "queue_max" else "a number"
    return f"{kind} from {low} to {_NUMBER_MAX}"
