"""`retoma tasks`, `settings` and `failpoints`: what they print, for people and as JSON."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from retoma.failpoints import Failpoint
from retoma.settings import Settings
from tests.cli.conftest import SLOW
from tests.support.command import Running, run_retoma
from tests.support.service import RunningService, start_service


@pytest.fixture(scope="module")
def at(service: RunningService) -> list[str]:
    return ["--url", service.url, "--data-dir", str(service.data_dir)]


@pytest.fixture(scope="module")
def response_id(at: list[str]) -> str:
    return json.loads(run_retoma("ask", "hello", "--json", *at).out)["id"]


def test_a_task_is_listed_and_shown(at: list[str], response_id: str) -> None:
    listed = json.loads(run_retoma("tasks", "list", "--json", *at).out)
    assert [task["id"] for task in listed] == [response_id]
    table = run_retoma("tasks", "list", *at).out
    assert table.splitlines()[0].split() == ["ID", "STATE", "MODEL", "TOKENS", "ATTEMPT", "CREATED"]
    assert response_id in table
    shown = json.loads(run_retoma("tasks", "show", response_id, "--json", *at).out)
    assert shown["state"] == "completed"
    assert "completed" in run_retoma("tasks", "show", response_id, *at).out
    assert json.loads(run_retoma("tasks", "list", "--state", "failed", "--json", *at).out) == []


def test_events_are_printed_from_any_number_and_followed(at: list[str], response_id: str) -> None:
    everything = json.loads(run_retoma("tasks", "events", response_id, "--json", *at).out)
    assert [event["sequence_number"] for event in everything] == list(range(len(everything)))
    later = json.loads(run_retoma("tasks", "events", response_id, "--after", "3", "--json", *at).out)
    assert later == everything[4:]
    followed = run_retoma("tasks", "events", response_id, "--follow", "--json", *at).out.splitlines()
    assert [json.loads(line) for line in followed] == everything
    table = run_retoma("tasks", "events", response_id, *at).out.splitlines()
    assert len(table) == len(everything)


def test_more_tasks_than_a_page_are_listed_once_each(tmp_path: Path) -> None:
    import httpx

    with start_service(tmp_path / "data", args=["--workers", "0"]) as service:
        with httpx.Client(base_url=service.url, headers=service.headers) as client:
            body = {"input": "x", "background": True}
            made = [client.post("/v1/responses", json=body).json()["id"] for _ in range(105)]
        at = ("--url", service.url, "--data-dir", service.data_dir)
        listed = json.loads(run_retoma("tasks", "list", "--limit", "200", "--json", *at).out)
        assert [task["id"] for task in listed] == made[::-1]
        assert len(json.loads(run_retoma("tasks", "list", "--limit", "101", "--json", *at).out)) == 101


def test_cancel_ends_a_running_task_and_leaves_a_finished_one(tmp_path: Path) -> None:
    with start_service(tmp_path / "data", env=SLOW) as service:
        at = ("--url", service.url, "--data-dir", service.data_dir)
        response_id = run_retoma("ask", "hello", "--background", *at).out.strip()
        with Running(tmp_path / "follow", "tasks", "events", response_id, "--follow", *at) as following:
            following.wait_for_out(300)
            cancelled = run_retoma("tasks", "cancel", response_id, *at)
            assert (cancelled.status, cancelled.out) == (0, f"{response_id} is cancelled\n")
            ended = following.wait()
        assert ended.status == 0
        assert "response.cancelled" in ended.out.splitlines()[-1]
        again = run_retoma("tasks", "cancel", response_id, "--json", *at)
        assert json.loads(again.out)["status"] == "cancelled"


def test_every_setting_is_shown_with_its_source(tmp_path: Path) -> None:
    (tmp_path / "retoma.toml").write_text("threads = 3\n")
    shown = run_retoma("settings", "--json", "--data-dir", tmp_path, env={"RETOMA_WORKERS": "5"})
    rows = {row["name"]: row for row in json.loads(shown.out)}
    assert list(rows) == [setting.name for setting in fields(Settings)]
    assert (rows["threads"]["value"], rows["threads"]["source"]) == (3, str(tmp_path / "retoma.toml"))
    assert (rows["workers"]["value"], rows["workers"]["source"]) == (5, "environment")
    assert (rows["data_dir"]["value"], rows["data_dir"]["source"]) == (str(tmp_path), "flag")
    assert rows["port"]["source"] == "default"
    table = run_retoma("settings", "--data-dir", tmp_path).out
    assert all(name in table for name in rows)


def test_every_failpoint_is_listed_with_its_sentence() -> None:
    listed = json.loads(run_retoma("failpoints", "--json", env={"RETOMA_FAILPOINT": "wrong"}).out)
    assert listed == [{"name": point.label, "meaning": point.sentence} for point in Failpoint]
    assert "accept.written" in run_retoma("failpoints").out
