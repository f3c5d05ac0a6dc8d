"""The `retoma` command. Modules here import what is heavy (the server, the HTTP client) only where it is used."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from retoma import __version__
from retoma.cli.ask import ask
from retoma.cli.clients import clients
from retoma.cli.demo import demo
from retoma.cli.failpoints import failpoints
from retoma.cli.failures import Run, status_of
from retoma.cli.models import models
from retoma.cli.options import example
from retoma.cli.serve import arm_failpoint, serve
from retoma.cli.settings import settings
from retoma.cli.store import store
from retoma.cli.tasks import tasks
from retoma.cli.webhooks import webhooks


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=example("retoma demo", "retoma serve", 'retoma ask "Why is the sea salty?"'),
)
@click.version_option(__version__, prog_name="retoma")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def retoma(context: click.Context, *, debug: bool) -> None:
    """Durable local inference: what was accepted reaches one correct end, also through kill -9.

    Exit status: 0 done, 1 failed, 2 bad usage, 3 refused by a state or a version, 130 interrupted.
    """
    context.ensure_object(Run).debug = debug
    if context.invoked_subcommand != failpoints.name:  # which says how to write the failpoint that is wrong
        arm_failpoint()


for command in (serve, ask, demo, tasks, models, clients, webhooks, store, settings, failpoints):
    retoma.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and ends the process with its exit status."""
    run = Run()
    try:
        # Without click's own ending, every error comes here and is told in one way. A command may return its status.
        result = retoma.main(arguments, prog_name="retoma", standalone_mode=False, obj=run)
    except Exception as error:  # noqa: BLE001 - the last net: a sentence instead of a traceback
        sys.exit(status_of(error, run))
    sys.exit(result if isinstance(result, int) else 0)
