"""A paused owner: others take over when its lease has run out, and what it writes when it wakes changes nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.api import Api, text_of
from tests.support.audit import assert_store_is_sound
from tests.support.places import another_host
from tests.support.service import start_service

SETTINGS = {"RETOMA_SCRIPTED_TOKEN_MS": "20", "RETOMA_LEASE_S": "1.5", "RETOMA_WORKERS": "1"}


@pytest.mark.requirement("S-006")
@pytest.mark.requirement("S-002", "S-006a", "S-006b")
@pytest.mark.timeout(120)
def test_a_service_that_was_paused_past_its_lease_loses_its_task_and_begins_anew(data_dir: Path) -> None:
    with (
        start_service(data_dir, env=SETTINGS) as paused,
        start_service(another_host(data_dir), env=SETTINGS) as other,
    ):
        here, there = Api(paused), Api(other)
        there.seen = here.seen
        task, owner = here.create_here(), here.instance
        before = here.wait_tokens(task, 20)
        os.kill(paused.pid, signal.SIGSTOP)
        taken = there.wait_tokens(task, before + 10)
        assert taken < 256, "the text was over before the old owner woke up"
        os.kill(paused.pid, signal.SIGCONT)
        ended = there.wait_finished(task)
        assert ended["status"] == "completed"
        assert ended["task"]["instance"] != owner
        (restart,) = ended["task"]["restarts"]
        assert restart["policy"] == "resume"
        # The same text as one that nothing happened to, and the same events for both services' clients.
        assert text_of(ended) == text_of(there.wait_finished(there.create()))
        assert there.follow(task) == here.follow(task)
        # The one that was paused has a new name and works again.
        assert here.wait_finished(here.create("another", max_output_tokens=5))["status"] == "incomplete"
        assert paused.stop() == other.stop() == 0
    assert_store_is_sound(data_dir)
