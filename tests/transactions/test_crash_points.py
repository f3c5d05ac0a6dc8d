"""The process dies by SIGKILL at every named step of every transaction; what it was told is there afterwards."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from retoma.core.task import State
from retoma.errors import ModelNotFound, NotFound
from retoma.failpoints import Failpoint
from retoma.transactions.clients import find_client
from retoma.transactions.models import read_model
from tests.support import crash_server, evidence, processes
from tests.support.clock import SequentialIds
from tests.support.crash_places import Place, PostgresPlace, SqlitePlace, opened
from tests.support.evidence import Image
from tests.support.postgres import new_schema
from tests.support.world import World

# Steps of the engine and of the files, which have tests of their own; every other failpoint is one of a transaction.
ELSEWHERE = {point for point in Failpoint if point.label.partition(".")[0] in {"snapshot", "model", "engine"}}
ELSEWHERE |= {Failpoint.OUTBOX_SENT}
POINTS = [point for point in Failpoint if point not in ELSEWHERE]
PASSINGS_MAX = 60


class Crashes:
    """The fork server, and the place in which its last child died."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._server = processes.python("tests.support.crash_server", place.target)

    def die_at(self, failpoint: str) -> tuple[int, list[list[Any]]]:
        """The child's exit status and what it had been told."""
        self.place.put_back()
        processes.tell(self._server, failpoint)
        return self._answer()

    def cut_at(self, failpoint: str, cut: Callable[[str], None]) -> tuple[int, list[list[Any]]]:
        """The same of a child that stands still there until `cut`, which is given its sessions' name, has returned."""
        self.place.put_back()
        processes.tell(self._server, f"{failpoint}=pause")
        answer = json.loads(processes.line(self._server))
        if "paused" not in answer:
            return answer["status"], answer["acknowledged"]
        cut(answer["paused"])
        processes.tell(self._server, "go on")
        return self._answer()

    def _answer(self) -> tuple[int, list[list[Any]]]:
        answer = json.loads(processes.line(self._server))
        return answer["status"], answer["acknowledged"]

    def close(self) -> None:
        assert processes.end(self._server) == 0


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crashes]:
    made = Crashes(SqlitePlace(tmp_path_factory.mktemp("crashes")).filled())
    yield made
    made.close()


@pytest.fixture(scope="module")
def away(postgres: str) -> Iterator[Crashes]:
    """The same on PostgreSQL."""
    made = Crashes(PostgresPlace(new_schema(postgres)).filled())
    yield made
    made.close()


def recovered(world: World) -> dict[str, list[tuple[int, str, str]]]:
    """Takes over all that the dead left behind; every log afterwards."""
    for dead in (crash_server.LEFT_BEHIND_BY, "instance-1"):
        for task in world.unfinished_of(dead):
            assert world.recover(task) is not None
    return {task.id: world.log(task.id) for task in world.unfinished_of(world.me)}


def broken_promises(world: World, acknowledged: list[list[Any]]) -> list[list[Any]]:
    """What the dead process was told and does not hold."""
    gone = {words[1] for words in acknowledged if words[0] == "gone"}
    return [words for words in acknowledged if words[1] not in gone and not _holds(world, *words)] + [
        ["gone", task_id] for task_id in gone if _state(world, task_id) is not None
    ]


def _state(world: World, task_id: str) -> State | None:
    try:
        return world.task(task_id).state
    except NotFound:
        return None


def _holds(world: World, what: str, name: str, value: Any = None) -> bool:
    match what:
        case "accepted":
            return _state(world, name) is not None
        case "moved":
            return _state(world, name) is not None and world.task(name).fencing_token >= value
        case "events":
            return _state(world, name) is not None and world.task(name).last_seq >= value
        case "ended":
            return _state(world, name) == value
        case "tried":
            return world.message(name).tries >= value
        case "told":
            return value == "pending" or world.message(name).state == value
        case "paired":
            return world.store.read(lambda tx: find_client(tx, name)) is not None
        case _:
            return True


def model_is_there(world: World) -> bool:
    try:
        world.store.read(lambda tx: read_model(tx, crash_server.MODEL.name))
    except ModelNotFound:
        return False
    return True


def broken(place: Place, acknowledged: list[list[Any]], context: str) -> list[str]:
    """What is wrong with the store after a crash, before and after a recovery; nothing if it is sound."""
    found = place.problems()
    store = opened(place)
    world = World(store, ids=SequentialIds(9), me="instance-9")
    lost = broken_promises(world, acknowledged)
    if ["model", crash_server.MODEL.name, False] in acknowledged:
        # The flow ends with deletions; what they took before they could say so is missing rightly.
        lost = [words for words in lost if words[0] in {"gone", "paired"} or _state(world, words[1]) is not None]
    found += [f"this was acknowledged: {words}" for words in lost]
    models = [words[2] for words in acknowledged if words[0] == "model"]
    if models == [True] and not model_is_there(world) and "model_row.removed" not in context:
        found.append("a model that was registered is gone")
    if recovered(world) != recovered(world):
        found.append("a second recovery changed something")
    store.close()
    found += place.problems()
    return [context, *found] if found else []


