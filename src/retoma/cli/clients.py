"""`retoma clients`: who may use the service, on the data directory itself, with and without a running service."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import SplitResult, urlsplit

import click

from retoma.cli.opened import Opened, opened
from retoma.cli.options import data_dir_option, example, json_option, settings_for, store_option
from retoma.cli.printing import note, print_json, print_table, shortened, time_of
from retoma.core.pairing import code_of, is_name, spaced
from retoma.core.scopes import ADMIN, DEFAULT_SCOPES, SCOPES
from retoma.ids import SystemIds
from retoma.limits import CLIENT_NAME_CHARS_MAX, PAGE_ITEMS_MAX, PAIRING_MS
from retoma.settings import Settings
from retoma.transactions.clients import ClientRow, read_clients, revoke_client
from retoma.transactions.pairings import OpenPairing, open_pairing

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_FROM_OUTSIDE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - the wildcards, told from outside
_MINUTE_MS = 60_000


@click.group(epilog=example("retoma clients pair --name phone", "retoma clients list"))
def clients() -> None:
    """Let other programs and devices in, look at them, take their access away."""


@clients.command(
    epilog=example(
        "retoma clients pair --name phone --url http://192.168.1.20:8642",
        "retoma clients pair --scopes responses:read,tasks:read",
    )
)
@click.option("--name", default="", help="What the client is called, unless it names itself.")
@click.option(
    "--scopes",
    default=",".join(DEFAULT_SCOPES),
    show_default=True,
    metavar="A,B",
    help=f"What it may do: {', '.join(SCOPES)}. With {ADMIN} everything, also with other clients' tasks.",
)
@click.option("--url", help="Where the client finds the service [env: RETOMA_URL; default: from the settings].")
@click.option("--qr/--no-qr", default=None, help="Show a QR code of the URL, or don't [default: on a terminal].")
@data_dir_option
@store_option
@json_option
def pair(
    *,
    name: str,
    scopes: str,
    url: str | None,
    qr: bool | None,
    data_dir: str | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Print a one-time code that makes one client. It is good for ten minutes.

    On the other device open the URL, or scan the QR code, or send the code to POST /v1/pairings. The fifth wrong try
    ends every code that is open.
    """
    if as_json and qr:
        raise click.UsageError("--qr and --json exclude each other")
    settings = settings_for(data_dir, store)
    base = _base_url(os.environ.get("RETOMA_URL") if url is None else url, settings)
    chosen, called = _chosen_scopes(scopes), _checked_name(name)
    with opened(settings) as here:
        ids = SystemIds(here.clock)
        code = code_of(ids.key())
        command = OpenPairing(ids.new("pair"), code, called, chosen, here.clock.wall_ms())
        expires_at_ms = here.store.transact(partial(open_pairing, command=command))
    target = f"{base.geturl()}/#pair={code}"
    if as_json:
        print_json({"code": code, "expires_at": expires_at_ms // 1000, "url": target})
        return
    click.echo(f"Code  {spaced(code)}")
    if sys.stdout.isatty() if qr is None else qr:
        _print_qr(target)
    click.echo(f"URL   {target}")
    minutes = PAIRING_MS // _MINUTE_MS
    click.echo(f"Good for {minutes} minutes and for one client, which may: {', '.join(sorted(chosen))}.")
    if base.hostname in _LOOPBACK:
        note("This URL leads to this machine only. For another device: `retoma serve --host …`, and --url here.")


@clients.command("list", epilog=example("retoma clients list", "retoma clients list --all --json"))
@click.option("--all", "revoked_too", is_flag=True, help="The revoked ones too.")
@data_dir_option
@store_option
@json_option
def list_clients(*, revoked_too: bool, data_dir: str | None, store: str | None, as_json: bool) -> None:
    """List the paired clients, newest first. The last use may be told a minute late."""
    with opened(settings_for(data_dir, store)) as here:
        rows = list(_clients(here, revoked_too=revoked_too))
    if as_json:
        print_json([_wire(row) for row in rows])
        return
    columns = ["NAME", "ID", "CREATED", "LAST USE", *(["REVOKED"] if revoked_too else []), "SCOPES"]
    print_table(columns, [_cells(row, revoked_too=revoked_too) for row in rows])


@clients.command(epilog=example("retoma clients revoke cli_019a…"))
@click.argument("client_id", metavar="ID")
@data_dir_option
@store_option
def revoke(*, client_id: str, data_dir: str | None, store: str | None) -> None:
    """Take a client's access away, at once. Its unfinished background tasks go on.

    Its open streams end within about a second. Again it changes nothing.
    """
    with opened(settings_for(data_dir, store)) as here:
        here.store.transact(partial(revoke_client, client_id=client_id, now_ms=here.clock.wall_ms()))
    click.echo(f"{client_id} is revoked")


def _base_url(given: str | None, settings: Settings) -> SplitResult:
    if given is None:
        if not settings.port:
            raise click.UsageError("the service picks its port at each start; say with --url where it is")
        host = _FROM_OUTSIDE.get(settings.host, settings.host)
        given = f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"
    try:
        parts = urlsplit(given)
        sound = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        sound = parts = None
    if parts is None or not sound:
        raise click.UsageError(f"{given!r} is no URL of a service; it looks like http://192.168.1.20:8642")
    return parts._replace(path=parts.path.rstrip("/"), query="", fragment="")


def _chosen_scopes(text: str) -> frozenset[str]:
    chosen = [scope.strip() for scope in text.split(",")]
    for scope in chosen:
        if scope not in SCOPES:
            raise click.UsageError(f"there is no scope {scope!r}; there are {', '.join(SCOPES)}")
    return frozenset(chosen)


def _checked_name(name: str) -> str:
    if name and not is_name(name):
        raise click.UsageError(f"--name takes a text of 1 to {CLIENT_NAME_CHARS_MAX} printable characters")
    return name


def _print_qr(text: str) -> None:
    from retoma.cli.qr import qr_lines  # noqa: PLC0415 - only where one is shown

    click.echo()
    for line in qr_lines(text, sys.stdout.encoding or "ascii"):
        click.echo(line, color=True)  # the colours are the code, also in a file
    click.echo()


def _clients(here: Opened, *, revoked_too: bool) -> Iterator[ClientRow]:
    before = ""
    while True:
        read = partial(read_clients, before=before, limit=PAGE_ITEMS_MAX, revoked_too=revoked_too)
        page = here.store.read(read)
        yield from page
        if len(page) < PAGE_ITEMS_MAX:
            return
        before = page[-1].id


def _cells(row: ClientRow, *, revoked_too: bool) -> list[object]:
    times = [row.created_at_ms, row.last_used_at_ms, *([row.revoked_at_ms] if revoked_too else [])]
    told = [time_of(None if at_ms is None else at_ms / 1000) for at_ms in times]
    return [shortened(row.name, 30), row.id, *told, ",".join(row.scope_list)]


def _wire(row: ClientRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "scopes": row.scope_list,
        "created_at": row.created_at_ms // 1000,
        "last_used_at": None if row.last_used_at_ms is None else row.last_used_at_ms // 1000,
        "revoked_at": None if row.revoked_at_ms is None else row.revoked_at_ms // 1000,
    }
