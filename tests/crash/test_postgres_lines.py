"""Real services on PostgreSQL whose line to it is cut, goes mute or is late, or whose server goes away."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.api import Api, text_of
from tests.support.audit import assert_store_is_sound
from tests.support.places import place_on
from tests.support.postgres import NoServer, PostgresServer, administer, new_schema, wait_past_grace
from tests.support.proxy import Proxy
from tests.support.service import RunningService, start_service
from tests.support.waiting import wait_for

LEASE_S = 1.5
# Each token in an event of its own, so that there are many places to break at.
CALM = {"RETOMA_SCRIPTED_TOKEN_MS": "5", "RETOMA_SCRIPTED_TOKENS": "200", "RETOMA_OUTPUT_EVERY_MS": "0"}
SLOW = {
    "RETOMA_SCRIPTED_TOKEN_MS": "35",
    "RETOMA_SCRIPTED_TOKENS": "200",
    "RETOMA_LEASE_S": str(LEASE_S),
    "RETOMA_WORKERS": "1",
}


@pytest.fixture(scope="module")
def line(postgres: str) -> Iterator[Proxy]:
    with Proxy(new_schema(postgres)) as made:
        yield made


@pytest.fixture(scope="module")
def service(line: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """One that reaches its store by the line."""
    data_dir = place_on(line.url, tmp_path_factory.mktemp("line") / "data")
    with start_service(data_dir, env=CALM) as running:
        yield running
        assert running.stop() == 0
    assert_store_is_sound(data_dir)


@pytest.fixture(scope="module")
def expected(service: RunningService) -> str:
    """The text of one that nothing happened to."""
    api = Api(service)
    return text_of(api.wait_finished(api.create()))


def cut_every_line(line: Proxy) -> int:
    return line.cut_all()


def end_every_session(line: Proxy) -> int:
    """As an operator might: every session of every Retoma on this schema's server but our own."""
    ended = administer(
        line.url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name LIKE 'retoma %' AND pid <> pg_backend_pid()",
    )
    return len(ended)


def cut_at_a_commit(line: Proxy, when: str) -> int:
    before = line.commits_cut
    line.cut_at_commit("before" if when == "before" else "after")
    wait_for(lambda: line.commits_cut > before, f"a line to be cut {when} a COMMIT")
    return line.commits_cut - before


FAULTS: dict[str, Callable[[Proxy], int]] = {
    "every line is cut": cut_every_line,
    "every session is ended": end_every_session,
    "cut before a COMMIT": lambda line: cut_at_a_commit(line, "before"),
    "cut after a COMMIT": lambda line: cut_at_a_commit(line, "after"),
}


@pytest.mark.requirement("S-002", "S-005", "P-11.2-seq")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_text_and_its_stream_survive(service: RunningService, line: Proxy, expected: str, fault: str) -> None:
    api = Api(service)
    task = api.create(key=fault.replace(" ", "-"))
    happened = 0
    for seq, _ in api.stream(task):
        if seq in {5, 25, 60}:
            happened += FAULTS[fault](line)
    assert happened >= 3, "the fault never happened"
    ended = api.wait_finished(task)
    assert (ended["status"], text_of(ended), ended["task"]["restarts"]) == ("completed", expected, [])
    assert api.follow(task) > 60
    assert api.create(key=fault.replace(" ", "-")) == task


@pytest.mark.requirement("S-005", "P-11.2-persist")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_request_whose_commit_is_cut_is_accepted_once(service: RunningService, line: Proxy, when: str) -> None:
    """While nothing else writes but renewals, which may be the ones that are cut; so it is done some times."""
    api = Api(service)
    before = line.commits_cut
    made = set[str]()
    for number in range(6):
        line.cut_at_commit("before" if when == "before" else "after")
        made.add(api.create(key=f"{when}-{number}", max_output_tokens=1))
    assert line.commits_cut >= before + 3, "too few lines were cut"
    assert len(made) == 6
    for number in range(6):
        assert api.create(key=f"{when}-{number}", max_output_tokens=1) in made
    for task in made:
        assert api.wait_finished(task)["task"]["restarts"] == []


