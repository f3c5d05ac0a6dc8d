"""A process dies, its disk fails, or it stands still, at every single call that changes a file.

The named failpoints are walked elsewhere; this is the check that none was forgotten: here the system's own calls are
counted, whoever makes them. Real transactions run through the real writer, with snapshot files, model imports and
checkpoints between them. Each suite says which calls its fault has met, and fails if there were too few kinds.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.flow import swept
from tests.faults.images import wrong_with
from tests.support import evidence
from tests.support.evidence import Image
from tests.support.shim import Action, Fault

if TYPE_CHECKING:
    from tests.faults.conftest import Faults

pytestmark = pytest.mark.timeout(300)

# What must have been hit, by the call and the kind of file; a suite that misses one of these has lost its bite.
CALLS = {
    "pwrite wal",
    "fdatasync wal",
    "pwrite database",
    "fdatasync database",
    "write snapshot",
    "fsync snapshot",
    "rename snapshot",
    "fdatasync folder",
    "fsync folder",
    "unlink snapshot",
    "mkdir folder",
    "write model",
    "fsync model",
    "rename model",
    "unlink model",
}
SHARE_AFTER = 0.25
LEFTOVERS = {"import", "remove", "end", "prune"}


def every_call(faults: Faults) -> Iterator[tuple[int, int]]:
    """Each step, and each of its calls."""
    for step, calls in enumerate(faults.plan.calls):
        # A process that finds a WAL syncs the directory with its first commit: it can't know whether that was done.
        first_commit = step > 0
        for call in range(1, calls + first_commit + 1):
            yield step, call


def kind_of(where: str) -> str:
    call, _, path = where.partition(" ")
    if path.startswith("retoma.db"):
        return f"{call} {'wal' if path.endswith('-wal') else 'database'}"
    if "." not in path.rpartition("/")[2] and not path.startswith("models/sha256/"):
        return f"{call} folder"
    return f"{call} {'folder' if len(path.split('/')) < 3 else 'snapshot' if path.startswith('snapshots') else 'model'}"


def wrong_now(faults: Faults, context: str, contents: list[str]) -> list[str]:
    """What somebody finds wrong who opens the directory as it is now; one of these contents must be there."""
    return wrong_with(Image(context, faults.data_dir, {"contents": contents}), faults.folder / "copy")


def done_in(answer: dict[str, Any]) -> int:
    return sum(words[0] == "done" for words in answer["said"])


@pytest.mark.requirement("P-11.2-persist", "S-002", "S-005", "S-007")
@pytest.mark.requirement("S-002b", "S-005a", "S-005b", "S-007a", "S-007b", "S-007c")
def test_a_kill_before_any_call_leaves_whole_steps_and_the_next_process_goes_on(faults: Faults) -> None:
    met: set[str] = set()
    for step, call in every_call(faults):
        faults.put_back(step)
        end = faults.end_of(step)
        answer = faults.drive(step, end, Fault(Action.KILL_BEFORE, call))
        context = f"step {step} ({faults.plan.steps[step]}), call {call}: {answer['where']}"
        evidence.keep("answer.json", answer)
        assert (answer["status"], answer["fired"]) == (-signal.SIGKILL, 1), context
        met.add(kind_of(answer["where"]))
        done = step + done_in(answer)
        found = wrong_now(faults, context, faults.plan.contents[done : done + 2])
        assert found == []
        # Whoever had no answer does the same again.
        assert faults.drive(done, end)["status"] == 0, context
        found = wrong_now(faults, f"{context}; done again", [faults.plan.contents[end]])
        assert found == []
        if faults.plan.steps[step].what in LEFTOVERS:
            assert swept(faults.crashed()) == [], context
    assert met >= CALLS


@pytest.mark.requirement("P-11.2-persist", "S-005", "S-007", "S-005a", "S-007a")
def test_a_kill_right_after_a_call_leaves_whole_steps(faults: Faults, rng: Random) -> None:
    """On the disk it is the same as before the next call; what may differ is who has been told, so a share will do."""
    met: set[str] = set()
    for step, call in every_call(faults):
        if rng.random() > SHARE_AFTER:
            continue
        faults.put_back(step)
        answer = faults.drive(step, faults.end_of(step), Fault(Action.KILL_AFTER, call))
        context = f"step {step} ({faults.plan.steps[step]}), call {call}: {answer['where']}"
        evidence.keep("answer.json", answer)
        assert (answer["status"], answer["fired"]) == (-signal.SIGKILL, 1), context
        met.add(kind_of(answer["where"]))
        done = step + done_in(answer)
        found = wrong_now(faults, context, faults.plan.contents[done : done + 2])
        assert found == []
    assert len(met & CALLS) > len(CALLS) / 2, met


@pytest.mark.requirement("P-11.2-persist", "S-005", "S-007", "S-005a", "S-005c", "S-007d")
@pytest.mark.parametrize("for_good", [False, True], ids=["once", "from_then_on"])
@pytest.mark.parametrize("action", [Action.EIO, Action.ENOSPC], ids=lambda action: action.name)
def test_a_disk_that_fails_at_any_call_loses_nothing_and_what_was_refused_has_not_happened(
    faults: Faults, action: Action, for_good: bool
) -> None:
    met: set[str] = set()
    refusals: dict[str, int] = {}
    for step, call in every_call(faults):
        faults.put_back(step)
        end = faults.end_of(step)
        answer = faults.drive(step, end, Fault(action, call, for_good))
        context = f"step {step} ({faults.plan.steps[step]}), call {call}: {answer['where']}: {answer['said']}"
        evidence.keep("answer.json", answer)
        assert answer["status"] == 0, context
        assert answer["fired"] >= 1, f"{context}: the disk did not fail"
        met.add(kind_of(answer["where"]))
        assert [words for words in answer["said"] if words[0] == "half"] == [], context
        assert ["problem", None] in answer["said"], f"{context}: the store still complains of a sound disk"
        for words in answer["said"]:
            if words[0] == "refused":
                refusals[words[2]] = refusals.get(words[2], 0) + 1
        found = wrong_now(faults, context, [faults.plan.without_snapshots[end]])
        assert found == []
    assert met >= CALLS
    if action is Action.ENOSPC:
        assert refusals["no"] > 100, "a full disk was hardly ever told from an unknown outcome"
    assert refusals["file"] > 3
    assert ("unknown" in refusals) == for_good or action is Action.ENOSPC


@pytest.mark.requirement("S-002", "S-006", "S-002d", "S-006a")
def test_a_process_that_stands_still_at_any_call_holds_up_another_only_while_it_has_the_lock(faults: Faults) -> None:
    met: set[str] = set()
    outcomes: dict[tuple[bool, str], int] = {}
    for step, call in every_call(faults):
        faults.put_back(step)
        answer = faults.ask("stop", step, faults.end_of(step), call)
        context = f"step {step} ({faults.plan.steps[step]}), call {call}: {answer['where']}: {answer['said']}"
        evidence.keep("answer.json", answer)
        assert (answer["status"], answer["fired"]) == (0, 1), context
        met.add(kind_of(answer["where"]))
        outcome = answer["locked"], answer["other"]
        assert outcome in {(True, "busy"), (False, "committed")}, context
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        assert [words for words in answer["said"] if words[0] != "done"] == [["problem", None]], context
        found = wrong_with(Image(context, faults.data_dir, {}), faults.folder / "copy")
        assert found == []
    assert met >= CALLS
    assert len(outcomes) == 2, outcomes
