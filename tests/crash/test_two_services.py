"""Two services on one data directory: both stay correct, and the living one takes over from the dead one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.api import Api, text_of
from tests.support.audit import assert_store_is_sound
from tests.support.service import start_service

SETTINGS = {"RETOMA_SCRIPTED_TOKEN_MS": "10"}


@pytest.mark.requirement("S-002")
@pytest.mark.timeout(120)
def test_a_second_service_takes_over_the_tasks_of_a_killed_one(tmp_path: Path) -> None:
    with (
        start_service(tmp_path, env=SETTINGS) as first,
        start_service(tmp_path, env={**SETTINGS, "RETOMA_WORKERS": "1"}) as second,
    ):
        here, there = Api(first), Api(second)
        task = here.create()
        before = here.wait_tokens(task, 20)
        assert before < 256
        first.kill()
        ended = there.wait_finished(task)
        assert ended["status"] == "completed"
        assert ended["task"]["restarts"][-1]["policy"] == "resume"
        same = text_of(there.wait_finished(there.create()))
        assert text_of(ended) == same
        assert second.stop() == 0
    assert_store_is_sound(tmp_path)


@pytest.mark.requirement("S-002")
@pytest.mark.timeout(120)
def test_any_service_streams_and_cancels_what_another_works_on(tmp_path: Path) -> None:
    with (
        start_service(tmp_path, env={**SETTINGS, "RETOMA_WORKERS": "2"}) as first,
        start_service(tmp_path, env={**SETTINGS, "RETOMA_WORKERS": "0"}) as second,
    ):
        worker, other = Api(first), Api(second)
        streamed, cancelled = worker.create("one"), other.create("two")
        assert other.follow(streamed) == worker.follow(streamed)
        other.wait_tokens(cancelled, 5)
        assert other.cancel(cancelled)["status"] == "cancelled"
        assert worker.get(cancelled)["status"] == "cancelled"
        assert worker.get(streamed)["status"] == "completed"
        assert first.stop() == second.stop() == 0
    assert_store_is_sound(tmp_path)


@pytest.mark.requirement("S-002")
@pytest.mark.timeout(120)
def test_a_living_neighbours_tasks_are_left_alone_by_a_start(tmp_path: Path) -> None:
    with start_service(tmp_path, env={**SETTINGS, "RETOMA_WORKERS": "1"}) as first:
        api = Api(first)
        running, queued = api.create(on_restart="fail"), api.create(on_restart="fail")
        api.wait_tokens(running, 5)
        with start_service(tmp_path, env={**SETTINGS, "RETOMA_WORKERS": "0"}) as second:
            assert second.stop() == 0
        for task in (running, queued):
            ended = api.wait_finished(task)
            assert (ended["status"], ended["task"]["restarts"]) == ("completed", [])
