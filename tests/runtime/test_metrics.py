"""The numbers of an instance are true: they are compared with what stands in the store."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from retoma.clock import SystemClock
from retoma.core.events import encode_json
from retoma.core.task import OnRestart
from retoma.ids import SystemIds
from retoma.runtime.instance import Instance
from retoma.settings import Settings
from retoma.store.migrate_postgres import prepare
from retoma.store.postgres import PostgresStore
from retoma.store.statements import Statement
from retoma.transactions.accept import Accept, IdempotencyKey
from retoma.transactions.recover import Recover, recover
from tests.runtime.world import BOUND_S, World, running
from tests.support.proxy import Proxy
from tests.support.scrape import Scrape

PROMPT = "tell me about the sea"
COUNT_EVENTS = Statement("metrics.count_events", "Counts.", "SELECT count(*), sum(length(tokens)) / 4 FROM task_events")
COUNT_ENDS = Statement("metrics.count_ends", "Counts.", "SELECT status, count(*) FROM responses GROUP BY status")


@pytest.fixture(autouse=True)
def slow_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETOMA_SCRIPTED_TOKEN_MS", "4")
    monkeypatch.setenv("RETOMA_SCRIPTED_TOKENS", "120")


async def scrape(instance: Instance) -> Scrape:
    async with asyncio.timeout(BOUND_S):
        return Scrape((await instance.measure()).decode())


def rows(world: World, one: Statement) -> list[tuple[Any, ...]]:
    return world.store.read(lambda tx: tx.rows(one, {}))


def test_what_is_counted_is_what_stands_in_the_log(tmp_path: Path) -> None:
    """Texts that end in every way: by themselves, by a bound, cancelled while queued and running, by crashes."""

    async def run() -> None:
        async with running(tmp_path, workers=1) as world:
            whole = await world.create(PROMPT)
            crashing = await world.create("[[crash]] now")
            cancelled = await world.create(PROMPT)
            queued = await world.create(PROMPT)
            for _ in range(2):  # the second changes nothing and counts for nothing
                await world.cancel(queued)
            await world.finished(whole)
            await world.finished(crashing)
            await world.tokens(cancelled, 5)
            for _ in range(2):
                await world.cancel(cancelled)
            found = await scrape(world.instance)

            ((events, tokens),) = rows(world, COUNT_EVENTS)
            assert found["retoma_events_committed_total"] == events
            assert found["retoma_output_tokens_total"] == tokens
            ends = {(status,): count for status, count in rows(world, COUNT_ENDS)}
            assert (
                found.of("retoma_tasks_finished_total")
                == ends
                == {("completed",): 1, ("failed",): 1, ("cancelled",): 2}
            )
            assert found["retoma_tasks_accepted_total"] == 4
            assert found["retoma_engine_crashes_total", "engine_crashed"] == 3
            assert found.of("retoma_recoveries_total") == {
                ("engine_crashed", "running", "resume", "running"): 2,
                ("engine_crashed", "running", "resume", "failed"): 1,
            }
            assert found.of("retoma_attempts_started_total") == {("prompt",): 3, ("log",): 2}
            assert found["retoma_time_to_first_token_seconds_count"] == 3
            statistics = world.store.statistics()
            assert found["retoma_store_sync_seconds_count"] <= statistics["commits"]
            assert found["retoma_store_commit_seconds_count"] == found["retoma_store_transactions_per_commit_sum"]
            assert events / 4 < found["retoma_store_commit_seconds_count"] <= statistics["transactions"]
            assert found["retoma_store_commit_seconds_sum"] >= found["retoma_store_sync_seconds_sum"] > 0

    asyncio.run(run())


def test_of_many_requests_with_one_key_one_is_counted(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path, workers=0) as world:
            ids, clock = world.instance.ids, world.instance.clock
            command = Accept(
                task_id="",
                client_id="tester",
                model="scripted",
                background=True,
                stored=True,
                on_restart=OnRestart.RESUME,
                request=encode_json({"echo": {"model": "scripted"}}),
                instance_id=world.instance.instance_id,
                now_ms=clock.wall_ms(),
                op_id="",
                key=IdempotencyKey(b"k" * 16, b"d" * 32, clock.wall_ms() + 60_000),
            )
            many = [replace(command, task_id=ids.new("resp"), op_id=ids.op_id()) for _ in range(8)]
            accepted = await asyncio.gather(*map(world.instance.accept, many))
            assert len({one.task_id for one in accepted}) == 1
            found = await scrape(world.instance)
            assert found["retoma_tasks_accepted_total"] == 1
            ((events, _),) = rows(world, COUNT_EVENTS)
            assert found["retoma_events_committed_total"] == events == 2

    asyncio.run(run())


def test_the_queue_is_shown_as_it_is_by_number_and_by_age(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path, workers=1) as world:
            empty = await scrape(world.instance)
            assert empty.of("retoma_tasks") == {}
            assert empty["retoma_queue_oldest_age_seconds"] == 0
            task = await world.create(PROMPT)
            await world.tokens(task, 1)
            first = await world.create(PROMPT)
            await world.create(PROMPT)
            accepted_at_ms = (await world.get(first)).task.created_at_ms
            before_ms = world.instance.clock.wall_ms()
            found = await scrape(world.instance)
            after_ms = world.instance.clock.wall_ms()
            assert found.of("retoma_tasks") == {("queued",): 2, ("running",): 1}
            age_ms = found["retoma_queue_oldest_age_seconds"] * 1000
            assert before_ms - accepted_at_ms <= round(age_ms) <= after_ms - accepted_at_ms
            assert found["retoma_workers"] == found["retoma_attempts_running"] == found["retoma_engines_loaded"] == 1
            assert found["retoma_store_bytes", "database"] == (tmp_path / "retoma.db").stat().st_size
            assert found["retoma_store_bytes", "wal"] > 0

    asyncio.run(run())


@pytest.mark.requirement("S-006")
def test_a_write_under_an_old_fencing_token_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETOMA_SCRIPTED_TOKENS", "4000")

    async def run() -> None:
        async with running(tmp_path, workers=1) as world:
            task = await world.create(PROMPT)
            await world.tokens(task, 5)
            ids, clock = world.instance.ids, world.instance.clock
            command = Recover(task, world.instance.instance_id, "inst_thief", clock.wall_ms(), ids.op_id())
            await asyncio.to_thread(world.store.transact, partial(recover, command=command))
            async with asyncio.timeout(BOUND_S):
                while (await scrape(world.instance))["retoma_attempts_running"]:  # noqa: ASYNC110 - as Prometheus does
                    await asyncio.sleep(0.005)
            found = await scrape(world.instance)
            assert found["retoma_fenced_writes_total"] == 1
            ((_, tokens),) = rows(world, COUNT_EVENTS)
            assert found["retoma_output_tokens_total"] == tokens, "what was refused is not counted"
            assert found.of("retoma_recoveries_total") == {}, "the thief's deed is not this instance's"

    asyncio.run(run())


def test_a_store_that_does_not_answer_takes_no_number_of_this_process_away(postgres_url: str, tmp_path: Path) -> None:
    prepare(postgres_url, 0)

    async def run(line: Proxy) -> None:
        clock = SystemClock()
        settings = Settings(data_dir=tmp_path, scripted=True, store=line.url, lease_s=1.0)
        instance = Instance(PostgresStore(line.url), settings, clock, SystemIds(clock), "token")
        await instance.start()
        try:
            fine = await scrape(instance)
            assert fine["retoma_store_problem"] == fine["retoma_instance_paused"] == 0
            assert fine["retoma_instances", "alive"] == 1
            assert "retoma_store_bytes" not in fine
            line.swallow()
            mute = await asyncio.gather(*(scrape(instance) for _ in range(8)))
            for found in mute:
                assert found["retoma_store_problem"] == 1
                assert "retoma_tasks" not in found, "nobody knows how many there are now"
                assert found["retoma_workers"] == 2
                assert found["retoma_store_commit_seconds_count"] >= 3
            found = mute[0]
            async with asyncio.timeout(BOUND_S):
                while not found["retoma_instance_paused"]:
                    found = await scrape(instance)
            line.release()
            async with asyncio.timeout(BOUND_S):
                while found["retoma_store_problem"] or found["retoma_instance_paused"]:
                    found = await scrape(instance)
            assert (await scrape(instance))["retoma_instances", "alive"] >= 1
        finally:
            line.release()
            await instance.stop()

    with Proxy(postgres_url) as line:
        asyncio.run(run(line))
