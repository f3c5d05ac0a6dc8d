"""`retoma serve`: runs the service until it is told to stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import click

from retoma import failpoints, logs
from retoma.cli.failures import FAILED, INTERRUPTED
from retoma.cli.options import Command, example, load_settings
from retoma.settings import Settings

_STATUS = {signal.SIGTERM: 0, signal.SIGINT: INTERRUPTED}


def setting_options(command: Command) -> Command:
    """One option per setting, so that every setting can be given as a flag."""
    for setting in reversed(fields(Settings)):
        command = _option(setting.name, setting.default, setting.metadata["meaning"])(command)
    return command


def _option(name: str, default: object, meaning: str) -> Callable[[Command], Command]:
    flag = name.replace("_", "-")
    if isinstance(default, bool):
        return click.option(f"--{flag}/--no-{flag}", name, default=None, help=f"{meaning[0].upper()}{meaning[1:]}.")
    flags = [f"--{flag}", *([f"--{flag.removesuffix('-s')}"] if flag.endswith("-s") else [])]
    metavar = "N" if isinstance(default, int | float) else "TEXT"
    return click.option(*flags, name, metavar=metavar, help=f"{meaning[0].upper()}{meaning[1:]}.")


@click.command(epilog=example("retoma serve", "retoma serve --port 0 --ready-file /tmp/retoma.url --workers 4"))
@setting_options
@click.option("--stop-with-stdin", is_flag=True, hidden=True, help="Stop when standard input ends.")
def serve(*, stop_with_stdin: bool, **flags: Any) -> int:
    """Run the service: the OpenAI Responses API on a port, with a durable store behind it.

    SIGTERM and Ctrl-C end it in good order; what is unfinished then goes on at the next start.
    """
    settings = load_settings(flags).settings
    set_up_logging(settings.log_level, settings.log_format)
    if stop_with_stdin:
        threading.Thread(target=_stop_at_end_of_input, name="stdin", daemon=True).start()
    from retoma import serving  # noqa: PLC0415 - brings the whole server with it

    if settings.log_format == "text":  # a sentence for people would be no line for a program
        click.echo(f"Retoma starts on {settings.host}, data in {settings.data_dir}. Ctrl-C stops it.", err=True)
    stopped_by = serving.run(settings)
    return _STATUS.get(stopped_by, FAILED) if stopped_by else FAILED


def arm_failpoint() -> None:
    """Arms the failpoint that the environment names; a wrong name is bad usage."""
    try:
        failpoints.arm_from_environment()
    except ValueError as error:
        raise click.UsageError(f"{failpoints.ENVIRONMENT}: {error}", click.get_current_context()) from error


def _stop_at_end_of_input() -> None:
    """For a service that another command has started: the pipe's end comes even if that command was killed."""
    while os.read(0, 4096):  # not through sys.stdin, whose lock this thread would hold when the interpreter ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def set_up_logging(level: str, form: str) -> None:
    """Records go to standard error, one line each; raises UsageError for a level or a format that isn't one."""
    if level.lower() not in logs.LEVELS:
        raise click.UsageError(
            f"log_level = {level!r} is not valid; it takes debug, info, warning or error", click.get_current_context()
        )
    if form not in logs.FORMATS:
        raise click.UsageError(
            f"log_format = {form!r} is not valid; it takes text or json", click.get_current_context()
        )
    logs.set_up(logs.LEVELS[level.lower()], form)
