"""`retoma serve`: how it starts, what it says, how it ends."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import pytest

from tests.support.command import run_retoma
from tests.support.service import start_service


@pytest.mark.parametrize(("by", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_stops_in_good_order(by: signal.Signals, status: int, tmp_path: Path) -> None:
    with start_service(tmp_path / "data") as service:
        assert service.stop(by) == status
        assert "Traceback" not in service.log


def test_it_says_where_it_serves_and_how_to_stop_it(tmp_path: Path) -> None:
    with start_service(tmp_path / "data") as service:
        assert f"serving on {service.url}" in service.log
        assert "Ctrl-C stops it" in service.log
        assert httpx.get(f"{service.url}/readyz").status_code == 200


def test_its_log_has_one_line_a_record_and_neither_prompts_nor_tokens(tmp_path: Path) -> None:
    with start_service(
        tmp_path / "data", env={"RETOMA_SCRIPTED_TOKENS": "20"}, args=["--log-level", "debug"]
    ) as service:
        asked = run_retoma("ask", "my very private prompt", "--url", service.url, "--data-dir", service.data_dir)
        assert asked.status == 0
        service.stop()
        assert "private" not in service.log
        assert asked.out.split()[0] + " " + asked.out.split()[1] not in service.log
        assert service.token not in service.log
        assert all(line[:2] == "20" for line in service.log.splitlines()[1:])


def test_a_flag_goes_before_the_environment(tmp_path: Path) -> None:
    with start_service(tmp_path / "data", env={"RETOMA_HOST": "127.0.0.9"}, args=["--host", "127.0.0.1"]) as service:
        assert service.url.startswith("http://127.0.0.1:")


def test_it_ends_with_the_input_of_the_command_that_started_it(tmp_path: Path) -> None:
    with start_service(tmp_path / "data") as service:
        assert service.process.stdin is not None
        service.process.stdin.close()
        assert service.wait_exit() == 0
