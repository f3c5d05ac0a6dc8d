"""How things are shown: text as it comes, tables, JSON, sizes and times."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import click

# What a terminal would take for a command: everything below the space but tab and line end, DEL, and C1.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def note(sentence: str) -> None:
    """Tells the person something that is no part of the result."""
    click.echo(sentence, err=True)


def plain(text: str) -> str:
    """Text from outside without what would steer the terminal."""
    return _CONTROL.sub("", text)


def write_text(text: str) -> None:
    """A piece of a model's text, at once and exactly; on a terminal without control characters."""
    if sys.stdout.isatty():
        text = plain(text)
    click.echo(text.encode(sys.stdout.encoding or "utf-8", "replace"), nl=False)


def print_json(value: object) -> None:
    """One JSON document."""
    click.echo(json.dumps(value, ensure_ascii=not _speaks_unicode(), indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns side by side, their names first; the last column is not padded."""
    cells = [list(columns), *([plain(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(columns) - 1)]
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        click.echo("  ".join([*padded, row[-1]]).rstrip())


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Names and values, one pair a line."""
    shown = [(name, plain(str(value))) for name, value in fields]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        click.echo(f"{name.ljust(width)}  {value}".rstrip())


def size_of(count: float) -> str:
    """A number of bytes, short."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:  # noqa: PLR2004 - the step between the units
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def time_of(seconds: float | None) -> str:
    """An instant in the person's own time zone."""
    if seconds is None:
        return "–"
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def shortened(text: Any, width: int) -> str:
    """At most `width` characters of one line."""
    line = " ".join(str(text).split())
    return line if len(line) <= width else line[: width - 1] + "…"


def _speaks_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
