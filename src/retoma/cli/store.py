"""`retoma store`: what is in the store, whether it holds together, and copies of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import click

from retoma.cli.failures import FAILED, OperationFailed
from retoma.cli.opened import Opened, opened
from retoma.cli.options import data_dir_option, example, json_option, settings_for, store_option
from retoma.cli.printing import note, plain, print_fields, print_json, print_table, size_of, time_of
from retoma.cli.store_prune import compact, prune
from retoma.errors import Refused
from retoma.limits import PAGE_ITEMS_MAX
from retoma.transactions.check import Finding, check
from retoma.transactions.check_files import Folders, check_files
from retoma.transactions.instances import read_instances_and_owners
from retoma.transactions.models import read_models
from retoma.transactions.read import count_states
from retoma.transactions.rebuild import Rebuild, rebuild

# A file that is younger may belong to a command that is just about to write its row.
_SETTLED_AFTER_S = 60.0


@runtime_checkable
class Inspected(Protocol):
    """A store whose database can be asked whether it is whole."""

    def integrity_problems(self) -> list[str]:
        """What the database itself finds wrong."""
        ...


@runtime_checkable
class FileStore(Protocol):
    """A store that is a file of this machine."""

    def backup(self, path: Path) -> None:
        """A consistent copy under a new name."""
        ...


@runtime_checkable
class ServerStore(Protocol):
    """A store in a database server."""

    def size_bytes(self) -> int:
        """What its tables take."""
        ...


@click.group(epilog=example("retoma store info", "retoma store backup /mnt/backup/retoma.db"))
def store() -> None:
    """Look at the store, check it, copy it. All of this may be done while the service runs."""


@store.command(epilog=example("retoma store info", "retoma store info --json"))
@data_dir_option
@store_option
@json_option
def info(*, data_dir: str | None, store: str | None, as_json: bool) -> None:
    """Show the schema's version, sizes, how many tasks are in each state, and the instances."""
    with opened(settings_for(data_dir, store)) as here:
        found = _info(here)
    if as_json:
        print_json(found)
        return
    sizes, tasks, instances = found["bytes"], found["tasks"], found["instances"]
    print_fields(
        [
            ("store", found["store"]),
            ("schema", found["schema_version"]),
            *((f"size of {name}", size_of(size)) for name, size in sizes.items()),
            ("models", found["models"]),
            *((f"tasks {state}", count) for state, count in tasks.items()),
        ]
    )
    if not tasks:
        click.echo("There are no tasks.")
    if instances:
        columns = ("INSTANCE", "HOST", "PID", "STATE", "SINCE")
        click.echo()
        print_table(
            columns,
            [(i["id"], i["host"], i["pid"], i["state"], time_of(i["registered_at_ms"] / 1000)) for i in instances],
        )


@store.command("check", epilog=example("retoma store check", "retoma store check --json"))
@data_dir_option
@store_option
@json_option
def check_store(*, data_dir: str | None, store: str | None, as_json: bool) -> int:
    """Check the database, every invariant of every task, and the files of models and snapshots.

    Exit status 1 when something is wrong. Model files are not read through: `retoma models verify` does that.
    """
    with opened(settings_for(data_dir, store)) as here:
        findings = list(_findings(here))
    if as_json:
        print_json([_wire(finding) for finding in findings])
    elif findings:
        rows = [(f.invariant, f.task_id or "–", "–" if f.seq is None else f.seq, f.message) for f in findings]
        print_table(("INVARIANT", "TASK", "EVENT", "WHAT IS WRONG"), rows)
    else:
        click.echo("The store is sound.")
    if not findings:
        return 0
    note(f"Error: {len(findings)} findings; make a backup, then try `retoma store rebuild` or restore an older backup")
    return FAILED


@store.command("rebuild", epilog=example("retoma store rebuild", "retoma store rebuild --json"))
@data_dir_option
@store_option
@json_option
def rebuild_store(*, data_dir: str | None, store: str | None, as_json: bool) -> int:
    """Derive the stored responses again from the logs, compare them, and replace those that differ.

    It may be interrupted and run again. 1: some logs can't be read; their responses were left alone.
    """
    with opened(settings_for(data_dir, store)) as here:
        differed, unreadable = _rebuild(here)
    if as_json:
        print_json({"replaced": differed, "unreadable": unreadable})
    else:
        for task_id in differed:
            click.echo(f"{task_id}: replaced")
        click.echo(f"{len(differed)} responses were not what their logs add up to and have been replaced.")
    if not unreadable:
        return 0
    note(f"Error: the logs of {', '.join(unreadable)} can't be read; `retoma store check` says why")
    return FAILED


