"""An instance under faults from beside it: a full disk, a lost lease, engines that crash, hang or vanish."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from retoma.blobs.models import ModelFiles
from retoma.errors import ShuttingDown
from retoma.transactions.instances import DeclareDead, declare_dead, read_instances_and_owners
from retoma.transactions.models import RegisterModel, read_model, register_model
from retoma.transactions.read import read_task
from tests.runtime.world import BOUND_S, World, running

PROMPT = "tell me about the sea"


@pytest.fixture(autouse=True)
def slow_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETOMA_SCRIPTED_TOKEN_MS", "4")
    monkeypatch.setenv("RETOMA_SCRIPTED_TOKENS", "120")


async def add_model(world: World, folder: Path, name: str) -> Path:
    """A registered model whose engine is `scripted` and whose file is a few bytes."""
    source = folder / f"{name}.gguf"
    source.write_bytes(b"GGUF" + name.encode() * 100)
    files = ModelFiles(folder / "models")
    imported = files.import_file(source, lambda _done, _total: None)
    command = RegisterModel(name, imported.digest, imported.size_bytes, "scripted", str(source), {}, 0)
    await asyncio.to_thread(world.store.transact, partial(register_model, command=command))
    return files.path(imported.digest)


def test_a_full_store_stops_a_text_where_it_is_and_the_text_goes_on_when_there_is_room(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as world:
            expected = await world.text(await world.create(PROMPT))
            task = await world.create(PROMPT)
            await world.tokens(task, 10)
            world.store.full = True
            async with asyncio.timeout(BOUND_S):
                while world.store.refused < 3:  # noqa: ASYNC110 - the fault is counted, not announced
                    await asyncio.sleep(0.005)
            world.store.full = False
            assert await world.text(task) == expected
            assert (await world.get(task)).body["task"]["restarts"] == []

    asyncio.run(run())


@pytest.mark.requirement("S-006")
def test_an_instance_that_was_declared_dead_begins_anew_and_its_text_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than the time between two renewals, at the second of which the instance learns of it.
    monkeypatch.setenv("RETOMA_SCRIPTED_TOKENS", "900")

    async def run() -> None:
        async with running(tmp_path, workers=1) as world:
            expected = await world.text(await world.create(PROMPT))
            task = await world.create(PROMPT)
            await world.tokens(task, 10)
            old = world.instance.instance_id
            rows, _ = await world.instance.read(read_instances_and_owners)
            dead = DeclareDead(rows[0].id, lock_is_free=True, boot_id=None)
            await asyncio.to_thread(world.store.transact, partial(declare_dead, command=dead))
            assert await world.text(task) == expected
            assert world.instance.instance_id != old
            (restart,) = (await world.get(task)).body["task"]["restarts"]
            assert restart["policy"] == "resume"

    asyncio.run(run())


def test_an_instance_that_pauses_its_work_and_goes_on_writes_the_same_text(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as world:
            expected = await world.text(await world.create(PROMPT))
            task = await world.create(PROMPT)
            before = await world.tokens(task, 10)
            world.instance.pause()
            during = await world.instance.read(partial(read_task, task_id=task))
            assert during.tokens < 120
            world.instance.resume()
            assert await world.text(task) == expected
            assert before < 120

    asyncio.run(run())


@pytest.mark.parametrize(("prompt", "code"), [("[[crash]] now", "engine_crashed"), ("[[stall]] now", "engine_stalled")])
@pytest.mark.parametrize(("policy", "attempts"), [("fail", 1), ("retry", 3), ("resume", 3)])
def test_a_prompt_that_kills_its_engine_fails_in_the_end_and_harms_nobody(
    prompt: str, code: str, policy: str, attempts: int, tmp_path: Path
) -> None:
    async def run() -> None:
        # Each token told by itself, so that no attempt seems to get further than another.
        async with running(tmp_path, stall_timeout_s=0.7, output_every_ms=0.0) as world:
            ended = await world.finished(await world.create(prompt, on_restart=policy))
            assert (ended.body["status"], ended.body["error"]["code"]) == ("failed", code)
            assert ended.task.attempt == attempts
            assert [entry["cause"] for entry in ended.task.restart_list] == [code] * attempts
            assert await world.text(await world.create(PROMPT))

    asyncio.run(run())


@pytest.mark.parametrize(("prompt", "code"), [("[[crash]] now", "engine_crashed"), ("[[stall]] now", "engine_stalled")])
def test_a_text_beside_one_that_kills_the_engine_goes_on_to_its_own_end(
    prompt: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine dies three times and more before its neighbour gets a token further."""
    monkeypatch.setenv("RETOMA_SCRIPTED_TOKEN_MS", "60")
    monkeypatch.setenv("RETOMA_SCRIPTED_TOKENS", "24")

    async def run() -> None:
        async with running(tmp_path, stall_timeout_s=0.7) as world:
            alone = await world.text(await world.create(PROMPT))
            innocent = await world.create(PROMPT)
            await world.tokens(innocent, 8)
            killers = [await world.finished(await world.create(prompt, on_restart="resume")) for _ in range(2)]
            assert {killer.body["error"]["code"] for killer in killers} == {code}
            ended = await world.finished(innocent)
            assert ended.body["status"] == "completed"
            assert await world.text(innocent) == alone
            causes = [entry["cause"] for entry in ended.task.restart_list]
            assert causes.count(code) >= 3, "the engine never died beside it"

    asyncio.run(run())


def test_a_model_stays_loaded_between_tasks_and_makes_room_for_another(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path, models_loaded=1) as world:
            await add_model(world, tmp_path, "first")
            await add_model(world, tmp_path, "second")
            await world.text(await world.create(PROMPT, model="first"))
            (loaded,) = world.instance.engine_pids().items()
            await world.text(await world.create(PROMPT, model="first"))
            assert world.instance.engine_pids() == dict([loaded])
            await world.text(await world.create(PROMPT, model="second"))
            assert world.instance.engine_pids().keys() == {"second"}

    asyncio.run(run())