def instant_of(log: str, words: str) -> str:
    """When the service first logged these words; comparable within a day."""
    found = re.search(rf"^(\S+ \S+) .*{words}", log, re.MULTILINE)
    assert found, f"{words!r} is not in the log:\n{log}"
    return found[1]


@pytest.mark.requirement("S-006", "S-002")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", ["swallowed", "late"])
def test_an_instance_without_its_store_stops_before_another_takes_over_and_can_change_nothing_afterwards(
    fault: str, postgres_url: str, tmp_path: Path, expected: str
) -> None:
    """Swallowed: nothing arrives. Late: the renewal, and all else that was sent, arrives after the take-over."""
    wait_past_grace(postgres_url)
    with (
        Proxy(postgres_url) as line,
        start_service(place_on(line.url, tmp_path / "cut-off"), env=SLOW) as cut_off,
        start_service(place_on(postgres_url, tmp_path / "other"), env=SLOW) as other,
    ):
        here, there = Api(cut_off), Api(other)
        task, owner = here.create_here(), here.instance
        if fault == "swallowed":
            line.swallow()
        else:
            line.hold()
        wait_for(lambda: there.get(task)["task"]["instance"] != owner, "another to take over")
        there.wait_tokens(task, there.http.get(f"/v1/tasks/{task}").json()["output_tokens"] + 5)
        moved = there.get(task)["task"]
        assert moved["state"] == "running", "the text was over before the line was back"
        assert instant_of(cut_off.log, "pauses its work") < instant_of(other.log, "recovered 1 tasks")
        line.release()
        ended = there.wait_finished(task)
        assert ended["task"]["instance"] == moved["instance"]
        assert len(ended["task"]["restarts"]) == 1
        assert text_of(ended) == expected
        # The one that was cut off has a new name, and works again.
        assert here.wait_finished(here.create("another", max_output_tokens=5))["status"] == "incomplete"
        assert here.follow(task) == there.follow(task)
        names = {name for (name,) in administer(postgres_url, "SELECT id FROM instances WHERE state = 'alive'")}
        assert owner not in names
        assert line.bytes_swallowed + line.bytes_held > 0, "the line was never without a use"
        assert (line.bytes_swallowed > 0) == (fault == "swallowed")
        assert cut_off.stop() == other.stop() == 0
    assert_store_is_sound(tmp_path / "other")


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    try:
        made = PostgresServer()
    except NoServer as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no PostgreSQL of our own to stop: {missing}")
    yield made
    made.close()


@pytest.mark.requirement("S-002", "P-11.2-seq", "P-11.2-persist")
@pytest.mark.timeout(120)
def test_a_text_survives_a_restart_of_the_whole_server(server: PostgresServer, tmp_path: Path) -> None:
    data_dir = place_on(new_schema(server.url), tmp_path / "data")
    with start_service(data_dir, env={**CALM, "RETOMA_SCRIPTED_TOKEN_MS": "10"}) as service:
        api = Api(service)
        task = api.create()
        before = api.wait_tokens(task, 20)
        started = administer(server.url, "SELECT pg_postmaster_start_time()")
        server.stop("fast")
        away = api.http.get(f"/v1/responses/{task}")
        assert (away.status_code, away.json()["error"]["code"]) == (503, "store_unavailable")
        server.start()
        wait_for(lambda: api.http.get(f"/v1/responses/{task}").status_code == 200, "the store to be back")
        assert before < api.wait_tokens(task, before + 1)
        assert administer(server.url, "SELECT pg_postmaster_start_time()") != started
        ended = api.wait_finished(task)
        assert (ended["status"], text_of(ended)) == ("completed", text_of(api.wait_finished(api.create())))
        api.follow(task)
        assert service.stop() == 0
    assert_store_is_sound(data_dir)


@pytest.mark.timeout(120)
def test_a_second_signal_ends_a_service_whose_store_never_answers(postgres: str, tmp_path: Path) -> None:
    with Proxy(new_schema(postgres)) as mute:
        data_dir = place_on(mute.url, tmp_path / "data")
        with start_service(data_dir, env=CALM) as running:
            mute.swallow()
            for by in (signal.SIGTERM, signal.SIGINT):  # two of one kind may arrive as one
                running.process.send_signal(by)
            assert running.wait_exit(20) == 1
            mute.release()
