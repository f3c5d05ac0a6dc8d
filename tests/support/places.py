"""Data directories for tests of real processes, each with a `retoma.toml` that names its store.

So every service and every command that is given the directory works on the same store, the checker too.
"""

from __future__ import annotations

import json
from pathlib import Path


def place_on(url: str, data_dir: Path) -> Path:
    """Makes a data directory whose store is at `url`."""
    data_dir.mkdir(parents=True)
    (data_dir / "retoma.toml").write_text(f"store = {json.dumps(url)}\n")
    return data_dir


def another_host(data_dir: Path) -> Path:
    """The data directory of a second host on the same store; on SQLite, where there is one host, the same one."""
    settings = data_dir / "retoma.toml"
    if not settings.exists():
        return data_dir
    other = data_dir.with_name(f"{data_dir.name}-of-another-host")
    other.mkdir()
    (other / "retoma.toml").write_text(settings.read_text())
    return other
