"""What the migrations of both databases share: order, texts, and which releases get on with which schema."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from retoma.errors import Refused

SCHEMA_VERSION = 2
_FILE = re.compile(r"^(\d{4})_(\w+)\.(\w+)\.sql$")
# Per schema version: the oldest schema version whose release may still read, and write, such a store.
COMPATIBILITY = {1: (1, 1), 2: (1, 1)}


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """Of the text, so that a changed migration is noticed."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Schema:
    """What a store says of itself; version 0 is an empty one."""

    version: int
    oldest_reader: int
    oldest_writer: int


def migrations_for(database: str) -> list[Migration]:
    """All of this release for `sqlite` or `postgres`, in order."""
    found = [
        Migration(int(match[1]), match[2], file.read_text())
        for file in (resources.files("retoma.store") / "migrations").iterdir()
        if (match := _FILE.match(file.name)) and match[3] == database
    ]
    return sorted(found, key=lambda migration: migration.version)


def refuse_newer(schema: Schema, place: object, known: int = SCHEMA_VERSION) -> None:
    """Raises Refused if a release that knows schemas up to `known` can't work on the store at `place`."""
    if schema.oldest_writer > known or schema.oldest_reader > known:
        raise Refused(
            f"{place} has schema {schema.version}, which needs a newer Retoma than this one (schema {known}); "
            "upgrade Retoma or restore a backup; nothing was changed"
        )


def differences(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Where the objects of a store are not those that the migrations make, one sentence each."""
    missing = [f"the {name} is missing" for name in sorted(expected.keys() - found.keys())]
    extra = [f"the {name} is not of this schema" for name in sorted(found.keys() - expected.keys())]
    common = sorted(expected.keys() & found.keys())
    return missing + extra + [f"the {name} is not as it was made" for name in common if expected[name] != found[name]]
