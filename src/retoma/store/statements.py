"""SQL lives in `sql/<table>.sql`, one text for both databases: `-- name: verb`, a sentence why, the statement.

The few places where the databases differ are words like `$FOR_UPDATE`, which a dialect replaces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import Template

from retoma.store.dialect import Dialect

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement with its comment, before the dialect's words are put in."""

    name: str
    comment: str
    text: str

    def render(self, dialect: Dialect) -> str:
        """The text for one database."""
        return Template(self.text).substitute(dialect.words)


def statement(name: str) -> Statement:
    """The statement called `table.verb`; raises KeyError when there is none."""
    return _table(name.partition(".")[0])[name]


@cache
def _table(table: str) -> dict[str, Statement]:
    text = (resources.files("retoma.store") / "sql" / f"{table}.sql").read_text()
    parts = _NAME.split(text)[1:]
    found: dict[str, Statement] = {}
    for verb, body in zip(parts[::2], parts[1::2], strict=True):
        lines = body.strip().splitlines()
        comment = " ".join(line[3:] for line in lines if line.startswith("--"))
        sql = "\n".join(line for line in lines if not line.startswith("--")).strip().removesuffix(";")
        name = f"{table}.{verb}"
        assert name not in found, name
        found[name] = Statement(name, comment, sql)
    return found


def all_statements() -> list[Statement]:
    """Every statement of every file, for the tests that prepare them all."""
    files = (resources.files("retoma.store") / "sql").iterdir()
    tables = sorted(file.name.removesuffix(".sql") for file in files if file.name.endswith(".sql"))
    return [one for table in tables for one in _table(table).values()]
