"""Check of the files beside the store: what the rows name is there, and what is there is named (I8).

Contents are not read; `retoma models verify` does that. A snapshot is a cache, so a missing one is no finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from retoma.store.contract import Tx
from retoma.store.statements import statement
from retoma.transactions.check import Finding
from retoma.transactions.models import read_models

SNAPSHOT_SIZES = statement("snapshots.with_sizes")
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Folders:
    """Where the files lie: `<models>/sha256/<aa>/<digest>` and `<snapshots>/<task>/<token>-<tokens>.snap`."""

    models: Path
    snapshots: Path
    complete: bool = True
    """False: other hosts use the same store, and a model's file may lie there only."""


def check_files(tx: Tx, folders: Folders, settled_before_s: float) -> list[Finding]:
    """What is wrong with the files. One changed after `settled_before_s` (seconds since 1970) may still get its row."""
    return [
        *_check_models(tx, folders, settled_before_s),
        *_check_snapshots(tx, folders.snapshots, settled_before_s),
    ]


def _check_models(tx: Tx, folders: Folders, settled_before_s: float) -> Iterator[Finding]:
    named: set[Path] = set()
    for model in read_models(tx):
        path = folders.models / "sha256" / model.digest[:2] / model.digest
        named.add(path)
        size = _size(path)
        if size is None and folders.complete:
            yield Finding("I8", "", None, f"the file of model {model.name} is missing: {path}")
        elif size not in {None, model.size_bytes}:
            yield Finding("I8", "", None, f"{path} of model {model.name} has {size} bytes, not {model.size_bytes}")
    yield from _orphans(folders.models / "sha256", "*/*", named, settled_before_s)


def _check_snapshots(tx: Tx, folder: Path, settled_before_s: float) -> Iterator[Finding]:
    named: set[Path] = set()
    after = ""
    while rows := tx.rows(SNAPSHOT_SIZES, {"after": after, "limit": _PAGE}):
        for relative, size_bytes in rows:
            path = folder / relative
            named.add(path)
            size = _size(path)
            if size not in {None, size_bytes}:
                yield Finding("I8", path.parent.name, None, f"{path} has {size} bytes, not {size_bytes}")
        after = rows[-1][0]
    yield from _orphans(folder, "*/*.snap", named, settled_before_s)


def _orphans(folder: Path, pattern: str, named: set[Path], settled_before_s: float) -> Iterator[Finding]:
    for path in sorted(folder.glob(pattern)):
        changed_s = _changed_s(path)
        if path not in named and changed_s is not None and changed_s < settled_before_s:
            yield Finding("I8", "", None, f"no row names the file {path}")


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _changed_s(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # a service at work has just removed it
        return None
