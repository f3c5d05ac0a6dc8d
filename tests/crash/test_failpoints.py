"""Every named failpoint, passed in the real service: it dies there, starts again, and the task reaches its one end.

The failpoints of `models add` are walked in tests/cli; every other one has its flow here, and a test fails if a new one
has none.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from retoma.failpoints import Failpoint
from tests.support.api import Api, text_of
from tests.support.audit import assert_store_is_sound
from tests.support.command import run_retoma
from tests.support.places import place_on
from tests.support.postgres import wait_past_grace
from tests.support.receiver import Receiver
from tests.support.service import RunningService, launch_service, start_service
from tests.support.waiting import wait_for
from tests.support.webhooks import listed, verify, wait_delivered

TOKENS = 64
CALM = {"RETOMA_SCRIPTED_TOKEN_MS": "5", "RETOMA_SCRIPTED_TOKENS": str(TOKENS)}
REQUEST = {"prompt": "walk", "key": "once", "on_restart": "resume"}
RETRIED = {**REQUEST, "on_restart": "retry"}


def armed(point: Failpoint, **settings: str) -> dict[str, str]:
    """Snapshots are taken so often that each of their failpoints is passed."""
    return {**CALM, "RETOMA_SNAPSHOT_EVERY_TOKENS": "4", **settings, "RETOMA_FAILPOINT": point.label}


def create_until_death(point: Failpoint, data_dir: Path) -> str | None:
    """Submits to a service that dies somewhere on the way; the id, if there was an answer."""
    with start_service(data_dir, env=armed(point)) as service:
        task = None
        with contextlib.suppress(httpx.HTTPError):
            task = Api(service).create(**REQUEST)
        assert service.wait_exit() == -signal.SIGKILL
        return task


def create_and_leave(data_dir: Path) -> str:
    """A task that is running when its service is killed."""
    with start_service(data_dir, env=CALM) as service:
        api = Api(service)
        task = api.create(**REQUEST)
        api.wait_tokens(task, 5)
        service.kill()
        return task


def submit(point: Failpoint, data_dir: Path) -> None:
    """The main flow: whether or not the first try was answered, the same key leads to one task and one text."""
    answered = create_until_death(point, data_dir)
    with start_service(data_dir, env=CALM) as service:
        api = Api(service)
        task = api.create(**REQUEST)
        assert answered in {None, task}
        assert api.wait_finished(task)["status"] == "completed"
        assert len(api.http.get("/v1/tasks").json()["data"]) == 1


def cancel(point: Failpoint, data_dir: Path) -> None:
    with start_service(data_dir, env=armed(point)) as service:
        api = Api(service)
        task = api.create(**REQUEST)
        api.wait_tokens(task, 5)
        with pytest.raises(httpx.HTTPError):
            api.cancel(task)
        assert service.wait_exit() == -signal.SIGKILL
    with start_service(data_dir, env=CALM) as service:
        api.attach(service)
        # Not committed: the text goes on, and the client that had no answer cancels again.
        ended = api.wait_finished(task) if point is Failpoint.CANCEL_COMMITTED else api.cancel(task)
        assert ended["status"] == "cancelled"


def engine_crash(point: Failpoint, data_dir: Path) -> None:
    with start_service(data_dir, env=armed(point)) as service:
        api = Api(service)
        task = api.create(**RETRIED)
        api.wait_tokens(task, 5)
        os.kill(service.engine_pids()[0], signal.SIGKILL)
        assert service.wait_exit() == -signal.SIGKILL
    assert_goes_on(data_dir, task, RETRIED)


def recovery(point: Failpoint, data_dir: Path) -> None:
    task = create_and_leave(data_dir)
    with launch_service(data_dir, env=armed(point)) as service:
        assert service.wait_exit() == -signal.SIGKILL
    assert_goes_on(data_dir, task, REQUEST)


def deletion(point: Failpoint, data_dir: Path) -> None:
    with start_service(data_dir, env=armed(point)) as service:
        api = Api(service)
        task = api.create(**REQUEST)
        api.wait_finished(task)
        with pytest.raises(httpx.HTTPError):
            api.http.delete(f"/v1/responses/{task}")
        assert service.wait_exit() == -signal.SIGKILL
    with start_service(data_dir, env=CALM) as service:
        api.attach(service)
        gone = api.http.get(f"/v1/responses/{task}").status_code == 404
        assert gone == (point is Failpoint.DELETE_COMMITTED)


def retention(point: Failpoint, data_dir: Path) -> None:
    with start_service(data_dir, env=CALM) as service:
        api = Api(service)
        task, kept = api.create(store=False), api.create()
        api.wait_finished(task)
        api.wait_finished(kept)
    with launch_service(data_dir, env=armed(point, RETOMA_UNSTORED_MINUTES="0")) as service:
        assert service.wait_exit() == -signal.SIGKILL
    with start_service(data_dir, env={**CALM, "RETOMA_UNSTORED_MINUTES": "0"}) as service:
        api.attach(service)
        wait_for(lambda: api.http.get(f"/v1/responses/{task}").status_code == 404, "the expired response to go")
        assert api.get(kept)["status"] == "completed"


def pairing(point: Failpoint, data_dir: Path) -> None:
    """A code whose answer got lost is as good as before, or used up for a client that is seen and can be revoked."""
    with start_service(data_dir, env=armed(point)) as service:
        code = new_code(data_dir)
        with pytest.raises(httpx.HTTPError):
            exchange(service, code)
        assert service.wait_exit() == -signal.SIGKILL
    with start_service(data_dir, env=CALM) as service:
        api = Api(service)
        ghosts = [client["id"] for client in api.http.get("/v1/clients").json()["data"]]
        assert len(ghosts) == (point is Failpoint.PAIR_COMMITTED)
        assert exchange(service, code).status_code == (401 if ghosts else 201)
        for ghost in ghosts:
            assert exchange(service, new_code(data_dir)).status_code == 201
            assert api.http.delete(f"/v1/clients/{ghost}").status_code == 200
        assert len(api.http.get("/v1/clients").json()["data"]) == 1


def new_code(data_dir: Path) -> str:
    return json.loads(run_retoma("clients", "pair", "--json", "--data-dir", data_dir).out)["code"]


def exchange(service: RunningService, code: str) -> httpx.Response:
    return httpx.post(f"{service.url}/v1/pairings", json={"code": code}, timeout=60)


def webhook(point: Failpoint, data_dir: Path) -> None:
    """Delivered in the end, and twice only where nobody knows whether once was enough; unconfirmed until then."""
    env = {"RETOMA_WEBHOOK_PRIVATE": "yes", "RETOMA_WEBHOOK_TIMEOUT_S": "3"}
    told_unknown = point in {Failpoint.OUTBOX_SENT, Failpoint.OUTBOX_WRITTEN}
    with Receiver() as receiver:
        with start_service(data_dir, env=armed(point, **env)) as service:
            api = Api(service)
            task = api.create(**REQUEST, webhook={"url": receiver.url})
            assert service.wait_exit() == -signal.SIGKILL
        assert len(receiver.deliveries) == (point is not Failpoint.OUTBOX_CLAIMED)
        with start_service(data_dir, env={**CALM, **env}) as service:
            api.attach(service)
            message = listed(api)[task]
            known = "delivered" if point is Failpoint.OUTBOX_COMMITTED else "unconfirmed"
            assert (message["state"], message["tries"]) == (known, 1)
            wait_delivered(api, [task])
            assert verify(receiver, api, [task]).total() == (2 if told_unknown else 1)


def inside_the_engine(point: Failpoint, data_dir: Path) -> None:
    """The engine dies, the service does not, and the text is the same."""
    with start_service(data_dir, env=armed(point)) as service:
        api = Api(service)
        ended = api.wait_finished(api.create(**REQUEST))
        assert ended["status"] == "completed"
        assert [entry["cause"] for entry in ended["task"]["restarts"]] == ["engine_crashed"]
        assert text_of(ended) == text_of(api.wait_finished(api.create("walk")))
        assert service.stop() == 0


def assert_goes_on(data_dir: Path, task: str, request: dict[str, str]) -> None:
    with start_service(data_dir, env=CALM) as service:
        api = Api(service)
        assert api.wait_finished(task)["status"] == "completed"
        assert api.create(**request) == task


FLOWS: dict[str, Callable[[Failpoint, Path], None]] = {
    "accept": submit,
    "claim": submit,
    "start": submit,
    "append": submit,
    "finish": submit,
    "snapshot_row": submit,
    "cancel": cancel,
    "requeue": engine_crash,
    "recover": recovery,
    "register": recovery,
    "delete": deletion,
    "prune": retention,
    "outbox": webhook,
    "pair": pairing,
    "snapshot": inside_the_engine,
    "engine": inside_the_engine,
}
# The transactions of a task's life: the other flows are of files, or of an engine, which know no store.
ON_POSTGRESQL_TOO = {"accept", "claim", "append", "finish", "cancel", "recover", "pair", "outbox"}
WALKED_ELSEWHERE = {"model", "model_row"}  # tests/cli: they are passed in the command line's process


def flow_of(point: Failpoint) -> str:
    return point.label.partition(".")[0]


WALKED = [point for point in Failpoint if flow_of(point) in FLOWS]


def test_every_failpoint_has_a_flow_that_passes_it() -> None:
    assert {flow_of(point) for point in Failpoint} == FLOWS.keys() | WALKED_ELSEWHERE


@pytest.mark.requirement("S-005")
@pytest.mark.requirement("S-007")
@pytest.mark.requirement("P-11.2-persist")
@pytest.mark.requirement("P-11.2-cancel", "S-005a", "S-007a", "S-007b")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("point", WALKED, ids=lambda point: point.label)
def test_a_service_that_dies_at_a_failpoint_loses_and_doubles_nothing(point: Failpoint, tmp_path: Path) -> None:
    FLOWS[flow_of(point)](point, tmp_path)
    assert_store_is_sound(tmp_path)


@pytest.mark.requirement("S-005")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "point", [point for point in WALKED if flow_of(point) in ON_POSTGRESQL_TOO], ids=lambda point: point.label
)
def test_on_postgresql_a_service_that_dies_in_a_transaction_loses_and_doubles_nothing(
    point: Failpoint, postgres_url: str, tmp_path: Path
) -> None:
    wait_past_grace(postgres_url)
    data_dir = place_on(postgres_url, tmp_path / "data")
    FLOWS[flow_of(point)](point, data_dir)
    assert_store_is_sound(data_dir)
