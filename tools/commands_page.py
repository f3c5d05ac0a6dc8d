"""Renders docs/commands.md, the command line's reference, from the commands' own help."""

from __future__ import annotations

from collections.abc import Iterator

import click

from retoma.cli import retoma
from retoma.cli.serve import serve

_HEAD = """\
# Commands

Written by `make docs` from the commands' own help; a test fails when this page is stale.

Exit status: 0 done, 1 failed, 2 bad usage, 3 refused by a state or a version, 130 interrupted.
"""
_WIDTH = 100


def render() -> str:
    """The page as it should be now."""
    return "\n".join([_HEAD, *_sections(retoma, click.Context(retoma, info_name="retoma"))])


def _sections(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"## `{context.command_path}`\n\n```text\n{_help(command, context)}\n```\n"
    if isinstance(command, click.Group):
        for name, sub in sorted(command.commands.items()):
            yield from _sections(sub, click.Context(sub, info_name=name, parent=context))


def _help(command: click.Command, context: click.Context) -> str:
    context.terminal_width = context.max_content_width = _WIDTH
    if command is serve:  # its options are the settings, which have a page of their own
        return f"{command.get_short_help_str(_WIDTH)}\n\nThe options are the settings: see settings.md."
    return command.get_help(context).rstrip()
