"""The models that an instance can be asked for, and how an engine is told to load one."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from retoma.blobs.gguf_file import read_facts
from retoma.blobs.models import ModelFiles
from retoma.engines.frames import Load, Ready
from retoma.errors import (
    Conflict,
    InvalidRequest,
    ModelCorrupt,
    ModelNotFound,
    ModelUnavailable,
    NotFound,
    RetomaError,
    StoreFull,
    StoreUnavailable,
)
from retoma.runtime.bridge import AsyncStore
from retoma.runtime.service import ModelInfo
from retoma.settings import Settings
from retoma.store.rows import ModelRow
from retoma.transactions.models import (
    RegisterModel,
    add_model_facts,
    read_model,
    read_models,
    register_model,
    remove_model,
    set_model_state,
)

logger = logging.getLogger(__name__)

SCRIPTED = ModelInfo("scripted", 0, hashlib.sha256(b"scripted").hexdigest(), 0, "scripted", "available", {})
_SELF_TEST = "self_test"
_CHECKED = "checked"
_FOUND_CORRUPT = "found_corrupt"
_CORRUPT = "corrupt"


class Catalog:
    """The registry in the store, with `scripted` where it is switched on."""

    def __init__(self, store: AsyncStore, files: ModelFiles, settings: Settings) -> None:
        self._store = store
        self._files = files
        self._settings = settings
        self._importing = asyncio.Lock()

    async def list(self) -> list[ModelInfo]:
        """All models, by name."""
        rows = await self._store.read(read_models)
        found = [_info(row) for row in rows]
        if self._settings.scripted:
            found.append(SCRIPTED)
        return sorted(found, key=lambda model: model.name)

    async def find(self, name: str | None) -> ModelInfo:
        """The model of this name; without one, the configured or the only one. Raises ModelNotFound."""
        models = await self.list()
        wanted = name or self._settings.default_model
        if not models:
            raise ModelNotFound("no model is registered; add one with `retoma models add PATH`", param="model")
        if not wanted:
            if len(models) == 1:
                return models[0]
            raise ModelNotFound("name one of the registered models in `model`", param="model")
        for model in models:
            if model.name == wanted:
                return model
        raise ModelNotFound(
            f"no model named {wanted!r} is registered; `retoma models list` shows those that are", param="model"
        )

    async def register(self, file: str, name: str, now_ms: int) -> ModelInfo:
        """See Service.register_model. File first, row last; interrupted anywhere, it can be asked for again."""
        if name == SCRIPTED.name:
            raise InvalidRequest(f"the name {name!r} is that of the tests' model", param="name")
        source = self._files.incoming(file)
        try:
            async with self._importing:
                return await self._register(source, name, now_ms)
        except ModelUnavailable as unreadable:
            raise InvalidRequest(unreadable.message, param="file") from unreadable
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise StoreFull from error
            raise StoreUnavailable(f"the model's file can't be taken in: {error.strerror}") from error

    async def _register(self, source: Path, name: str, now_ms: int) -> ModelInfo:
        facts = await asyncio.to_thread(read_facts, source)
        taken = await asyncio.to_thread(self._files.import_file, source, _no_progress)
        told = f"incoming:{source.name}"
        command = RegisterModel(name, taken.digest, taken.size_bytes, "llama", told, facts, now_ms)
        row = await self._store.transact(partial(register_model, command=command))
        # Whoever removed the last row of the same content meanwhile may have taken the file with it.
        if not self._files.path(row.digest).exists():
            await asyncio.to_thread(self._files.import_file, source, _no_progress)
        await asyncio.to_thread(source.unlink, missing_ok=True)
        return _info(row)

    async def remove(self, name: str, version: int | None) -> None:
        """See Service.remove_model. The row goes now; housekeeping takes the file once no row names it."""
        if name == SCRIPTED.name and self._settings.scripted:
            raise Conflict("the model `scripted` is switched on by a setting and can't be removed")
        try:
            await self._store.transact(partial(remove_model, name=name, version=version))
        except ModelNotFound as missing:
            raise NotFound(missing.message) from missing

    async def loadable(self) -> frozenset[str] | None:
        """The models whose files are here; None on SQLite, where all instances see the same files.

        A task whose model is on another host waits for that host; on one host a missing file fails the task instead.
        """
        if not self._settings.on_postgres:
            return None
        models = await self.list()
        return frozenset(model.name for model in models if model is SCRIPTED or self._files.path(model.digest).exists())

    async def load_frame(self, name: str) -> Load:
        """How to load a model; raises ModelUnavailable or ModelCorrupt, each with what to do."""
        if name == SCRIPTED.name and self._settings.scripted:
            return self._frame(SCRIPTED, None)
        try:
            row = await self._store.read(partial(read_model, name=name))
        except ModelNotFound:
            raise ModelUnavailable(f"the model {name!r} has been removed since the request was accepted") from None
        await self._check_file(row)
        return self._frame(_info(row), str(self._files.path(row.digest)))

    async def loaded(self, load: Load, ready: Ready) -> None:
        """Remembers what the self-test has found, for the next time."""
        found = {
            "fingerprint": ready.fingerprint,
            "exact_restore": ready.exact_restore,
            "batch_invariant": ready.batch_invariant,
            "thread_invariant": ready.thread_invariant,
        }
        if load.model == SCRIPTED.name or load.flags_fingerprint == ready.fingerprint:
            return
        facts: dict[str, object] = {_SELF_TEST: found, "description": dict(ready.description)}
        await self._note(load.model, facts)

    async def _note(self, name: str, facts: dict[str, object]) -> None:
        try:
            await self._store.transact(partial(add_model_facts, name=name, facts=facts))
        except RetomaError as error:  # it will be found out again next time
            logger.warning("facts about %s were not stored: %s", name, error.message)

    async def mark_dangling(self) -> None:
        """At the start: a model whose file is missing or has another size is marked `corrupt`; no file is read."""
        await self._look_at_each(self._mark_if_dangling)

    async def find_back(self) -> None:
        """After the start: corrupt models whose file is another by now, and whole, are available again."""
        await self._look_at_each(self._is_back)

    async def _look_at_each(self, look: Callable[[ModelRow, list[int] | None], Awaitable[object]]) -> None:
        if self._settings.on_postgres:  # a file that isn't here may be on another host
            return
        try:
            for row in await self._store.read(read_models):
                await look(row, await asyncio.to_thread(self._files.seen, row.digest))
        except (RetomaError, OSError) as error:  # each load looks for itself as well
            logger.warning("not all model files were looked at: %s", error)

    async def _mark_if_dangling(self, row: ModelRow, seen: list[int] | None) -> None:
        if row.state == _CORRUPT or (seen is not None and seen[0] == row.size_bytes):
            return
        await self._mark(row.name, _CORRUPT, {_FOUND_CORRUPT: seen})
        found = "is missing" if seen is None else f"has {seen[0]} bytes, not {row.size_bytes}"
        logger.warning("the file of %s %s; put it back, or add it again with `retoma models add`", row.name, found)

    async def _is_back(self, row: ModelRow, seen: list[int] | None) -> bool:
        """A corrupt model whose file is another than the one that was found to be so, and whole, is available again."""
        if row.state != _CORRUPT or seen is None or row.fact_fields.get(_FOUND_CORRUPT) == seen:
            return False
        if not await asyncio.to_thread(self._files.matches, row.digest, _no_progress):
            await self._mark(row.name, _CORRUPT, {_FOUND_CORRUPT: seen})
            return False
        await self._mark(row.name, "available", {_FOUND_CORRUPT: None, _CHECKED: seen[:3]})
        logger.warning("the file of %s is back, and whole", row.name)
        return True

    async def _mark(self, name: str, state: str, facts: dict[str, object]) -> None:
        await self._store.transact(partial(set_model_state, name=name, state=state, facts=facts))

    async def _check_file(self, row: ModelRow) -> None:
        """The file must be what was registered: hashed again whenever its size, time or inode is not what it was."""
        try:
            seen = await asyncio.to_thread(self._files.seen, row.digest)
        except OSError as error:
            raise ModelUnavailable(f"the file of {row.name} can't be looked at: {error.strerror}") from error
        if seen is None:
            raise ModelUnavailable(
                f"the file of {row.name} is missing; put it back, or add it with `retoma models add`"
            )
        if row.state == _CORRUPT:
            if await self._is_back(row, seen):
                return
            raise ModelCorrupt(f"the file of {row.name} is corrupt; add it again with `retoma models add`")
        if row.fact_fields.get(_CHECKED) == seen[:3]:
            return
        intact = seen[0] == row.size_bytes and await asyncio.to_thread(self._files.matches, row.digest, _no_progress)
        if not intact:
            await self._mark(row.name, _CORRUPT, {_FOUND_CORRUPT: seen})
            raise ModelCorrupt(f"the file of {row.name} has changed since it was registered; add it again")
        await self._note(row.name, {_CHECKED: seen[:3]})

    def _frame(self, model: ModelInfo, path: str | None) -> Load:
        settings = self._settings
        flags: dict[str, Any] | None = model.facts.get(_SELF_TEST)
        return Load(
            engine=model.engine,
            model=model.name,
            path=path,
            digest=model.digest,
            context_tokens=settings.context_tokens,
            sequences=max(1, settings.workers),
            threads=settings.engine_threads,
            library=settings.llama_library,
            settings={
                "snapshot_every_tokens": settings.snapshot_every_tokens,
                "output_every_ms": settings.output_every_ms,
            },
            flags=flags,
            flags_fingerprint=flags["fingerprint"] if flags else "",
        )


def _info(row: ModelRow) -> ModelInfo:
    return ModelInfo(
        row.name, row.created_at_ms, row.digest, row.size_bytes, row.engine, row.state, row.fact_fields, row.version
    )


def _no_progress(_done: int, _total: int) -> None:
    pass