@pytest.mark.requirement("P-11.1-files")
@pytest.mark.parametrize("damage", ["absent", "truncated", "foreign"])
def test_a_model_file_that_is_not_what_was_registered_fails_the_task_and_nothing_else(
    damage: str, tmp_path: Path
) -> None:
    async def run() -> None:
        async with running(tmp_path) as world:
            file = await add_model(world, tmp_path, "damaged")
            file.chmod(0o600)
            if damage == "absent":
                file.unlink()
            else:
                file.write_bytes(file.read_bytes()[:-1] if damage == "truncated" else b"x" * file.stat().st_size)
            ended = await world.finished(await world.create(PROMPT, model="damaged"))
            expected = "model_unavailable" if damage == "absent" else "model_corrupt"
            assert (ended.body["status"], ended.body["error"]["code"]) == ("failed", expected)
            row = await world.instance.read(partial(read_model, name="damaged"))
            assert row.state == ("available" if damage == "absent" else "corrupt")
            assert await world.text(await world.create(PROMPT))

    asyncio.run(run())


@pytest.mark.requirement("P-11.2-cancel")
def test_a_cancel_is_done_at_once_while_the_model_is_still_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETOMA_SCRIPTED_LOAD_MS", "600000")

    async def run() -> None:
        async with running(tmp_path) as world:
            task = await world.create(PROMPT)
            async for _ in world.instance.follow(task, -1):
                if (await world.get(task)).task.state == "loading":
                    break
            assert (await world.cancel(task)).body["status"] == "cancelled"

    asyncio.run(run())


@pytest.mark.requirement("P-11.2-startup")
def test_recovered_texts_are_all_continued_before_anything_new_is_claimed(tmp_path: Path) -> None:
    """Three running tasks are left behind and found by an instance with one worker; a fourth waits in the queue."""

    async def leave_behind() -> list[str]:
        async with running(tmp_path, workers=3) as world:
            tasks = [await world.create(f"{PROMPT} {number}") for number in range(3)]
            for task in tasks:
                await world.tokens(task, 5)
            return tasks

    async def find(tasks: list[str]) -> None:
        async with running(tmp_path, workers=1) as world:
            late = await world.create("the late one")
            for task in tasks:
                assert (await world.get(task)).task.state == "running"
            await world.text(late)
            ended = [(await world.get(task)).task for task in [*tasks, late]]
            assert max(task.finished_at_ms or 0 for task in ended[:3]) <= (ended[3].finished_at_ms or 0)
            assert [task.state for task in ended] == ["completed"] * 4

    tasks = asyncio.run(leave_behind())
    asyncio.run(find(tasks))


def test_an_orderly_stop_parks_a_text_in_a_snapshot_and_the_next_start_goes_on_from_there(tmp_path: Path) -> None:
    async def begin() -> tuple[str, str, int]:
        async with running(tmp_path) as world:
            expected = await world.text(await world.create(PROMPT))
            task = await world.create(PROMPT)
            await world.tokens(task, 10)
            return expected, task, len(list((tmp_path / "snapshots" / task).glob("*.snap")))

    async def go_on(task: str) -> tuple[str, dict[str, object]]:
        async with running(tmp_path) as world:
            text = await world.text(task)
            (restart,) = (await world.get(task)).body["task"]["restarts"]
            return text, restart

    expected, task, snapshots_before = asyncio.run(begin())
    assert len(list((tmp_path / "snapshots" / task).glob("*.snap"))) > snapshots_before
    text, restart = asyncio.run(go_on(task))
    assert text == expected
    assert restart["path"] == "snapshot"


def test_a_stopping_instance_lets_texts_end_within_its_grace_and_accepts_nothing_new(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path, grace_s=BOUND_S) as world:
            task = await world.create(PROMPT)
            await world.tokens(task, 5)
            draining = asyncio.create_task(world.instance.drain())
            await asyncio.sleep(0)
            with pytest.raises(ShuttingDown):
                await world.create("too late")
            assert (await world.finished(task)).body["status"] == "completed"
            await draining

    asyncio.run(run())


def test_a_second_signal_cuts_the_grace_short(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path, grace_s=3600.0) as world:
            task = await world.create(PROMPT)
            await world.tokens(task, 5)
            draining = asyncio.create_task(world.instance.drain())
            await asyncio.sleep(0)
            world.instance.begin_stop()
            async with asyncio.timeout(BOUND_S):
                await draining
            assert (await world.get(task)).task.state == "running"

    asyncio.run(run())


def test_an_attempt_that_is_stopped_after_its_engines_last_frame_waits_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is full while a whole short text arrives at once; the engine has forgotten the text by then."""
    monkeypatch.setenv("RETOMA_SCRIPTED_TOKEN_MS", "0")
    monkeypatch.setenv("RETOMA_SCRIPTED_TOKENS", "3")
    monkeypatch.setenv("RETOMA_SCRIPTED_LOAD_MS", "400")

    async def run() -> None:
        async with running(tmp_path, stall_timeout_s=600.0) as world:
            task = await world.create(PROMPT)
            async for _ in world.instance.follow(task, -1):
                if (await world.get(task)).task.state == "loading":
                    break
            world.store.full = True
            async with asyncio.timeout(BOUND_S):
                while world.store.refused < 3:  # noqa: ASYNC110 - the fault is counted, not announced
                    await asyncio.sleep(0.005)
            world.instance.pause()
            world.store.full = False
            world.instance.resume()
            assert await world.text(task)

    asyncio.run(run())
