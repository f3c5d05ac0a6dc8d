"""How a command fails: what is told on standard error, and the exit status (contract §1)."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from http import HTTPStatus

import click

from retoma.errors import Refused, RetomaError

FAILED, BAD_USAGE, REFUSED, INTERRUPTED = 1, 2, 3, 130


@dataclass(slots=True)
class Run:
    """One run of the command."""

    debug: bool = False


class OperationFailed(RetomaError):
    """The command could not do what it was asked for."""


class NothingListens(RetomaError):
    """No service answers there; start it with `retoma serve`."""


class ConnectionLost(RetomaError):
    """The connection to the service broke off; try again."""


class Answered(RetomaError):
    """The service answered with an error. `answered_status` and `answered_code` are what it said."""

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message)
        self.answered_status = status
        self.answered_code = code


def status_of(error: Exception, run: Run) -> int:
    """Tells the error on standard error and returns the exit status that it leads to."""
    if isinstance(error, click.Abort):  # how click passes Ctrl-C on
        return INTERRUPTED
    if run.debug:
        traceback.print_exception(error)
    sentence, status = _describe(error)
    if sentence:
        click.echo(f"Error: {sentence}", err=True)
    return status


def _describe(error: Exception) -> tuple[str, int]:
    match error:
        case click.UsageError():
            help_of = error.ctx.command_path if error.ctx else "retoma"
            return f"{error.format_message().rstrip('.')}; `{help_of} --help` shows how it is used", BAD_USAGE
        case click.ClickException():
            return error.format_message(), error.exit_code
        case RetomaError():
            return error.message, _status_of_refusal(error)
        case OSError():
            return f"{error}; mend that and try again", FAILED
        case _:
            return f"{type(error).__name__}: {error} (unexpected; run again with `retoma --debug …` for more)", FAILED


def _status_of_refusal(error: RetomaError) -> int:
    status = error.answered_status if isinstance(error, Answered) else error.status
    forbidden = isinstance(error, Refused) or status in {HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED}
    return REFUSED if forbidden else FAILED
