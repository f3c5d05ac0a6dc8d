"""`retoma tasks`: look at tasks and steer them, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import click

from retoma.cli.client import Client, with_client
from retoma.cli.following import Following, Outage, Patience
from retoma.cli.options import example, json_option
from retoma.cli.printing import note, print_fields, print_json, print_table, shortened, time_of
from retoma.core.task import State

_PAGE_EVENTS = 1000


@click.group(epilog=example("retoma tasks list --state running", "retoma tasks cancel resp_019a…"))
def tasks() -> None:
    """Look at tasks and steer them."""


@tasks.command("list", epilog=example("retoma tasks list --state queued --limit 5", "retoma tasks list --json"))
@with_client
@click.option("--state", type=click.Choice([state.value for state in State]), help="Only tasks in this state.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many at most.")
@json_option
def list_tasks(*, client: Client, state: str | None, limit: int, as_json: bool) -> None:
    """List tasks, newest first."""
    found = list(client.newest("/v1/tasks", state, limit))
    if as_json:
        print_json(found)
        return
    rows = [
        (
            task["id"],
            task["state"],
            shortened(task["model"], 24),
            task["output_tokens"],
            task["attempt"],
            time_of(task["created_at_ms"] / 1000),
        )
        for task in found
    ]
    print_table(("ID", "STATE", "MODEL", "TOKENS", "ATTEMPT", "CREATED"), rows)


@tasks.command(epilog=example("retoma tasks show resp_019a…"))
@click.argument("task_id", metavar="ID")
@with_client
@json_option
def show(*, client: Client, task_id: str, as_json: bool) -> None:
    """Show one task: its state, its owner, and the restarts that it has seen."""
    task = client.get(f"/v1/tasks/{quote(task_id, safe='')}")
    if as_json:
        print_json(task)
        return
    restarts: list[dict[str, Any]] = task["restarts"]
    fields = [(name, _shown(name, value)) for name, value in task.items() if name not in {"object", "restarts"}]
    print_fields([*fields, ("restarts", len(restarts))])
    for restart in restarts:
        note_of = ", ".join(f"{name} {value}" for name, value in restart.items() if name != "at" and value is not None)
        click.echo(f"  {time_of(restart['at'])}: {note_of}")


@tasks.command(epilog=example("retoma tasks events resp_019a… --after 41", "retoma tasks events resp_019a… --follow"))
@click.argument("task_id", metavar="ID")
@with_client
@click.option("--after", type=click.IntRange(min=0), help="Only events with a higher number.")
@click.option("--follow", is_flag=True, help="Wait for more until the task has ended.")
@json_option
def events(*, client: Client, task_id: str, after: int | None, follow: bool, as_json: bool) -> None:
    """Print a task's log, event by event.

    With --json an array, or with --follow one object a line.
    """
    first = -1 if after is None else after
    if follow:
        patience = Patience(60.0, _tell)
        for event in Following(client, patience, response_id=task_id, after=first).events():
            click.echo(json.dumps(event.fields) if as_json else _line(event.fields))
        return
    found = _events(client, task_id, first)
    if as_json:
        print_json(list(found))
        return
    for event in found:
        click.echo(_line(event))


@tasks.command(epilog=example("retoma tasks cancel resp_019a…"))
@click.argument("task_id", metavar="ID")
@with_client
@json_option
def cancel(*, client: Client, task_id: str, as_json: bool) -> None:
    """Cancel a background response; one that has ended stays as it is."""
    response = client.post(f"/v1/responses/{quote(task_id, safe='')}/cancel")
    if as_json:
        print_json(response)
    elif response["status"] == "cancelled":
        click.echo(f"{response['id']} is cancelled")
    elif response["task"]["state"] == "cancelling":
        click.echo(f"{response['id']} is being cancelled")
    else:
        click.echo(f"{response['id']} had ended before: it is {response['status']}")


def _tell(outage: Outage) -> None:
    note(f"The service has gone away; waiting up to {outage.seconds_left:g} s for it to come back.")


def _events(client: Client, task_id: str, after: int) -> Iterator[dict[str, Any]]:
    path = f"/v1/tasks/{quote(task_id, safe='')}/events"
    while True:
        page = client.get(path, {"after": after if after >= 0 else None, "limit": _PAGE_EVENTS})
        yield from page["data"]
        if not page["has_more"]:
            return
        after = page["last_sequence_number"]


def _line(event: dict[str, Any]) -> str:
    if "delta" in event:
        about = json.dumps(event["delta"], ensure_ascii=False)
    elif "response" in event:
        about = event["response"]["task"]["state"]
    else:
        about = ""
    return f"{event['sequence_number']:>5}  {event['type']:<32}  {shortened(about, 70)}".rstrip()


def _shown(name: str, value: object) -> object:
    if name.endswith("_at_ms"):
        return time_of(value / 1000) if isinstance(value, int) else "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else value
