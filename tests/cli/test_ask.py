"""`retoma ask` against real services, which are killed and restarted under it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.cli.conftest import SLOW
from tests.support.command import Running, run_retoma
from tests.support.service import RunningService, free_port, is_alive, start_service
from tests.support.waiting import wait_for

ASK = ("ask", "--seed", "5", "Tell me everything.")


def at(service: RunningService) -> list[str]:
    return ["--url", service.url, "--data-dir", str(service.data_dir)]


def on(port: int) -> list[str]:
    return ["--port", str(port)]


def text_of(response: dict[str, object]) -> str:
    output = response["output"]
    assert isinstance(output, list)
    return "".join(part["text"] for item in output for part in item["content"])


def test_the_text_goes_to_standard_output_and_nothing_else_does(service: RunningService) -> None:
    printed = run_retoma(*ASK, *at(service))
    assert (printed.status, printed.err) == (0, "")
    response = json.loads(run_retoma(*ASK, "--json", *at(service)).out)
    assert printed.out == text_of(response)
    assert response["status"] == "completed"


def test_a_dash_reads_the_prompt_from_standard_input(service: RunningService) -> None:
    piped = run_retoma("ask", "--seed", "5", "-", *at(service), given="Tell me everything.")
    assert piped.out == run_retoma(*ASK, *at(service)).out


def test_an_incomplete_response_is_a_success_with_a_note(service: RunningService) -> None:
    ended = run_retoma(*ASK, "--max-output-tokens", "3", *at(service))
    assert ended.status == 0
    assert "incomplete (max_output_tokens)" in ended.err


def test_a_background_response_is_followed_by_its_id(service: RunningService) -> None:
    submitted = run_retoma(*ASK, "--background", *at(service))
    assert submitted.status == 0
    response_id = submitted.out.strip()
    assert response_id.startswith("resp_")
    followed = run_retoma("ask", "--follow", response_id, *at(service))
    assert followed.out == run_retoma(*ASK, *at(service)).out
    again = json.loads(run_retoma("ask", "--follow", response_id, "--json", *at(service)).out)
    assert again["id"] == response_id


def test_a_text_survives_kill_9_of_the_service_byte_for_byte(tmp_path: Path) -> None:
    port = free_port()
    with start_service(tmp_path / "data", env=SLOW, args=on(port)) as service:
        undisturbed = run_retoma(*ASK, *at(service))
        with Running(tmp_path / "ask", *ASK, *at(service)) as asking:
            asking.wait_for_out(100)
            service.kill()
            asking.wait_for_err("Waiting up to 60 s")
            with start_service(tmp_path / "data", env=SLOW, args=on(port)):
                ended = asking.wait()
    assert ended.status == 0, ended.err
    assert ended.out == undisturbed.out
    assert ended.err.count("Waiting") == 1
    assert "the response goes on" in ended.err


def test_a_text_survives_an_orderly_restart_as_well(tmp_path: Path) -> None:
    port = free_port()
    with start_service(tmp_path / "data", env=SLOW, args=on(port)) as service:
        undisturbed = run_retoma(*ASK, *at(service))
        with Running(tmp_path / "ask", *ASK, *at(service)) as asking:
            asking.wait_for_out(100)
            assert service.stop() == 0
            with start_service(tmp_path / "data", env=SLOW, args=on(port)):
                ended = asking.wait()
    assert (ended.status, ended.out) == (0, undisturbed.out), ended.err


def test_a_lost_reply_is_asked_for_again_and_makes_one_task(tmp_path: Path) -> None:
    port = free_port()
    failing = {**SLOW, "RETOMA_FAILPOINT": "accept.committed"}
    with (
        start_service(tmp_path / "data", env=failing, args=on(port)) as service,
        Running(tmp_path / "ask", *ASK, *at(service)) as asking,
    ):
        assert service.wait_exit() == -signal.SIGKILL
        with start_service(tmp_path / "data", env=SLOW, args=on(port)) as restarted:
            ended = asking.wait()
            tasks = json.loads(run_retoma("tasks", "list", "--json", *at(restarted)).out)
    assert ended.status == 0, ended.err
    assert len(tasks) == 1


def test_a_retried_text_begins_anew_and_says_so(tmp_path: Path) -> None:
    port = free_port()
    with start_service(tmp_path / "data", env=SLOW, args=on(port)) as service:
        undisturbed = run_retoma(*ASK, *at(service))
        with Running(tmp_path / "ask", *ASK, "--on-restart", "retry", *at(service)) as asking:
            asking.wait_for_out(100)
            service.kill()
            with start_service(tmp_path / "data", env=SLOW, args=on(port)):
                ended = asking.wait()
    assert ended.status == 0, ended.err
    assert "starts anew" in ended.err
    assert ended.out.endswith(undisturbed.out)
    assert undisturbed.out.startswith(ended.out.removesuffix(undisturbed.out))


def test_a_response_that_a_restart_failed_is_a_failure(tmp_path: Path) -> None:
    port = free_port()
    with (
        start_service(tmp_path / "data", env=SLOW, args=on(port)) as service,
        Running(tmp_path / "ask", *ASK, "--on-restart", "fail", *at(service)) as asking,
    ):
        asking.wait_for_out(50)
        service.kill()
        with start_service(tmp_path / "data", env=SLOW, args=on(port)):
            ended = asking.wait()
    assert ended.status == 1
    assert "server_restarted" in ended.err


def test_the_wait_for_a_service_that_stays_away_has_an_end(tmp_path: Path) -> None:
    with (
        start_service(tmp_path / "data", env=SLOW) as service,
        Running(tmp_path / "ask", *ASK, "--wait", "0.5", *at(service)) as asking,
    ):
        asking.wait_for_out(50)
        service.kill()
        ended = asking.wait()
    assert ended.status == 1
    assert "nothing listens" in ended.err


def test_ctrl_c_detaches_and_the_response_goes_on(tmp_path: Path) -> None:
    with start_service(tmp_path / "data", env=SLOW) as service:
        with Running(tmp_path / "ask", *ASK, *at(service)) as asking:
            asking.wait_for_out(50)
            asking.interrupt()
            ended = asking.wait()
        assert ended.status == 130
        response_id = next(word.strip("`.,") for word in ended.err.split() if word.startswith("resp_"))
        followed = run_retoma("ask", "--follow", response_id, *at(service))
        assert followed.status == 0
        assert followed.out.startswith(ended.out)


def test_local_starts_a_service_and_ends_it(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    ended = run_retoma(*ASK, "--local", "--data-dir", data_dir, env={"RETOMA_SCRIPTED_TOKENS": "40"})
    assert ended.status == 0, ended.err
    instances = json.loads(run_retoma("store", "info", "--json", "--data-dir", data_dir).out)["instances"]
    assert not any(is_alive(instance["pid"]) for instance in instances)


def test_local_says_how_to_go_on_with_what_is_unfinished(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with Running(tmp_path / "ask", *ASK, "--local", "--data-dir", data_dir, env=SLOW) as asking:
        asking.wait_for_out(50)
        asking.interrupt()
        ended = asking.wait()
    assert ended.status == 130
    response_id = next(word.strip("`.,") for word in ended.err.split() if word.startswith("resp_"))
    assert f"--local --follow {response_id}" in ended.err
    followed = run_retoma("ask", "--local", "--follow", response_id, "--data-dir", data_dir, env=SLOW)
    assert followed.status == 0, followed.err
    assert followed.out.startswith(ended.out)


def test_a_killed_ask_takes_its_local_service_with_it(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with Running(tmp_path / "ask", *ASK, "--local", "--data-dir", data_dir, env=SLOW) as asking:
        asking.wait_for_out(20)
        asking.process.kill()
        asking.process.wait(30)
        instances = json.loads(run_retoma("store", "info", "--json", "--data-dir", data_dir).out)["instances"]
        assert instances
        wait_for(lambda: not any(is_alive(instance["pid"]) for instance in instances), "the end of the service")


def test_a_cancelled_response_is_no_success(tmp_path: Path) -> None:
    with start_service(tmp_path / "data", env=SLOW) as service:
        response_id = run_retoma(*ASK, "--background", *at(service)).out.strip()
        with Running(tmp_path / "ask", "ask", "--follow", response_id, *at(service)) as asking:
            asking.wait_for_out(20)
            assert run_retoma("tasks", "cancel", response_id, *at(service)).status == 0
            ended = asking.wait()
    assert ended.status == 1
    assert "was cancelled" in ended.err
