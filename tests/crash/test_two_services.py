"""Two services on one store, on PostgreSQL as on two hosts: both stay correct, and the living one takes over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.api import Api, text_of
from tests.support.audit import assert_store_is_sound
from tests.support.places import another_host
from tests.support.service import start_service

SETTINGS = {"RETOMA_SCRIPTED_TOKEN_MS": "12"}


@pytest.mark.requirement("S-002", "S-002a")
@pytest.mark.timeout(120)
def test_a_second_service_takes_over_the_tasks_of_a_killed_one(data_dir: Path) -> None:
    with (
        start_service(data_dir, env=SETTINGS) as first,
        start_service(another_host(data_dir), env={**SETTINGS, "RETOMA_WORKERS": "1"}) as second,
    ):
        here, there = Api(first), Api(second)
        task = here.create_here()
        assert here.wait_tokens(task, 20) < 256
        first.kill()
        ended = there.wait_finished(task)
        assert ended["status"] == "completed"
        assert ended["task"]["restarts"][-1]["policy"] == "resume"
        same = text_of(there.wait_finished(there.create()))
        assert text_of(ended) == same
        assert second.stop() == 0
    assert_store_is_sound(data_dir)


@pytest.mark.requirement("S-002")
@pytest.mark.timeout(120)
def test_a_living_neighbours_tasks_are_left_alone_by_a_start(data_dir: Path) -> None:
    with start_service(data_dir, env={**SETTINGS, "RETOMA_WORKERS": "1"}) as first:
        api = Api(first)
        running, queued = api.create(on_restart="fail"), api.create(on_restart="fail")
        api.wait_tokens(running, 5)
        with start_service(another_host(data_dir), env={**SETTINGS, "RETOMA_WORKERS": "0"}) as second:
            assert second.stop() == 0
        for task in (running, queued):
            ended = api.wait_finished(task)
            assert (ended["status"], ended["task"]["restarts"]) == ("completed", [])
