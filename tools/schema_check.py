"""Fails when a migration is not expand-only, or when a migrated store and a fresh one differ (S-004).

The release before must be able to go on with a store that this one has migrated. So a migration may only add: a table,
an index, a trigger, or a column that an older writer may leave out.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from retoma.store.migrate import prepare, schema_problems
from retoma.store.schema import COMPATIBILITY, SCHEMA_VERSION, Migration, migrations_for
from tools.corpus import corpus

_NOT_CODE = re.compile(r"--[^\n]*|\$(\w*)\$.*?\$\1\$|'(?:[^']|'')*'", re.DOTALL)
# A trigger that refuses it is the opposite of the statement.
_REFUSES_TRUNCATE = re.compile(r"\bCREATE\s+TRIGGER\s+\w+\s+BEFORE\s+TRUNCATE\s+ON\s+\w+\s+FOR\b", re.IGNORECASE)
_CONTRACTS = re.compile(r"\b(DROP|RENAME|TRUNCATE|ALTER\s+COLUMN)\b", re.IGNORECASE)
_ADDED_COLUMN = re.compile(r"\bADD\s+(?:COLUMN\s+)?(\w+)[^;]*", re.IGNORECASE)


def problems() -> list[str]:
    """Everything that is wrong with the migrations, one sentence each."""
    sqlite, postgres = migrations_for("sqlite"), migrations_for("postgres")
    found = [*wrong_numbers(sqlite, postgres), *wrong_compatibility(COMPATIBILITY, SCHEMA_VERSION)]
    for name, migrations in (("sqlite", sqlite), ("postgres", postgres)):
        for migration in migrations:
            found += [f"migration {migration.version} of {name} {wrong}" for wrong in contractions(migration.sql)]
    return [*found, *(problem for path in corpus() for problem in differences(path))]


def wrong_numbers(sqlite: Sequence[Migration], postgres: Sequence[Migration]) -> Iterator[str]:
    """Both databases have the same migrations, numbered from 1 without a gap."""
    numbers = [migration.version for migration in sqlite]
    if numbers != list(range(1, SCHEMA_VERSION + 1)):
        yield f"the migrations are numbered {numbers}, not 1 to {SCHEMA_VERSION}"
    if [(one.version, one.name) for one in sqlite] != [(one.version, one.name) for one in postgres]:
        yield "the two databases have different migrations"


def wrong_compatibility(compatibility: dict[int, tuple[int, int]], newest: int) -> Iterator[str]:
    """Each schema names the oldest that may read and write it; the release before always may."""
    if sorted(compatibility) != list(range(1, newest + 1)):
        yield f"compatibility is said of the schemas {sorted(compatibility)}, not of 1 to {newest}"
    for version, oldest in sorted(compatibility.items()):
        if max(oldest) > max(1, version - 1):
            yield f"schema {version} can't be used by the release before it, so that nobody could go back"


def contractions(sql: str) -> Iterator[str]:
    """What an older release could stumble over."""
    code = _REFUSES_TRUNCATE.sub(" ", _NOT_CODE.sub(" ", sql))
    for match in _CONTRACTS.finditer(code):
        yield f"has a {' '.join(match[1].upper().split())}; wait until no release needs the old form"
    for match in _ADDED_COLUMN.finditer(code):
        text = match[0].upper()
        if "NOT NULL" in text and "DEFAULT" not in text:
            yield f"adds the column {match[1]}, which an older writer can't fill; give it a default"


def differences(path: Path) -> list[str]:
    """How an older store differs from a fresh one once it is migrated."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "retoma.db"
        copy.write_bytes(path.read_bytes())
        prepare(copy, 0)
        return [f"{path.name}, migrated: {problem}" for problem in schema_problems(copy)]


def main() -> None:
    """The command line."""
    found = problems()
    for problem in found:
        print(problem, file=sys.stderr)
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
