"""`retoma ask`: one response, followed in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import click

from retoma.cli.child import ChildService, free_port
from retoma.cli.client import Client, Event, connection_options, find_target, local_target
from retoma.cli.failures import FAILED, INTERRUPTED
from retoma.cli.following import TERMINAL, Following, Outage, Patience, submit
from retoma.cli.options import example, settings_for
from retoma.cli.printing import note, print_json, write_text
from retoma.clock import SystemClock
from retoma.ids import SystemIds


class Printer:
    """Puts a response's events on the terminal: text on standard output, the rest on standard error."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._at_line_start = True
        self.text = ""
        self.final: dict[str, Any] | None = None

    def take(self, event: Event) -> None:
        """Shows one event."""
        if event.type == "response.output_text.delta":
            self._write(event.fields["delta"])
        elif event.type == "response.queued" and self.text:
            self.say("The service was restarted; this response's policy is to begin again, so the text starts anew:")
            self.text = ""
        elif event.type in TERMINAL:
            self.final = event.fields["response"]

    def say(self, sentence: str) -> None:
        """A note, on a line of its own where text and notes share a terminal."""
        if not self._at_line_start and sys.stdout.isatty() and sys.stderr.isatty():
            click.echo(err=True)
            self._at_line_start = True
        note(sentence)

    def end_line(self) -> None:
        """On a terminal the prompt must not stand behind the text; into a file goes the text and nothing more."""
        if not self._at_line_start and sys.stdout.isatty():
            click.echo()

    def _write(self, delta: str) -> None:
        self.text += delta
        if delta and not self._quiet:
            write_text(delta)
            self._at_line_start = delta.endswith("\n")


@click.command(
    epilog=example(
        'retoma ask "Why is the sea salty?"',
        "retoma ask --seed 7 --temperature 0.8 - < prompt.txt",
        'retoma ask --background "A long story, please."',
        "retoma ask --follow resp_019a…",
    )
)
@click.argument("prompt", required=False)
@connection_options
@click.option("--background", is_flag=True, help="Print the response's id and return; the service goes on.")
@click.option("--follow", "follow_id", metavar="ID", help="Follow a response that is there already, from its start.")
@click.option("--local", is_flag=True, help="Start a service for the occasion and end it afterwards.")
@click.option(
    "--on-restart",
    type=click.Choice(["fail", "retry", "resume"]),
    help="What a restart of the service does to the response [default: resume].",
)
@click.option("--model", metavar="NAME", help="A registered model [default: the service's].")
@click.option("--instructions", metavar="TEXT", help="How the model is to answer.")
@click.option("--max-output-tokens", type=click.IntRange(min=1), metavar="N", help="Stop after this many tokens.")
@click.option("--temperature", type=click.FloatRange(0, 2), metavar="X", help="0 takes the likeliest token each time.")
@click.option("--seed", type=int, metavar="N", help="The same seed and request lead to the same text.")
@click.option("--wait", type=click.FloatRange(min=0), default=60.0, show_default=True, metavar="SECONDS",
              help="How long to wait for a service that has gone away.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the final Response instead of the text.")
def ask(**options: Any) -> int:
    """Submit PROMPT (`-`: standard input) and follow the response until it ends.

    The response is a durable one: if the service is killed, `ask` waits for it to come back, and the text goes on where
    it was. Ctrl-C only detaches. The text goes to standard output, everything else to standard error.
    """
    request = None if options["follow_id"] else _request(options)
    if options["follow_id"] and (options["prompt"] is not None or options["background"]):
        raise click.UsageError("--follow takes neither a prompt nor --background", click.get_current_context())
    with _service(options) as client:
        if options["background"]:
            assert request is not None
            return _submit(client, request, options)
        return _follow(client, request, options)


def _request(options: dict[str, Any]) -> dict[str, Any]:
    prompt = options["prompt"]
    if prompt == "-":
        prompt = sys.stdin.read()
    if prompt is None or not prompt.strip():
        raise click.UsageError(
            "the prompt is empty; give a text, or - to read standard input", click.get_current_context()
        )
    names = ("model", "instructions", "max_output_tokens", "temperature", "seed", "on_restart")
    chosen = {name: options[name] for name in names if options[name] is not None}
    return {"input": prompt, "background": True, **chosen}


@contextmanager
def _service(options: dict[str, Any]) -> Generator[Client, None, None]:
    """The service to talk to; with --local one that ends with the command."""
    url, token, data_dir = options["url"], options["token"], options["data_dir"]
    if not options["local"]:
        with Client(find_target(url, token, data_dir)) as client:
            yield client
        return
    if url or options["background"]:
        raise click.UsageError("--local goes with neither --url nor --background", click.get_current_context())
    settings = settings_for(data_dir)
    with ChildService(settings.data_dir, free_port()) as child:
        child.start()
        with Client(local_target(child.url, settings.data_dir)) as client:
            yield client


def _patience(options: dict[str, Any], printer: Printer) -> Patience:
    def tell(outage: Outage) -> None:
        printer.say(f"{_sentence(outage.reason)} Waiting up to {outage.seconds_left:g} s for it to come back.")

    return Patience(options["wait"], tell)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].partition(";")[0].rstrip(".") + "."


def _new_key() -> str:
    return f"ask-{SystemIds(SystemClock()).op_id()}"


def _submit(client: Client, request: dict[str, Any], options: dict[str, Any]) -> int:
    response = submit(client, _patience(options, Printer()), request, _new_key())
    if options["as_json"]:
        print_json(response)
    else:
        click.echo(response["id"])
        note(f"Follow it with `retoma ask --follow {response['id']}`.")
    return 0


def _follow(client: Client, request: dict[str, Any] | None, options: dict[str, Any]) -> int:
    printer = Printer(quiet=options["as_json"])
    following = Following(
        client,
        _patience(options, printer),
        request={**request, "stream": True} if request else None,
        key=_new_key(),
        response_id=options["follow_id"] or "",
    )
    attachments = 1
    try:
        for event in following.events():
            if following.attachments > attachments:
                attachments = following.attachments
                printer.say("The service is back; the response goes on.")
            printer.take(event)
    except KeyboardInterrupt:
        printer.say(_how_to_go_on(following.response_id, local=options["local"]))
        return INTERRUPTED
    printer.end_line()
    assert printer.final is not None
    if options["as_json"]:
        print_json(printer.final)
    return report_end(printer.final)


def _how_to_go_on(response_id: str, *, local: bool) -> str:
    if not response_id:
        return "Interrupted before the service answered; `retoma tasks list` shows whether it took the request."
    if local:
        return f"Detached; the response is unfinished. Go on with `retoma ask --local --follow {response_id}`."
    return (
        f"Detached; the service goes on with it. Follow it again with `retoma ask --follow {response_id}`, "
        f"end it with `retoma tasks cancel {response_id}`."
    )


def report_end(response: dict[str, Any]) -> int:
    """Tells how a response ended, unless it simply completed; the exit status for it."""
    match response["status"]:
        case "completed":
            return 0
        case "incomplete":
            note(f"The response is incomplete ({response['incomplete_details']['reason']}).")
            return 0
        case "cancelled":
            note(f"Error: {response['id']} was cancelled; submit it again if that was a mistake")
            return FAILED
        case _:
            error: dict[str, Any] = response["error"]
            note(f"Error: {response['id']} failed ({error['code']}): {error['message']}")
            return FAILED