def wrong_with(image: Image, folder: Path) -> list[str]:
    """The same of a file that a crash left behind."""
    place = SqlitePlace(folder)
    image.put_into(place.folder)
    found = broken(place, image.facts["acknowledged"], image.where)
    if found:
        evidence.keep_image(image)
    return found


def left_by(crashes: Crashes, acknowledged: list[list[Any]], context: str) -> Image:
    assert isinstance(crashes.place, SqlitePlace)
    return Image(context, crashes.place.files(), {"acknowledged": acknowledged})


@pytest.mark.requirement("P-11.2-persist", "P-11.2-startup", "P-11.3-events", "S-002", "S-005", "S-007")
@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.label)
@pytest.mark.requirement("S-002b", "S-005a", "S-007b")
def test_a_process_that_dies_at_any_step_loses_nothing_that_it_was_told(
    crashes: Crashes, point: Failpoint, tmp_path: Path
) -> None:
    passings = 0
    for passing in range(1, PASSINGS_MAX):
        status, acknowledged = crashes.die_at(f"{point.label}@{passing}")
        if status == 0:
            break
        assert status == -signal.SIGKILL
        passings += 1
        found = wrong_with(left_by(crashes, acknowledged, f"{point.label}@{passing}"), tmp_path)
        assert found == []
    assert passings > 0, f"{point.label} was never passed"
    assert status == 0, "the flow has more passings than this test walks"


def test_the_flow_ends_well_when_nothing_kills_it(crashes: Crashes) -> None:
    status, acknowledged = crashes.die_at("engine.token")
    assert status == 0
    assert {words[0] for words in acknowledged} == {
        "accepted",
        "moved",
        "events",
        "ended",
        "model",
        "paired",
        "gone",
        "tried",
        "told",
    }
    assert crashes.place.problems() == []


def test_every_failpoint_is_of_a_transaction_or_known_to_be_elsewhere() -> None:
    assert {point.label for point in ELSEWHERE} == {
        "snapshot.written",
        "snapshot.renamed",
        "snapshot.synced",
        "model.staged",
        "model.renamed",
        "engine.prefilled",
        "engine.token",
        "outbox.sent",
    }


@pytest.mark.requirement("S-005")
def test_a_promise_that_was_given_too_early_is_noticed(crashes: Crashes, tmp_path: Path) -> None:
    """The check itself: an acknowledgement of what was never committed."""
    _, acknowledged = crashes.die_at("accept.written@1")
    image = left_by(crashes, [*acknowledged, ["accepted", "resp_never"]], "a false promise")
    assert wrong_with(image, tmp_path) == ["a false promise", "this was acknowledged: ['accepted', 'resp_never']"]


def test_a_child_that_fails_otherwise_is_not_taken_for_a_crash(crashes: Crashes) -> None:
    assert isinstance(crashes._server, subprocess.Popen)
    status, _ = crashes.die_at("append.written@2=error")
    assert status == 99


# On PostgreSQL

PASSINGS_AWAY = 1


def passings_of(point: Failpoint) -> list[str]:
    return [f"{point.label}@{number}" for number in range(1, PASSINGS_AWAY + 1)]


@pytest.mark.requirement("P-11.2-persist", "P-11.2-startup", "S-002", "S-005", "S-005b")
@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.label)
def test_on_postgresql_too_a_process_that_dies_at_any_step_loses_nothing_that_it_was_told(
    away: Crashes, point: Failpoint
) -> None:
    assert isinstance(away.place, PostgresPlace)
    evidence.keep("rows.json", away.place.rows)
    for failpoint in passings_of(point):
        status, acknowledged = away.die_at(failpoint)
        assert status == -signal.SIGKILL, f"{failpoint} was never passed"
        found = broken(away.place, acknowledged, failpoint)
        assert found == []


@pytest.fixture(scope="module")
def undisturbed(away: Crashes) -> tuple[list[list[Any]], dict[str, list[tuple[object, ...]]]]:
    """What a process is told that nothing happens to, and what it leaves."""
    status, acknowledged = away.die_at("engine.token")
    assert status == 0
    assert isinstance(away.place, PostgresPlace)
    return acknowledged, away.place.rows()


@pytest.mark.requirement("P-11.2-persist", "S-002", "S-005")
@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.label)
def test_a_process_whose_connections_are_ended_at_any_step_is_told_and_writes_the_very_same(
    away: Crashes, point: Failpoint, undisturbed: tuple[list[list[Any]], dict[str, list[tuple[object, ...]]]]
) -> None:
    """Whatever was under way is driven again and has one effect; clock and ids are the same in every run."""
    assert isinstance(away.place, PostgresPlace)
    place = away.place
    evidence.keep("rows.json", place.rows)
    for failpoint in passings_of(point):
        ended: list[str] = []
        status, acknowledged = away.cut_at(failpoint, lambda name, ended=ended: ended.extend(place.end_sessions(name)))
        assert len(ended) > 3, f"{failpoint} was never passed"
        assert ("idle in transaction" in ended) == point.label.endswith(".written")
        assert (status, acknowledged) == (0, undisturbed[0])
        assert place.rows() == undisturbed[1]
    assert place.problems() == []
