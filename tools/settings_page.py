"""Renders docs/settings.md from the settings themselves."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from retoma.settings import Settings
from retoma.transactions.service import STORABLE
from tools.markdown import table

_HEAD = """\
# Settings

Written by `make docs` from `retoma.settings`; a test fails when this page is stale.

Each is a flag of `retoma serve` (`--queue-max`), else an environment variable (`RETOMA_QUEUE_MAX`), else a line of
`retoma.toml` in the data directory (`queue_max = 100`), else the default. `retoma settings` prints what is in force and
where it came from. Those marked "stored" can also be set for all instances of a store by `PATCH /v1/service`, which
goes before an instance's own.
"""


def render() -> str:
    """The page as it should be now."""
    rows = [
        (
            f"`{setting.name}`",
            _default(setting.name, setting.default),
            setting.metadata["unit"],
            setting.metadata["meaning"],
            "stored" if setting.name in STORABLE else "",
        )
        for setting in fields(Settings)
    ]
    return _HEAD + "\n" + table(("setting", "default", "unit", "meaning", ""), rows)


def _default(name: str, value: Any) -> str:
    if name == "data_dir":
        return "the platform's folder for a user's data"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"`{value}`" if value != "" else ""
