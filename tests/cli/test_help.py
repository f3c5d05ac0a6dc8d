"""Help, versions, and how quickly they come."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from retoma import __version__
from retoma.cli import retoma
from tests.support.command import run_retoma
from tests.support.service import environment


def commands(group: click.Group, path: tuple[str, ...] = ()) -> dict[str, click.Command]:
    found: dict[str, click.Command] = {" ".join(path): group}
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found |= commands(command, (*path, name))
        else:
            found[" ".join((*path, name))] = command
    return found


COMMANDS = commands(retoma)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_a_help_with_an_example(path: str) -> None:
    ended = run_retoma(*path.split(), "--help")
    assert ended.status == 0
    assert "Example" in ended.out
    assert f"retoma {path}".strip() in ended.out.partition("Example")[2]


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_is_explained(path: str) -> None:
    options = [param for param in COMMANDS[path].params if isinstance(param, click.Option)]
    assert [option.name for option in options if not option.help] == []


def test_help_loads_neither_the_server_nor_a_client_nor_an_engine() -> None:
    probe = (
        "import sys\n"
        "from retoma.cli import retoma\n"
        "retoma.main(['--help'], standalone_mode=False)\n"
        "heavy = {'uvicorn', 'fastapi', 'starlette', 'httpx', 'apsw', 'numpy', 'xllamacpp'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    command = [sys.executable, "-c", probe]
    subprocess.run(command, check=True, env=environment(), stdout=subprocess.DEVNULL, timeout=30)


def test_the_version_is_the_package_s() -> None:
    assert run_retoma("--version").out == f"retoma, version {__version__}\n"


def test_no_command_at_all_shows_the_help() -> None:
    ended = run_retoma()
    assert ended.status == 2
    assert "Commands:" in ended.out + ended.err


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -P -m retoma failpoints --json | head -1"
    done = subprocess.run(
        ["bash", "-c", command], env=environment(), capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.stdout, done.stderr) == ("[\n", "")
