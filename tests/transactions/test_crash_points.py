"""The process dies by SIGKILL at every named step of every transaction; what it was told is there afterwards."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retoma.core.task import State
from retoma.errors import ModelNotFound, NotFound
from retoma.failpoints import Failpoint
from retoma.store.sqlite import SqliteStore
from retoma.transactions.models import read_model
from tests.support import crash_server, processes
from tests.support.clock import SequentialIds
from tests.support.stores import new_file, problems
from tests.support.world import World

# Steps of the engine and of the files, which have tests of their own; every other failpoint is one of a transaction.
ELSEWHERE = {point for point in Failpoint if point.label.partition(".")[0] in {"snapshot", "model", "engine"}}
POINTS = [point for point in Failpoint if point not in ELSEWHERE]
PASSINGS_MAX = 60


class Crashes:
    """The fork server, and the file on which its last child died."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store" / "retoma.db"
        self.path.parent.mkdir()
        template = new_file(folder)
        crash_server.fill_template(template)
        self._server = processes.python("tests.support.crash_server", str(template), str(self.path))

    def die_at(self, failpoint: str) -> tuple[int, list[list[Any]]]:
        """The child's exit status and what it had been told."""
        processes.tell(self._server, failpoint)
        answer = json.loads(processes.line(self._server))
        return answer["status"], answer["acknowledged"]

    def close(self) -> None:
        assert processes.end(self._server) == 0


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crashes]:
    made = Crashes(tmp_path_factory.mktemp("crashes"))
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
        case _:
            return True


def model_is_there(world: World) -> bool:
    try:
        world.store.read(lambda tx: read_model(tx, crash_server.MODEL.name))
    except ModelNotFound:
        return False
    return True


def verify(crashes: Crashes, acknowledged: list[list[Any]], context: str) -> None:
    assert problems(crashes.path) == [], context
    store = SqliteStore(crashes.path)
    world = World(store, ids=SequentialIds(9), me="instance-9")
    broken = broken_promises(world, acknowledged)
    if ["model", crash_server.MODEL.name, False] in acknowledged:
        # The flow ends with deletions; what they took before they could say so is missing rightly.
        broken = [words for words in broken if words[0] == "gone" or _state(world, words[1]) is not None]
    assert broken == [], context
    models = [words[2] for words in acknowledged if words[0] == "model"]
    if models == [True]:
        assert model_is_there(world) or "model_row.removed" in context, context
    first = recovered(world)
    assert recovered(world) == first, f"{context}: a second recovery changed something"
    store.close()
    assert problems(crashes.path) == [], context


@pytest.mark.requirement("P-11.2-persist", "P-11.2-startup", "P-11.3-events", "S-002", "S-005", "S-007")
@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.label)
@pytest.mark.requirement("S-002b", "S-005a", "S-007b")
def test_a_process_that_dies_at_any_step_loses_nothing_that_it_was_told(crashes: Crashes, point: Failpoint) -> None:
    passings = 0
    for passing in range(1, PASSINGS_MAX):
        status, acknowledged = crashes.die_at(f"{point.label}@{passing}")
        if status == 0:
            break
        assert status == -signal.SIGKILL
        passings += 1
        verify(crashes, acknowledged, f"{point.label}@{passing}")
    assert passings > 0, f"{point.label} was never passed"
    assert status == 0, "the flow has more passings than this test walks"


def test_the_flow_ends_well_when_nothing_kills_it(crashes: Crashes) -> None:
    status, acknowledged = crashes.die_at("engine.token")
    assert status == 0
    assert {words[0] for words in acknowledged} == {"accepted", "moved", "events", "ended", "model", "gone"}
    assert problems(crashes.path) == []


def test_every_failpoint_is_of_a_transaction_or_known_to_be_elsewhere() -> None:
    assert {point.label for point in ELSEWHERE} == {
        "snapshot.written",
        "snapshot.renamed",
        "snapshot.synced",
        "model.staged",
        "model.renamed",
        "engine.prefilled",
        "engine.token",
    }


@pytest.mark.requirement("S-005")
def test_a_promise_that_was_given_too_early_is_noticed(crashes: Crashes) -> None:
    """The check itself: an acknowledgement of what was never committed."""
    _, acknowledged = crashes.die_at("accept.written@1")
    with pytest.raises(AssertionError):
        verify(crashes, [*acknowledged, ["accepted", "resp_never"]], "a false promise")


def test_a_child_that_fails_otherwise_is_not_taken_for_a_crash(crashes: Crashes) -> None:
    assert isinstance(crashes._server, subprocess.Popen)
    status, _ = crashes.die_at("append.written@2=error")
    assert status == 99
