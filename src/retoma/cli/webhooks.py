"""`retoma webhooks`: who was told of which task's end, and the secret that the messages are signed with."""

from __future__ import annotations

import click

from retoma.cli.client import Client, with_client
from retoma.cli.options import example, json_option
from retoma.cli.printing import print_json, print_table, shortened, time_of
from retoma.core.webhook import MessageState


@click.group(epilog=example("retoma webhooks list --state unconfirmed", "retoma webhooks secret"))
def webhooks() -> None:
    """Look at the webhooks of this service."""


@webhooks.command("list", epilog=example("retoma webhooks list --state pending", "retoma webhooks list --json"))
@with_client
@click.option("--state", type=click.Choice([state.value for state in MessageState]), help="Only those in this state.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many at most.")
@json_option
def list_webhooks(*, client: Client, state: str | None, limit: int, as_json: bool) -> None:
    """List webhooks, newest first.

    waiting: the task has not ended. pending: to be sent (again). unconfirmed: sent, and no answer came, so it is sent
    again. delivered: answered with a 2xx. failed: the receiver is gone (410), or the retries have ended.
    """
    found = list(client.newest("/v1/webhooks", state, limit))
    if as_json:
        print_json(found)
        return
    rows = [
        (
            message["id"],
            message["task"],
            message["state"],
            message["tries"],
            _time_of(message["next_at_ms"]),
            shortened(message["last_answer"], 60) or "–",
            message["url"],
        )
        for message in found
    ]
    print_table(("ID", "TASK", "STATE", "TRIES", "NEXT TRY", "LAST ANSWER", "URL"), rows)


@webhooks.command(epilog=example("retoma webhooks secret", "retoma webhooks secret --json"))
@with_client
@json_option
def secret(*, client: Client, as_json: bool) -> None:
    """Print the secret of this client's webhooks: what `OpenAI(webhook_secret=…)` takes."""
    found = client.get("/v1/webhooks/secret")
    if as_json:
        print_json(found)
    else:
        click.echo(found["secret"])


def _time_of(at_ms: int | None) -> str:
    return time_of(None if at_ms is None else at_ms / 1000)
