"""Models: the registry's rows. A row names a file that is durable already; a file goes after its last row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from retoma.core.events import encode_json
from retoma.errors import Conflict, ModelNotFound, StaleVersion, TaskUnfinished
from retoma.failpoints import Failpoint, passing
from retoma.store.contract import Tx
from retoma.store.rows import ModelRow
from retoma.store.statements import Statement, statement

INSERT = statement("models.insert")
READ = statement("models.read")
LOCK = statement("models.lock")
ALL = statement("models.all")
UPDATE = statement("models.update")
DELETE = statement("models.delete")
WITH_DIGEST = statement("models.with_digest")
UNFINISHED = statement("tasks.unfinished_with_model")


@dataclass(frozen=True, slots=True)
class RegisterModel:
    """A model whose file lies under its digest already. `facts` is what its file says of itself."""

    name: str
    digest: str
    size_bytes: int
    engine: str
    source: str
    facts: dict[str, object]
    now_ms: int


def register_model(tx: Tx, command: RegisterModel) -> ModelRow:
    """Writes the row; the same name with the same content is no change. Raises Conflict for other content."""
    found = tx.row(LOCK, {"name": command.name})
    if found is not None:
        row = ModelRow(*found)
        if row.digest != command.digest:
            raise Conflict(f"a model named {row.name} with other content is registered; remove it or choose --name")
        if row.state == "corrupt":  # its file has just been written again
            _update(tx, row, "available", row.facts)
        return read_model(tx, command.name)
    tx.execute(
        INSERT,
        {
            "name": command.name,
            "digest": command.digest,
            "size_bytes": command.size_bytes,
            "engine": command.engine,
            "source": command.source,
            "facts": encode_json(command.facts),
            "now_ms": command.now_ms,
        },
    )
    passing(Failpoint.MODEL_ROW_WRITTEN)
    tx.after_commit(Failpoint.MODEL_ROW_COMMITTED)
    return read_model(tx, command.name)


def read_model(tx: Tx, name: str) -> ModelRow:
    """One model; raises ModelNotFound."""
    return _found(tx, READ, name)


def _found(tx: Tx, query: Statement, name: str) -> ModelRow:
    row = tx.row(query, {"name": name})
    if row is None:
        raise ModelNotFound(f"no model named {name!r} is registered; `retoma models list` shows those that are")
    return ModelRow(*row)


def read_models(tx: Tx) -> list[ModelRow]:
    """Every model, by name."""
    return [ModelRow(*row) for row in tx.rows(ALL, {})]


def set_model_state(tx: Tx, name: str, state: str, facts: Mapping[str, object] | None = None) -> None:
    """Marks a model `available` or `corrupt`, and adds facts; one that is None is taken away. Raises ModelNotFound."""
    row = _found(tx, LOCK, name)
    known = {fact: value for fact, value in {**row.fact_fields, **(facts or {})}.items() if value is not None}
    wanted = encode_json(known) if facts else row.facts
    if (row.state, row.facts) != (state, wanted):
        _update(tx, row, state, wanted)


def add_model_facts(tx: Tx, name: str, facts: dict[str, object]) -> None:
    """Adds what a self-test has found; raises ModelNotFound."""
    row = _found(tx, LOCK, name)
    _update(tx, row, row.state, encode_json({**row.fact_fields, **facts}))


def remove_model(tx: Tx, name: str, version: int | None = None) -> str | None:
    """Removes the row; the digest of the file that no row names any more, or None.

    Raises ModelNotFound, StaleVersion when it is not at `version`, or TaskUnfinished while an unfinished task needs it.
    Driven again after an unknown commit, it raises ModelNotFound: gone.
    """
    row = _found(tx, LOCK, name)
    if version not in {None, row.version}:
        raise StaleVersion(f"the model {name} is at version {row.version}, not {version}; nothing was changed")
    needed = tx.row(UNFINISHED, {"model": name})
    assert needed is not None
    if needed[0]:
        raise TaskUnfinished(f"{needed[0]} unfinished tasks need {name}; cancel them first or wait for their end")
    if tx.execute(DELETE, {"name": name, "version": row.version}) != 1:
        raise StaleVersion(f"the model {name} has just changed; try again")
    tx.after_commit(Failpoint.MODEL_ROW_REMOVED)
    return None if digest_in_use(tx, row.digest) else row.digest


def digest_in_use(tx: Tx, digest: str) -> bool:
    """True while a row names this file."""
    row = tx.row(WITH_DIGEST, {"digest": digest})
    assert row is not None
    return row[0] > 0


def _update(tx: Tx, row: ModelRow, state: str, facts: str) -> None:
    changed = tx.execute(UPDATE, {"name": row.name, "version": row.version, "state": state, "facts": facts})
    if changed != 1:
        raise StaleVersion(f"the model {row.name} has just changed; try again")
