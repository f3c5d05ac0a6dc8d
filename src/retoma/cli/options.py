"""What several commands share: options, examples in the help, and settings whose faults are bad usage."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from retoma.errors import Refused
from retoma.settings import Settings, Sourced, default_data_dir, load

Command = TypeVar("Command", bound=Callable[..., Any])


def example(*lines: str) -> str:
    """The end of a command's help. The mark at its start keeps click from filling the lines."""
    return "\n".join(["\b", "Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)])


data_dir_option = click.option(
    "--data-dir", metavar="PATH", help="Where the store, the models and the token live [env: RETOMA_DATA_DIR]."
)
store_option = click.option("--store", metavar="URL", help="Another store than retoma.db in the data directory.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def load_settings(flags: Mapping[str, Any]) -> Sourced:
    """The settings in force; a wrong one is bad usage (exit status 2), wherever it was written."""
    try:
        return load(flags, os.environ)
    except Refused as error:
        raise click.UsageError(error.message, click.get_current_context(silent=True)) from error


def settings_for(data_dir: str | None, store: str | None = None) -> Settings:
    """The settings of a command that works on a data directory."""
    return load_settings({"data_dir": data_dir, "store": store}).settings


def named_data_dir(data_dir: str | None) -> Path | None:
    """The data directory that the person has named, if any."""
    named = data_dir or os.environ.get("RETOMA_DATA_DIR")
    return Path(named).absolute() if named else None


def data_dir_of(data_dir: str | None) -> Path:
    """The data directory, named or not, without reading any settings."""
    return named_data_dir(data_dir) or default_data_dir()