@store.command(epilog=example("retoma store backup /mnt/backup/retoma-monday.db"))
@click.argument("path", type=click.Path(path_type=Path))
@data_dir_option
@store_option
def backup(*, path: Path, data_dir: str | None, store: str | None) -> None:
    """Write a consistent copy of the store to PATH, which must not be there yet; the service may run meanwhile.

    Model files are not in it: copy the folder `models` as well. Snapshots only save time and need no backup.
    """
    settings = settings_for(data_dir, store)
    if settings.on_postgres:
        raise Refused("a store in PostgreSQL is copied with the server's own tools: use pg_dump with the store's URL")
    if path.exists() or path.is_symlink():
        raise Refused(f"{path} is there already; choose another name")
    if not path.absolute().parent.is_dir():
        raise OperationFailed(f"there is no folder {path.absolute().parent}; make it first, or choose another")
    with opened(settings) as here:
        assert isinstance(here.store, FileStore)
        here.store.backup(path)
    click.echo(f"The store is copied to {path} ({size_of(_size(path))})")


@store.command(epilog=example("retoma store migrate"))
@data_dir_option
@store_option
def migrate(*, data_dir: str | None, store: str | None) -> None:
    """Bring the store to this release's schema; every command that opens it does so too."""
    with opened(settings_for(data_dir, store)) as here:
        version = _schema_version(here)
    click.echo(f"The store has schema {version}, which is this release's.")


store.add_command(prune)
store.add_command(compact)


def _info(here: Opened) -> dict[str, Any]:
    instances, _ = here.store.read(read_instances_and_owners)
    data_dir = here.settings.data_dir
    return {
        "store": here.settings.shown_store,
        "schema_version": _schema_version(here),
        "bytes": {
            **_database_sizes(here),
            "models": _size_below(data_dir / "models"),
            "snapshots": _size_below(data_dir / "snapshots"),
        },
        "models": len(here.store.read(read_models)),
        "tasks": here.store.read(count_states),
        "instances": [
            {
                "id": instance.id,
                "host": instance.host,
                "pid": instance.pid,
                "state": instance.state,
                "registered_at_ms": instance.registered_at_ms,
            }
            for instance in instances
        ],
    }


def _database_sizes(here: Opened) -> dict[str, int]:
    if isinstance(here.store, ServerStore):
        return {"database": here.store.size_bytes()}
    database = here.settings.database
    return {"database": _size(database), "log": _size(database.with_name(f"{database.name}-wal"))}


def _schema_version(here: Opened) -> int:
    from retoma import bootstrap  # noqa: PLC0415 - brings the database's driver with it

    return bootstrap.migrate_store(here.settings, here.clock)


def _findings(here: Opened) -> Iterator[Finding]:
    from retoma import bootstrap  # noqa: PLC0415 - brings the database's driver with it

    assert isinstance(here.store, Inspected)
    problems = [*here.store.integrity_problems(), *bootstrap.schema_problems(here.settings)]
    yield from (Finding("I14", "", None, problem) for problem in problems)
    yield from here.store.read(check)
    folders = Folders(
        here.settings.data_dir / "models", here.settings.data_dir / "snapshots", complete=not here.settings.on_postgres
    )
    settled_before_s = here.clock.wall_ms() / 1000 - _SETTLED_AFTER_S
    yield from here.store.read(partial(check_files, folders=folders, settled_before_s=settled_before_s))


def _rebuild(here: Opened) -> tuple[list[str], list[str]]:
    differed: list[str] = []
    unreadable: list[str] = []
    after: str | None = ""
    while after is not None:
        page = here.store.transact(partial(rebuild, command=Rebuild(after, PAGE_ITEMS_MAX)))
        differed += page.differed
        unreadable += page.unreadable
        after = page.next_after
    return differed, unreadable


def _wire(finding: Finding) -> dict[str, Any]:
    return {
        "invariant": finding.invariant,
        "task_id": finding.task_id or None,
        "sequence_number": finding.seq,
        "message": plain(finding.message),
    }


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise OperationFailed(f"{path} can't be read: {error.strerror}") from error


def _size_below(folder: Path) -> int:
    return sum(_size(path) for path in folder.rglob("*") if path.is_file())
