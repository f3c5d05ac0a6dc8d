"""Webhooks as they arrive: the service is killed, paused, doubled and stopped; what was owed is delivered all the same.

The receiver is a real server that outlives the service and records every delivery. Its record is what is believed. The
walk through the failpoints of the outbox is in test_failpoints.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from random import Random

import httpx
import pytest

from retoma.failpoints import Failpoint
from tests.support.api import Api
from tests.support.audit import assert_store_is_sound
from tests.support.places import another_host
from tests.support.receiver import Line, Receiver, answer, hang_then, in_turn
from tests.support.service import launch_service, start_service
from tests.support.waiting import wait_for
from tests.support.webhooks import listed, verify, wait_delivered

ENV = {
    "RETOMA_SCRIPTED_TOKEN_MS": "2",
    "RETOMA_SCRIPTED_TOKENS": "12",
    "RETOMA_WORKERS": "3",
    "RETOMA_WEBHOOK_PRIVATE": "yes",
    # A killed sender's message comes due again this long (and a margin of 5 s) after its try was counted.
    "RETOMA_WEBHOOK_TIMEOUT_S": "5",
}
TASKS = 24
KILLS = 6


@pytest.mark.requirement("S-005", "S-005c")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("point", [Failpoint.FINISH_WRITTEN, Failpoint.FINISH_COMMITTED], ids=lambda point: point.label)
def test_nothing_is_sent_before_the_end_is_committed_and_everything_after(data_dir: Path, point: Failpoint) -> None:
    with Receiver() as receiver:
        with start_service(data_dir, env={**ENV, "RETOMA_FAILPOINT": point.label}) as service:
            api = Api(service)
            task = api.create(webhook={"url": receiver.url})
            assert service.wait_exit() == -signal.SIGKILL
        assert receiver.deliveries == []
        with start_service(data_dir, env=ENV) as service:
            api.attach(service)
            wait_delivered(api, [task])
            assert verify(receiver, api, [task]).total() == 1
            assert service.stop() == 0
    assert_store_is_sound(data_dir)


@pytest.mark.requirement("S-005", "S-007")
@pytest.mark.requirement("S-005a", "S-007a", "S-007b")
@pytest.mark.timeout(240)
def test_a_storm_of_kills_loses_no_webhook_and_never_changes_one(data_dir: Path, rng: Random) -> None:
    """Half of the answers are slow, so that the kills fall into every moment of a try."""

    def kill_in_the_middle(api: Api, wanted: int) -> None:
        seen = len(receiver.deliveries)
        wait_for(lambda: len(receiver.deliveries) >= seen + wanted or _all_told(api, tasks), "something to kill")
        api.service.kill(engines_too=rng.random() < 0.5)

    tasks: list[str] = []
    with Receiver(in_turn(*[rng.choice([answer(200), late]) for _ in range(3 * TASKS)])) as receiver:
        for number in range(KILLS):
            with start_service(data_dir, env=ENV) as service:
                api = Api(service)
                tasks += [api.create(f"{number} {one}", webhook={"url": receiver.url}) for one in range(TASKS // KILLS)]
                kill_in_the_middle(api, rng.randrange(1, 4))
        with start_service(data_dir, env=ENV) as service:
            api.attach(service)
            for task in tasks:
                assert api.wait_finished(task)["status"] == "completed"
            found = wait_delivered(api, tasks)
            times = verify(receiver, api, tasks)
            assert service.stop() == 0
        assert len(tasks) == len(found) == TASKS
        assert times.total() > TASKS, "the kills came too late to interrupt anything"
        assert max(message["tries"] for message in found.values()) > 1
    assert_store_is_sound(data_dir)


def late(line: Line) -> None:
    line.hang(0.2)
    answer(200)(line)


def _all_told(api: Api, tasks: list[str]) -> bool:
    found = listed(api)
    return all(found[task]["state"] == "delivered" for task in tasks)


@pytest.mark.requirement("S-002", "S-002a")
@pytest.mark.timeout(180)
def test_two_instances_share_the_sending_and_nothing_is_sent_twice_without_a_fault(data_dir: Path) -> None:
    with Receiver() as receiver, start_service(data_dir, env=ENV) as one:
        other_dir = another_host(data_dir)
        with start_service(other_dir, env=ENV) as two:
            apis = [Api(one), Api(two)]
            tasks: list[str] = []

            def submit(api: Api) -> None:
                tasks.extend([api.create(f"task {number}", webhook={"url": receiver.url}) for number in range(30)])

            threads = [threading.Thread(target=submit, args=(api,)) for api in apis]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert len(tasks) == 60
            for task in tasks:
                apis[0].wait_finished(task)
            wait_delivered(apis[1], tasks)
            times = verify(receiver, apis[0], tasks)
            assert times.total() == len(tasks), {message: count for message, count in times.items() if count > 1}
            assert two.stop() == 0
        assert one.stop() == 0
    assert_store_is_sound(data_dir)


@pytest.mark.requirement("S-002", "S-006", "S-006a")
@pytest.mark.timeout(180)
def test_an_instance_without_workers_goes_on_sending_what_a_killed_or_a_paused_one_owed(data_dir: Path) -> None:
    """The paused one wakes up with an answer to a try that is not the latest any more, and changes nothing."""
    with Receiver(in_turn(hang_then(answer(200)), answer(200))) as receiver:
        patient = {**ENV, "RETOMA_WEBHOOK_TIMEOUT_S": "3"}
        with start_service(data_dir, env=patient) as owner:
            api = Api(owner)
            task = api.create(webhook={"url": receiver.url})
            wait_for(lambda: receiver.deliveries, "the first try")
            owner.process.send_signal(signal.SIGSTOP)
            with start_service(another_host(data_dir), env={**patient, "RETOMA_WORKERS": "0"}) as other:
                rescuer = Api(other)
                message = wait_delivered(rescuer, [task])[task]
                assert message["tries"] == 2
                receiver.free.set()
                owner.process.send_signal(signal.SIGCONT)
                wait_for(lambda: _answers(api), "the paused one to go on")
                assert listed(rescuer)[task] == message
                assert verify(receiver, rescuer, [task]).total() == 2
                owner.kill()
                later = rescuer.create(webhook={"url": receiver.url})
                assert rescuer.cancel(later)["status"] == "cancelled"
                wait_delivered(rescuer, [task, later])
                assert other.stop() == 0
    assert_store_is_sound(data_dir)


def _answers(api: Api) -> bool:
    try:
        return api.http.get("/readyz").status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.requirement("S-007", "S-007c")
@pytest.mark.timeout(120)
def test_a_receiver_that_was_down_over_a_restart_gets_its_message_in_the_end(tmp_path: Path) -> None:
    receiver = Receiver().start()
    receiver.stop()
    receiver.free.clear()
    data_dir = tmp_path / "data"
    with start_service(data_dir, env=ENV) as service:
        api = Api(service)
        task = api.create(webhook={"url": receiver.url})
        wait_for(lambda: listed(api)[task]["tries"] >= 1, "the first try")
        wait_for(lambda: listed(api)[task]["last_answer"], "its outcome")
        assert service.stop() == 0
    with receiver, start_service(data_dir, env=ENV) as service:
        api.attach(service)
        wait_delivered(api, [task])
        assert verify(receiver, api, [task]).total() == 1


@pytest.mark.timeout(120)
def test_an_orderly_stop_does_not_wait_long_for_a_receiver_that_hangs(tmp_path: Path) -> None:
    patient = {**ENV, "RETOMA_WEBHOOK_TIMEOUT_S": "600"}
    with Receiver(hang_then(answer(200))) as receiver, launch_service(tmp_path / "data", env=patient) as service:
        service.wait_ready()
        task = Api(service).create(webhook={"url": receiver.url})
        wait_for(lambda: receiver.deliveries, f"the webhook of {task}")
        assert service.stop() == 0  # within the bound of the helper, which is far below the time-out
