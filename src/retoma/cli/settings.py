"""`retoma settings`: what is in force, and where it came from."""

from __future__ import annotations

from dataclasses import fields

import click

from retoma.cli.options import data_dir_option, example, json_option, load_settings, store_option
from retoma.cli.printing import print_json, print_table
from retoma.settings import Settings, without_password


@click.command(epilog=example("retoma settings", "RETOMA_WORKERS=4 retoma settings --json"))
@data_dir_option
@store_option
@json_option
def settings(*, data_dir: str | None, store: str | None, as_json: bool) -> None:
    """Show every setting: its value, its unit, its meaning, and where the value came from.

    A flag of `retoma serve` goes before RETOMA_<NAME> in the environment, that before retoma.toml in the data
    directory, that before the default. A name that there isn't and a value that isn't valid are bad usage (exit
    status 2). The password in a store's URL is shown as ***.
    """
    sourced = load_settings({"data_dir": data_dir, "store": store})
    rows = [
        {
            "name": setting.name,
            "value": _shown(setting.name, getattr(sourced.settings, setting.name)),
            "unit": setting.metadata["unit"],
            "source": sourced.sources[setting.name],
            "meaning": setting.metadata["meaning"],
        }
        for setting in fields(Settings)
    ]
    if as_json:
        print_json(rows)
        return
    columns = ("name", "value", "unit", "source", "meaning")
    print_table([column.upper() for column in columns], [[_cell(row[column]) for column in columns] for row in rows])


def _shown(name: str, value: object) -> object:
    if name == "store":
        return without_password(str(value))
    return value if isinstance(value, bool | int | float | str) else str(value)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value == "" else str(value)
