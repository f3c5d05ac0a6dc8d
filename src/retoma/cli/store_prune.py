"""`retoma store prune` and `retoma store compact`: what is past its time goes, and the space it took."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, fields

import click

from retoma.blobs.snapshots import SnapshotFolder
from retoma.cli.failures import OperationFailed
from retoma.cli.foreseen import Foreseen, foresee
from retoma.cli.looked_at import Read, look_at
from retoma.cli.opened import Opened, opened
from retoma.cli.options import Command, data_dir_option, example, json_option, settings_for, store_option
from retoma.cli.printing import note, print_fields, print_json, print_table, size_of, time_of
from retoma.clock import SystemClock
from retoma.core.clock_watch import is_far_ahead
from retoma.errors import Refused
from retoma.runtime.bridge import AsyncStore
from retoma.runtime.feed import Feed
from retoma.runtime.retention import Pruned, Retention, Windows
from retoma.settings import Settings
from retoma.transactions.prune import read_newest_finished
from retoma.transactions.service import read_stored_values

_SHOWN = {
    "stored": "finished responses",
    "unstored": "those with store=false",
    "keys": "idempotency keys",
    "snapshots": "snapshots of waiting texts",
}
_WINDOWS = {
    "retention_days": ("DAYS", "Keep finished responses so long; 0: for ever."),
    "unstored_minutes": ("MINUTES", "Keep finished responses with store=false so long."),
    "snapshot_hours": ("HOURS", "Keep snapshots of waiting texts so long; 0: as long as they wait."),
}
assert list(_WINDOWS) == [one.name for one in fields(Windows)]


def _window_options(command: Command) -> Command:
    for name, (unit, meaning) in reversed(_WINDOWS.items()):
        flag = f"--{name.replace('_', '-')}"
        command = click.option(flag, name, type=click.FloatRange(min=0), metavar=unit, help=meaning)(command)
    return command


@click.command(epilog=example("retoma store prune --dry-run", "retoma store prune --retention-days 7"))
@click.option("--dry-run", is_flag=True, help="Only say what would go; not one byte changes.")
@_window_options
@click.option("--trust-clock", is_flag=True, help="The clock is right, though it is far ahead of all that is stored.")
@data_dir_option
@store_option
@json_option
def prune(
    *,
    dry_run: bool,
    trust_clock: bool,
    data_dir: str | None,
    store: str | None,
    as_json: bool,
    **given: float | None,
) -> None:
    """Delete now what is past its time, as the service does once a minute, and give the space back.

    The windows are those of the settings; one that is given here counts for this run only. An unfinished response never
    goes. This may be done while the service runs, and interrupted.
    """
    settings = settings_for(data_dir, store)
    now_ms = SystemClock().wall_ms()
    if dry_run:
        snapshots = SnapshotFolder(settings.data_dir / "snapshots")

        def look(read: Read) -> Foreseen:
            return foresee(read, _windows(read, settings, given), snapshots, now_ms)

        _show_foreseen(look_at(settings, look), now_ms, as_json=as_json)
        return
    with opened(settings) as here:
        windows = _windows(here.store.read, settings, given)
        newest_ms = here.store.read(read_newest_finished)
        if not trust_clock and is_far_ahead(now_ms, newest_ms):
            raise Refused(f"{_far_ahead(now_ms, newest_ms)}; if the clock is right, say so with --trust-clock")
        pruned, given_back = asyncio.run(_prune(here, windows, now_ms))
    _show_pruned(settings, pruned, given_back, as_json=as_json)


@click.command(epilog=example("retoma store compact"))
@data_dir_option
@store_option
@json_option
def compact(*, data_dir: str | None, store: str | None, as_json: bool) -> None:
    """Write the SQLite file anew without its free space. The service must be stopped.

    Once is enough for a file of an older release: from then on it gives space back while it is in use. If this is
    interrupted or killed, the store is whole.
    """
    from retoma import bootstrap  # noqa: PLC0415 - brings the database's driver with it
    from retoma.store import sqlite_space  # noqa: PLC0415 - brings apsw with it

    settings = settings_for(data_dir, store)
    if settings.on_postgres:
        raise Refused("a store in PostgreSQL is compacted with the server's own tools: use VACUUM FULL")
    path = settings.database
    if not path.exists():
        raise OperationFailed(f"there is no store at {path}; name another place with --data-dir or --store")
    bootstrap.migrate_store(settings, SystemClock())
    done = sqlite_space.compact(path)
    if as_json:
        print_json(asdict(done))
    else:
        click.echo(f"The store takes {size_of(done.after_bytes)}; it took {size_of(done.before_bytes)}.")


def _windows(read: Read, settings: Settings, given: Mapping[str, float | None]) -> Windows:
    """What was given, else what is stored for all instances, else the settings here."""
    stored = read(read_stored_values)
    own = {name: stored.get(name, getattr(settings, name)) for name in _WINDOWS}
    return Windows(**(own | {name: value for name, value in given.items() if value is not None}))


async def _prune(here: Opened, windows: Windows, now_ms: int) -> tuple[Pruned, int]:
    snapshots = SnapshotFolder(here.settings.data_dir / "snapshots")
    retention = Retention(AsyncStore(here.store, Feed()), snapshots)
    pruned = await retention.prune(windows, now_ms)
    return pruned, await retention.give_space_back(all_of_it=True)


def _far_ahead(now_ms: int, newest_ms: int | None) -> str:
    return (
        f"the clock says {time_of(now_ms / 1000)}, and the last response in the store ended at "
        f"{time_of(newest_ms / 1000 if newest_ms is not None else None)}"
    )


def _show_foreseen(found: Foreseen, now_ms: int, *, as_json: bool) -> None:
    far = is_far_ahead(now_ms, found.newest_ms)
    if as_json:
        kinds = {kind: asdict(tally) for kind, tally in found.kinds.items()}
        print_json({"dry_run": True, "clock_far_ahead": far, "kinds": kinds})
        return
    rows = [
        (_SHOWN[kind], one.count, one.events, size_of(one.bytes), one.files, one.oldest or "–", one.newest or "–")
        for kind, one in found.kinds.items()
    ]
    print_table(("WOULD GO", "COUNT", "EVENTS", "BYTES", "FILES", "OLDEST", "NEWEST"), rows)
    if kept := sum(one.kept_by_key for one in found.kinds.values()):
        note(f"{kept} more are past their time and stay until their idempotency key has expired.")
    if far:
        note(f"Note: {_far_ahead(now_ms, found.newest_ms)}; without --trust-clock nothing would be deleted.")


def _show_pruned(settings: Settings, pruned: Pruned, given_back: int, *, as_json: bool) -> None:
    from retoma.store import sqlite_space  # noqa: PLC0415 - brings apsw with it

    space = None if settings.on_postgres else sqlite_space.space_of(settings.database)
    removed = {kind: getattr(pruned, kind) for kind in _SHOWN}
    if as_json:
        shown = {"given_back": given_back, "free": space.free_bytes if space else None}
        print_json({"dry_run": False, "kinds": {kind: {"count": n} for kind, n in removed.items()}, "bytes": shown})
        return
    print_fields([(f"removed {_SHOWN[kind]}", count) for kind, count in removed.items()])
    if space is None:
        note("PostgreSQL's autovacuum makes the space free for what comes; `VACUUM FULL` gives it back to the disk.")
        return
    print_fields([("given back to the disk", size_of(given_back)), ("free in the file", size_of(space.free_bytes))])
    if space.free_pages and not space.gives_back:
        note("This file is of a release that could not give space back: stop the service, then `retoma store compact`.")
