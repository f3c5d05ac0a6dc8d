"""A real instance on the test's own event loop, without HTTP, with the model `scripted` in real engine processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from retoma.clock import SystemClock
from retoma.core.events import encode_json
from retoma.core.task import OnRestart
from retoma.errors import StoreFull
from retoma.ids import SystemIds
from retoma.runtime.instance import Instance
from retoma.settings import Settings
from retoma.store.contract import Outcome, Settle, Tx
from retoma.store.migrate import prepare
from retoma.store.sqlite import SqliteStore
from retoma.transactions.accept import Accept
from retoma.transactions.cancel import Cancel
from retoma.transactions.read import SeenResponse, read_response, read_task

BOUND_S = 30.0


class FullableStore(SqliteStore):
    """A store whose disk can be full. A refused write is counted, so that a test can tell that it happened."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.full = False
        self.refused = 0

    def submit(self, function: Callable[[Tx], Any], settle: Settle) -> None:
        if self.full:
            self.refused += 1
            settle(Outcome(error=StoreFull()))
        else:
            super().submit(function, settle)


class World:
    """An instance and what a test does with it."""

    def __init__(self, instance: Instance, store: FullableStore) -> None:
        self.instance = instance
        self.store = store

    async def create(self, prompt: str, *, model: str = "scripted", on_restart: str = "resume") -> str:
        request = {
            "echo": {"model": model},
            "input": [],
            "messages": [{"role": "user", "content": prompt}],
            "generation": {
                "max_output_tokens": None,
                "temperature": 0.0,
                "top_p": 1.0,
                "seed": 1,
                "stop": [],
                "truncation": "disabled",
                "format": None,
            },
        }
        ids, clock = self.instance.ids, self.instance.clock
        command = Accept(
            task_id=ids.new("resp"),
            client_id="tester",
            model=model,
            background=True,
            stored=True,
            on_restart=OnRestart(on_restart),
            request=encode_json(request),
            instance_id=self.instance.instance_id,
            now_ms=clock.wall_ms(),
            op_id=ids.op_id(),
        )
        return (await self.instance.accept(command)).task_id

    async def cancel(self, task_id: str) -> SeenResponse:
        instance = self.instance
        return await instance.cancel(Cancel(task_id, "", instance.clock.wall_ms(), instance.ids.op_id()))

    async def get(self, task_id: str) -> SeenResponse:
        return await self.instance.read(partial(read_response, task_id=task_id))

    async def finished(self, task_id: str) -> SeenResponse:
        async with asyncio.timeout(BOUND_S):
            return await self.instance.finished(task_id)

    async def text(self, task_id: str) -> str:
        body = (await self.finished(task_id)).body
        assert body["status"] == "completed", body["error"]
        return body["output"][0]["content"][0]["text"]

    async def tokens(self, task_id: str, at_least: int) -> int:
        """Waits until so many tokens are committed, by following the log."""
        async with asyncio.timeout(BOUND_S):
            async for _ in self.instance.follow(task_id, -1):
                task = await self.instance.read(partial(read_task, task_id=task_id))
                if task.tokens >= at_least:
                    return task.tokens
        raise AssertionError(f"{task_id} ended before it had {at_least} tokens")


@asynccontextmanager
async def running(folder: Path, **settings: Any) -> AsyncGenerator[World]:
    """An instance on this folder's store, started; stopped in good order at the end."""
    chosen = Settings(data_dir=folder, scripted=True, **settings)
    clock = SystemClock()
    prepare(chosen.database, clock.wall_ms())
    store = FullableStore(chosen.database)
    instance = Instance(store, chosen, clock, SystemIds(clock), "token")
    await instance.start()
    try:
        yield World(instance, store)
    finally:
        store.full = False
        await instance.stop()
