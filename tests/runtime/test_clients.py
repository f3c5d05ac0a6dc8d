"""What an instance knows of its clients when its store fails, and when it is asked too often."""

from __future__ import annotations

import asyncio
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from retoma.errors import RateLimited, StoreUnavailable
from retoma.runtime import clients as runtime_clients
from retoma.runtime.clients import Failures
from retoma.transactions.clients import Client, add_client, find_client, revoke_client
from tests.runtime.world import BOUND_S, World, running
from tests.support.clock import ManualClock

CLIENT = Client(f"cli_{'7' * 32}", "phone", frozenset({"models:read"}))
TOKEN = "rt_token"


async def add(world: World) -> None:
    digest = sha256(TOKEN.encode()).digest()
    await asyncio.to_thread(world.store.transact, partial(add_client, client=CLIENT, token_hash=digest, now_ms=0))


async def last_use(world: World) -> int | None:
    row = await world.instance.read(partial(find_client, client_id=CLIENT.id))
    assert row is not None
    return row.last_used_at_ms


def test_a_use_that_could_not_be_written_is_written_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with running(tmp_path) as world:
            await add(world)
            world.store.full = True
            assert await world.instance.clients.authenticate(TOKEN) == CLIENT
            async with asyncio.timeout(BOUND_S):
                while not world.store.refused:  # noqa: ASYNC110 - the fault is counted, not announced
                    await asyncio.sleep(0.005)
            world.store.full = False
            assert await last_use(world) is None
            await world.instance.clients.close()
            assert await last_use(world) is not None

    asyncio.run(run())
    assert "when clients were last seen" in caplog.text
    assert TOKEN not in caplog.text


def test_a_look_that_fails_is_followed_by_the_next_and_the_request_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store fails for two looks; the client is revoked by another process meanwhile."""
    monkeypatch.setattr(runtime_clients, "_LOOK_EVERY_S", 0.01)
    faults: list[Exception] = [StoreUnavailable("the store is away"), ValueError("a fault of our own")]

    async def run() -> None:
        async with running(tmp_path) as world:
            await add(world)
            clients = world.instance.clients
            read = world.store.read

            def failing(function: Any) -> Any:
                if faults and getattr(function, "func", None) is runtime_clients.read_revoked:
                    raise faults.pop()
                return read(function)

            world.store.read = failing
            ended = asyncio.Event()
            with clients.attending(CLIENT.id, ended.set):
                revoke = partial(revoke_client, client_id=CLIENT.id, now_ms=1)
                await asyncio.to_thread(world.store.transact, revoke)
                async with asyncio.timeout(BOUND_S):
                    await ended.wait()

    asyncio.run(run())
    assert faults == []
    assert "can't look whose token was revoked" in caplog.text
    assert "stumbled and goes on" in caplog.text


def test_an_instance_that_revokes_ends_its_own_requests_without_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_clients, "_LOOK_EVERY_S", 3600.0)

    async def run() -> None:
        async with running(tmp_path) as world:
            await add(world)
            clients = world.instance.clients
            ended: list[str] = []
            with (
                clients.attending(CLIENT.id, lambda: ended.append("first")),
                clients.attending(CLIENT.id, lambda: ended.append("second")),
                clients.attending(f"cli_{'8' * 32}", lambda: ended.append("another's")),
            ):
                await clients.revoke(CLIENT.id)
                assert ended == ["first", "second"]

    asyncio.run(run())


def test_nobody_looks_while_no_client_has_anything_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_clients, "_LOOK_EVERY_S", 0.001)
    looks: list[list[str]] = []

    def look(_tx: Any, client_ids: list[str]) -> list[str]:
        looks.append(client_ids)
        return []

    monkeypatch.setattr(runtime_clients, "read_revoked", look)

    async def run() -> None:
        async with running(tmp_path) as world:
            await world.text(await world.create("long enough for a thousand looks"))
            assert looks == []
            with world.instance.clients.attending(CLIENT.id, lambda: None):
                async with asyncio.timeout(BOUND_S):
                    while not looks:  # noqa: ASYNC110 - a look is counted, not announced
                        await asyncio.sleep(0.001)
            assert looks[0] == [CLIENT.id]

    asyncio.run(run())


def test_a_minute_has_room_for_so_many_failures_wherever_it_begins() -> None:
    clock = ManualClock()
    failures = Failures(clock, 3)
    for _ in range(3):
        failures.begin()
        clock.advance(10_000)
    for _ in range(3):
        with pytest.raises(RateLimited):
            failures.begin()
    clock.advance(30_000)  # the first is a minute old
    failures.begin()
    with pytest.raises(RateLimited):
        failures.begin()
    clock.advance(10_000)
    for _ in range(5):
        failures.begin()
        failures.forgive()
    failures.begin()
    with pytest.raises(RateLimited):
        failures.begin()


def test_refusals_do_not_prolong_the_wait() -> None:
    clock = ManualClock()
    failures = Failures(clock, 1)
    failures.begin()
    for _ in range(59):
        clock.advance(1_000)
        with pytest.raises(RateLimited):
            failures.begin()
    clock.advance(1_000)
    failures.begin()
