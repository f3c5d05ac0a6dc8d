"""The table of P-11.3 with real processes: a service is killed with tasks in each state under each policy."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api, text_of
from tests.support.audit import assert_store_is_sound
from tests.support.service import RunningService, start_service
from tests.support.waiting import wait_for

POLICIES = ("fail", "retry", "resume")
# Per state: how the service is started so that three tasks get there and stay there.
SETTINGS = {
    "queued": {"RETOMA_WORKERS": "0"},
    "loading": {"RETOMA_WORKERS": "3", "RETOMA_SCRIPTED_LOAD_MS": "600000"},
    "running": {"RETOMA_WORKERS": "3", "RETOMA_SCRIPTED_TOKEN_MS": "20"},
    "cancelling": {"RETOMA_WORKERS": "3", "RETOMA_SCRIPTED_TOKEN_MS": "20", "RETOMA_CANCEL_WAIT_S": "0"},
}
CELLS = {
    "queued": {"fail": "failed", "retry": "queued", "resume": "queued"},
    "loading": {"fail": "failed", "retry": "queued", "resume": "queued"},
    "running": {"fail": "failed", "retry": "queued", "resume": "running"},
    "cancelling": {"fail": "cancelled", "retry": "cancelled", "resume": "cancelled"},
}
EVENTS = {
    "failed": "response.failed",
    "queued": "response.queued",
    "running": "response.in_progress",
    "cancelled": "response.cancelled",
}


def bring_to(state: str, api: Api, service: RunningService) -> dict[str, str]:
    """Three tasks in `state`, one a policy; their ids."""
    tasks = {policy: api.create(on_restart=policy) for policy in POLICIES}
    if state in {"running", "cancelling"}:
        for task_id in tasks.values():
            api.wait_tokens(task_id, 6)
    if state == "cancelling":
        for pid in service.engine_pids():
            os.kill(pid, signal.SIGSTOP)  # an engine that stands still can't confirm the cancel
        for task_id in tasks.values():
            api.cancel(task_id)
    for task_id in tasks.values():
        api.wait_state(task_id, [state])
    return tasks


def first_restart(api: Api, task_id: str) -> dict[str, Any] | None:
    """The recovery's event: the first that names the restart, as the kill may have come after one more commit."""
    log = api.events(task_id)
    return next((event for event in log if event.get("response", {}).get("task", {}).get("restarts")), None)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text that every one of these requests leads to."""
    with start_service(tmp_path_factory.mktemp("reference")) as service:
        api = Api(service)
        return text_of(api.wait_finished(api.create()))


@pytest.mark.requirement("P-11.2-startup")
@pytest.mark.requirement("P-11.3-table")
@pytest.mark.requirement("P-11.3-events")
@pytest.mark.requirement("S-002")
@pytest.mark.parametrize("state", CELLS)
def test_a_task_left_behind_by_kill_9_moves_as_the_table_says(state: str, data_dir: Path, uninterrupted: str) -> None:
    with start_service(data_dir, env=SETTINGS[state]) as service:
        api = Api(service)
        tasks = bring_to(state, api, service)
        service.kill()
    with start_service(data_dir, env={"RETOMA_WORKERS": "3", "RETOMA_SCRIPTED_TOKEN_MS": "1"}) as service:
        api.attach(service)
        for policy, task_id in tasks.items():
            moved = wait_for(lambda task_id=task_id: first_restart(api, task_id), "the recovery's event")
            assert moved is not None
            assert moved["type"] == EVENTS[CELLS[state][policy]]
            assert moved["response"]["task"]["state"] == CELLS[state][policy]
            assert moved["response"]["task"]["restarts"][-1]["from"] == state
            assert moved["response"]["task"]["restarts"][-1]["policy"] == policy
            ended = api.wait_finished(task_id)
            if CELLS[state][policy] == "failed":
                assert ended["status"] == "failed"
                assert ended["error"]["code"] == "server_restarted"
            elif CELLS[state][policy] == "cancelled":
                assert ended["status"] == "cancelled"
            else:
                assert (ended["status"], text_of(ended)) == ("completed", uninterrupted)
        assert service.stop() == 0
    assert_store_is_sound(data_dir)
