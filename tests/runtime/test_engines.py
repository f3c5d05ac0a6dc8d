"""An engine as the event loop sees it: its end is heard whenever it comes."""

from __future__ import annotations

import asyncio

import pytest

from retoma.engines.frames import Generate, Load
from retoma.errors import EngineCrashed
from retoma.runtime.engines import Bounds, Engine
from tests.runtime.world import BOUND_S


def test_an_end_that_is_waiting_behind_the_last_frames_is_not_lost() -> None:
    """Everything has come, the end as well, before the first frame is taken: as when a commit has taken long."""

    async def run() -> None:
        crashes: list[str] = []
        load = Load("scripted", "scripted", None, "", 4096, 1, 1)
        engine = Engine(load, Bounds(BOUND_S, BOUND_S), crashes.append)
        await engine.start()
        messages = [{"role": "user", "content": "[[crash]]"}]
        generation = engine.begin(Generate("key", messages, None, 0.0, 1.0, 1))
        async with asyncio.timeout(BOUND_S):
            await engine.exited.wait()
            await generation.next()
            while generation.waiting() is not None:
                pass
            with pytest.raises(EngineCrashed):
                await generation.next()
        assert crashes == ["engine_crashed"]

    asyncio.run(run())


def test_an_engine_that_was_asked_to_end_has_not_crashed() -> None:
    async def run() -> None:
        crashes: list[str] = []
        engine = Engine(Load("scripted", "scripted", None, "", 4096, 1, 1), Bounds(BOUND_S, BOUND_S), crashes.append)
        await engine.start()
        await engine.stop()
        await engine.exited.wait()
        assert crashes == []

    asyncio.run(run())
