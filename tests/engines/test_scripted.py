"""What the service relies on when it talks to an engine's process, shown with the scripted engine."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retoma.engines import turn
from retoma.engines.contract import EngineOptions, Generation
from retoma.engines.frames import (
    Alive,
    Cancel,
    Cancelled,
    Done,
    Failed,
    Generate,
    Load,
    LoadFailed,
    Output,
    Park,
    Ready,
    SnapshotWritten,
    Started,
    read_frame,
    write_frame,
)
from retoma.engines.process import EngineProcess
from retoma.engines.scripted import load
from retoma.errors import EngineCrashed, EngineError
from retoma.failpoints import Failpoint
from tests.engines.conftest import BOUND_S, Child, Spawn, request, text_of, tokens_of

QUICK = {"RETOMA_SCRIPTED_TOKEN_MS": "2"}
SLOW = {"RETOMA_SCRIPTED_TOKEN_MS": "20"}
HOUR = str(3600 * 1000)
EVERY_16 = {"settings": {"snapshot_every_tokens": 16}}


def uninterrupted(spawn: Spawn, asked: Generate) -> tuple[list[int], str]:
    child = spawn()
    child.process.send(replace(asked, key="whole", snapshot_path=""))
    assert isinstance(child.last("whole"), Done)
    return tokens_of(child.of("whole")), text_of(child.of("whole"))


def started(child: Child, key: str) -> Started:
    return next(frame for frame in child.of(key) if isinstance(frame, Started))


def snapshots_of(child: Child) -> list[str]:
    """Newest first, as the service hands them over."""
    return [frame.path for frame in reversed(child.frames) if isinstance(frame, SnapshotWritten)]


def held_by(child: Child) -> list[int]:
    return [frame.tokens for frame in child.frames if isinstance(frame, SnapshotWritten)]


def resumed(spawn: Spawn, asked: Generate, before: Child, **changes: Any) -> tuple[Child, list[int], str]:
    """Goes on in a new child after what `before` said, as if that had been committed."""
    frames = before.of(asked.key)
    child = spawn()
    child.process.send(replace(asked, key="more", committed=tokens_of(frames), **changes))
    assert isinstance(child.last("more"), Done)
    more = child.of("more")
    return child, tokens_of(frames) + tokens_of(more), text_of(frames) + text_of(more)


def test_the_natural_text_has_256_tokens_and_characters_of_several_bytes(spawn: Spawn) -> None:
    child = spawn()
    child.process.send(request("a"))
    done = child.last("a")
    assert isinstance(done, Done)
    assert (done.reason, done.output_tokens) == ("stop", 257)  # the end token is one of them
    assert len(tokens_of(child.of("a"))) == 257
    text = text_of(child.of("a"))
    assert all(character in text for character in ("é", "漢字", "🌊"))
    assert "\ufffd" not in text


def test_the_text_depends_on_prompt_and_seed_and_on_nothing_else(spawn: Spawn) -> None:
    child = spawn()
    asked = [request("a"), request("b"), request("c", seed=8), request("d", content="Another prompt.")]
    for one in asked:
        child.process.send(one)
    texts = [(child.last(one.key), text_of(child.of(one.key)))[1] for one in asked]
    assert texts[0] == texts[1] == uninterrupted(spawn, asked[0])[1]
    assert len(set(texts)) == 3


def test_the_frames_come_in_their_order(spawn: Spawn) -> None:
    child = spawn(env={"RETOMA_SCRIPTED_LOAD_MS": "10"})
    child.process.send(request("a", max_output_tokens=5))
    done = child.last("a")
    kinds = [type(frame) for frame in child.frames]
    assert kinds[: kinds.index(Ready)] == [Alive] * kinds.index(Ready) != []
    assert [type(frame) for frame in child.of("a")][:2] == [Alive, Started]
    assert isinstance(done, Done)
    assert (done.reason, done.output_tokens) == ("max_output_tokens", 5)
    assert len(tokens_of(child.of("a"))) == 5


def test_quick_tokens_are_told_together_but_the_first_at_once_and_all_before_a_snapshot_that_holds_them(
    spawn: Spawn, tmp_path: Path
) -> None:
    asked = request("a", max_output_tokens=60, snapshot_path=str(tmp_path / "{tokens}.snap"))
    child = spawn(settings={"snapshot_every_tokens": 16, "output_every_ms": HOUR})
    child.process.send(asked)
    child.last("a")
    told, sizes = 0, list[int]()
    for frame in child.of("a"):
        if isinstance(frame, SnapshotWritten):
            assert frame.tokens <= told
        elif isinstance(frame, Output):
            sizes.append(len(frame.tokens))
            told += len(frame.tokens)
    assert sizes[0] < 8
    assert len(sizes) == 5, "the first, what three snapshots demand, and the rest"
    assert (tokens_of(child.of("a")), text_of(child.of("a"))) == uninterrupted(spawn, asked)


@pytest.mark.parametrize("every_ms", ["0", HOUR], ids=["each token told", "tokens held"])
def test_a_text_that_is_parked_at_any_token_can_go_on_from_its_snapshot(
    spawn: Spawn, tmp_path: Path, every_ms: str
) -> None:
    """Also inside of a character of several tokens, whose bytes no log can hold yet."""
    asked = request("a", snapshot_path=str(tmp_path / "{tokens}.snap"))
    whole = uninterrupted(spawn, asked)
    for tokens in range(1, 41, 3):
        child = spawn(env=QUICK, settings={"output_every_ms": every_ms})
        child.process.send(asked)
        child.wait_tokens("a", tokens if every_ms == "0" else 1)
        child.process.send(Park("a"))
        assert isinstance(child.last("a"), Cancelled)
        (held,) = held_by(child)
        assert held < len(tokens_of(child.of("a")))
        if tokens % 12 == 1:
            again, *both = resumed(spawn, asked, child, snapshots=snapshots_of(child))
            assert tuple(both) == whole
            assert started(again, "more").path == "snapshot"
        child.kill()


@pytest.mark.requirement("P-11.3-table", "S-002")
@pytest.mark.parametrize("with_snapshots", [True, False], ids=["snapshots", "log"])
def test_after_a_kill_at_any_token_the_text_goes_on_as_if_nothing_had_happened(
    spawn: Spawn, tmp_path: Path, with_snapshots: bool
) -> None:
    seed = random.randrange(2**32)
    sys.stderr.write(f"seed {seed}\n")
    asked = request(
        "a", max_output_tokens=120, stop=["nothing is", "é漢"], snapshot_path=str(tmp_path / "t" / "1-{tokens}.snap")
    )
    whole = uninterrupted(spawn, asked)
    for kill_at in random.Random(seed).sample(range(1, len(whole[0]) - 1), 4):
        child = spawn(env=QUICK, **EVERY_16)
        child.process.send(asked)
        child.wait_tokens("a", kill_at)
        os.kill(child.process.pid, signal.SIGKILL)
        assert child.wait_exit() == -signal.SIGKILL
        offered = snapshots_of(child) if with_snapshots else []
        second, tokens, text = resumed(spawn, asked, child, snapshots=offered)
        assert (tokens, text) == whole, kill_at
        assert started(second, "more").exact
        committed = len(tokens_of(child.of("a")))
        usable = [held for held in held_by(child) if held < committed] if with_snapshots else []
        assert started(second, "more").path == ("snapshot" if usable else "log")
        assert started(second, "more").restored_tokens == max(usable, default=0)


@pytest.mark.requirement("S-005")
@pytest.mark.parametrize(
    "failpoint",
    [
        *(f"{Failpoint.ENGINE_TOKEN.label}@{n}" for n in (1, 2, 20)),
        Failpoint.ENGINE_PREFILLED.label,
        *(f"{point.label}@2" for point in Failpoint if point.label.startswith("snapshot.")),
    ],
)
def test_after_a_death_at_any_failpoint_the_text_goes_on(spawn: Spawn, tmp_path: Path, failpoint: str) -> None:
    asked = request("a", max_output_tokens=60, snapshot_path=str(tmp_path / "{tokens}.snap"))
    child = spawn(env={"RETOMA_FAILPOINT": failpoint}, **EVERY_16)
    child.process.send(asked)
    assert child.wait_exit() == -signal.SIGKILL
    files = sorted(map(str, tmp_path.iterdir()), reverse=True)
    _, tokens, text = resumed(spawn, asked, child, snapshots=files)
    assert (tokens, text) == uninterrupted(spawn, asked)


@pytest.mark.requirement("S-001", "S-005")
def test_a_damaged_snapshot_is_passed_over_for_an_older_one(spawn: Spawn, tmp_path: Path) -> None:
    asked = request("a", max_output_tokens=60, snapshot_path=str(tmp_path / "{tokens}.snap"))
    child = spawn(**EVERY_16)
    child.process.send(asked)
    child.last("a")
    files = snapshots_of(child)
    assert [Path(file).name for file in files] == ["48.snap", "32.snap", "16.snap"]
    content = bytearray(Path(files[0]).read_bytes())
    content[-1] ^= 1
    Path(files[0]).write_bytes(content)
    whole = tokens_of(child.of("a"))
    second = spawn()
    second.process.send(replace(asked, key="more", committed=whole[:50], snapshots=files))
    second.last("more")
    assert whole[:50] + tokens_of(second.of("more")) == whole
    assert (started(second, "more").path, started(second, "more").restored_tokens) == ("snapshot", 32)


def test_deleting_the_snapshots_loses_nothing_but_time(spawn: Spawn, tmp_path: Path) -> None:
    asked = request("a", max_output_tokens=40, snapshot_path=str(tmp_path / "{tokens}.snap"))
    child = spawn(**EVERY_16)
    child.process.send(asked)
    child.last("a")
    whole = tokens_of(child.of("a"))
    for file in snapshots_of(child):
        Path(file).unlink()
    second = spawn()
    second.process.send(replace(asked, key="more", committed=whole[:30], snapshots=snapshots_of(child)))
    second.last("more")
    assert whole[:30] + tokens_of(second.of("more")) == whole
    assert started(second, "more").path == "log"


def test_a_disk_that_takes_no_snapshot_does_not_fail_the_text(spawn: Spawn, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    child = spawn(**EVERY_16)
    child.process.send(request("a", snapshot_path=str(tmp_path / "file" / "{tokens}.snap")))
    assert isinstance(child.last("a"), Done)
    assert snapshots_of(child) == []


def test_snapshots_are_taken_by_themselves_when_they_pay(spawn: Spawn, tmp_path: Path) -> None:
    child = spawn(env=SLOW)
    child.process.send(request("a", max_output_tokens=100, snapshot_path=str(tmp_path / "{tokens}.snap")))
    child.wait_for(lambda: snapshots_of(child), "a snapshot")
    quick = spawn()
    quick.process.send(request("a", snapshot_path=str(tmp_path / "{tokens}.snap")))
    quick.last("a")
    assert snapshots_of(quick) == []  # decoding 256 tokens again takes less than one write


def test_another_fingerprint_is_told_and_its_snapshots_are_not_used(spawn: Spawn) -> None:
    child = spawn()
    committed = uninterrupted(spawn, request("a"))[0][:20]
    child.process.send(request("a", committed=committed, fingerprint="scripted-0"))
    child.process.send(request("b", committed=committed, fingerprint="scripted-1"))
    child.last("a")
    child.last("b")
    assert not started(child, "a").exact
    assert started(child, "b").exact


def test_a_committed_token_that_was_not_the_engines_changes_what_follows(spawn: Spawn) -> None:
    whole, _ = uninterrupted(spawn, request("a"))
    wrong = [*whole[:29], next(token for token in whole if token >= 256 and token != whole[29])]
    child = spawn()
    child.process.send(request("a", committed=wrong))
    child.last("a")
    assert tokens_of(child.of("a"))[:20] != whole[30:50]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({}, "stop"), ({"max_output_tokens": 20}, "max_output_tokens"), ({"stop": ["漢字"]}, "stop")],
)
def test_a_text_that_was_whole_before_the_crash_ends_at_once(
    spawn: Spawn, changes: dict[str, Any], reason: str
) -> None:
    asked = request("a", **changes)
    whole, _ = uninterrupted(spawn, asked)
    child = spawn()
    child.process.send(replace(asked, committed=whole))
    done = child.last("a")
    assert [type(frame) for frame in child.of("a")] == [Started, Done]
    assert isinstance(done, Done)
    assert (done.reason, done.tokens, done.text, done.output_tokens) == (reason, [], "", len(whole))


def test_a_full_context_ends_the_text(spawn: Spawn) -> None:
    child = spawn(context_tokens=40)
    child.process.send(request("a"))
    done = child.last("a")
    assert isinstance(done, Done)
    assert done.reason == "max_output_tokens"
    assert done.prompt_tokens + done.output_tokens == 41  # the newest token need not be decoded


def test_a_prompt_that_is_too_long_fails_alone_and_can_be_cut(spawn: Spawn) -> None:
    child = spawn(context_tokens=64)
    long = [{"role": "system", "content": "Be brief."}] + [{"role": "user", "content": "word " * 20}] * 5
    child.process.send(replace(request("a"), messages=long))
    child.process.send(replace(request("b"), messages=long, truncation="auto"))
    failed = child.last("a")
    assert isinstance(failed, Failed)
    assert failed.code == "context_length_exceeded"
    assert isinstance(child.last("b"), Done)
    assert started(child, "b").prompt_tokens < 64


def test_a_cancel_is_seen_within_one_token_or_chunk_and_the_place_is_free_again(spawn: Spawn) -> None:
    child = spawn(env={"RETOMA_SCRIPTED_TOKEN_MS": HOUR}, sequences=1)
    child.process.send(request("a"))
    child.process.send(request("b"))
    child.wait_for(lambda: started_frames(child), "the first token")
    child.process.send(Cancel("b"))  # has not begun
    child.process.send(Cancel("a"))  # in the middle of a token that takes an hour
    assert isinstance(child.last("a"), Cancelled)
    assert isinstance(child.last("b"), Cancelled)
    child.process.send(request("c", max_output_tokens=1))
    assert isinstance(child.last("c"), Done)


def test_a_cancel_is_seen_in_the_middle_of_the_prompt(spawn: Spawn) -> None:
    child = spawn(env={"RETOMA_SCRIPTED_PREFILL_MS": "30"})
    child.process.send(request("a", content="x" * 1_000_000))
    child.wait_for(lambda: [frame for frame in child.of("a") if isinstance(frame, Alive) and frame.done], "a chunk")
    child.process.send(Cancel("a"))
    assert isinstance(child.last("a"), Cancelled)
    assert started_frames(child) == []


def started_frames(child: Child) -> list[Started]:
    return [frame for frame in child.frames if isinstance(frame, Started)]


def test_a_cancel_of_what_has_ended_is_not_answered(spawn: Spawn) -> None:
    child = spawn()
    child.process.send(request("a", max_output_tokens=3))
    child.last("a")
    child.process.send(Cancel("a"))
    child.process.send(Cancel("never heard of"))
    child.process.send(request("b", max_output_tokens=3))
    child.last("b")
    assert isinstance(child.last("a"), Done)


def test_several_texts_are_made_at_once_and_do_not_change_each_other(spawn: Spawn) -> None:
    child = spawn(env=QUICK, sequences=3)
    asked = [request(key, content=key * 50, max_output_tokens=60) for key in "abcd"]
    for one in asked:
        child.process.send(one)
    for one in asked:
        child.last(one.key)
    for one in asked:
        assert (tokens_of(child.of(one.key)), text_of(child.of(one.key))) == uninterrupted(spawn, one)
    first_end = next(i for i, frame in enumerate(child.frames) if isinstance(frame, Done))
    assert {frame.key for frame in child.frames[:first_end] if isinstance(frame, Output)} == {"a", "b", "c"}


def test_a_crash_of_the_engine_is_told_once_after_all_frames(spawn: Spawn) -> None:
    child = spawn()
    child.process.send(request("a", content="[[crash]]"))
    assert child.wait_exit() == -signal.SIGABRT
    heard = tokens_of(child.of("a"))
    assert 1 <= len(heard) <= 8
    again = spawn()
    again.process.send(request("a", content="[[crash]]", committed=heard))
    assert again.wait_exit() == -signal.SIGABRT
    child.process.send(Cancel("a"))  # nobody is there: no error
    assert child.statuses == [-signal.SIGABRT]


def pause(child: Child) -> None:
    os.kill(child.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.process.pid, os.WSTOPPED | os.WNOWAIT)


def test_a_stalled_engine_can_be_killed(spawn: Spawn) -> None:
    child = spawn()
    child.process.send(request("a", content="[[stall]]"))
    child.wait_tokens("a", 4)
    child.process.stop(grace_s=0.05)  # an engine that hangs in C still hears the end, so this may do
    child.wait_exit()
    paused = spawn()
    paused.wait_for(lambda: paused.frames, "ready")
    pause(paused)
    paused.process.stop(grace_s=0.05)
    assert paused.statuses == [-signal.SIGKILL]


def test_sending_to_a_child_that_does_not_read_never_waits(spawn: Spawn) -> None:
    child = spawn()
    child.wait_for(lambda: child.frames, "ready")
    pause(child)
    large = request("a", content="x" * 100_000)
    for _ in range(5_000):  # far more than a pipe holds, and more than the queue
        child.process.send(large)
    assert child.wait_exit() == -signal.SIGKILL


def test_only_the_first_child_of_a_process_gets_the_failpoint(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    child = spawn(env={"RETOMA_FAILPOINT": "engine.token"})
    monkeypatch.setenv("RETOMA_FAILPOINT", "engine.token")
    child.process.send(request("a", max_output_tokens=3))
    assert child.wait_exit() == -signal.SIGKILL
    monkeypatch.setattr("retoma.engines.process._failpoint_given", True)
    second = Child(Load("scripted", "m", None, "", 0, 1, 1))
    try:
        second.process.send(request("a", max_output_tokens=3))
        assert isinstance(second.last("a"), Done)
    finally:
        second.process.stop(0.0)


def test_ctrl_c_in_the_terminal_is_the_services_business(spawn: Spawn) -> None:
    child = spawn()
    child.wait_for(lambda: child.frames, "ready")
    os.kill(child.process.pid, signal.SIGINT)
    child.process.send(request("a", max_output_tokens=3))
    assert isinstance(child.last("a"), Done)
    os.kill(child.process.pid, signal.SIGTERM)
    assert child.wait_exit() == -signal.SIGTERM


@pytest.mark.requirement("S-002")
def test_the_child_does_not_outlive_its_parent() -> None:
    program = (
        "import os, sys, threading\n"
        "from retoma.engines.process import EngineProcess; from retoma.engines.frames import Load\n"
        "ready = threading.Event()\n"
        "load = Load('scripted', 'm', None, '', 0, 1, 1)\n"
        "p = EngineProcess(load, lambda frame: ready.set(), lambda status: None); ready.wait()\n"
        "if os.fork():  # the fork keeps the pipes open, so that only the kernel can tell the child\n"
        "    sys.stdout.write(f'{p.pid}\\n'); sys.stdout.flush()\n"
        "sys.stdin.read(); os._exit(0)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdin is not None
    pid = int(parent.stdout.readline())
    descriptor = os.pidfd_open(pid)
    parent.kill()
    parent.wait()
    assert select.select([descriptor], [], [], BOUND_S)[0], "the child still lives"
    os.close(descriptor)
    parent.stdout.close()
    parent.stdin.close()


@pytest.mark.parametrize("switch", ["RETOMA_SCRIPTED_LOAD_MS", "RETOMA_SCRIPTED_TOKEN_MS"])
def test_stop_ends_the_child_also_while_it_loads_or_decodes(spawn: Spawn, switch: str) -> None:
    child = spawn(env={switch: HOUR})
    child.process.send(request("a"))
    child.wait_for(lambda: child.frames, "a sign of life")
    child.process.stop(grace_s=BOUND_S)
    assert child.statuses == [0]


def test_the_end_of_the_pipe_ends_the_child() -> None:
    memory = turn.new_memory()
    command = [sys.executable, "-m", "retoma.engines.worker", str(os.getpid()), str(memory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(memory,)) as child:
        assert child.stdin is not None
        write_frame(child.stdin, Load("scripted", "m", None, "", 0, 1, 1))
        assert child.stdout is not None
        assert isinstance(read_frame(child.stdout), Ready)
        assert turn.read(memory) == turn.NOBODY
        write_frame(child.stdin, request("a", max_output_tokens=1))
        while not isinstance(read_frame(child.stdout), Done):
            pass
        assert turn.read(memory) == turn.mark_of("a")
        child.stdin.close()
        assert child.wait(BOUND_S) == 0
    os.close(memory)


def test_a_child_whose_parent_is_another_process_does_nothing() -> None:
    command = [sys.executable, "-m", "retoma.engines.worker", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.read() == b""
        assert child.wait(BOUND_S) == 0


def test_open_files_of_the_service_do_not_leak_into_the_child(spawn: Spawn, tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        child = spawn()
        child.wait_for(lambda: child.frames, "ready")
        links = [str(link.readlink()) for link in Path(f"/proc/{child.process.pid}/fd").iterdir() if link.is_symlink()]
    assert str(tmp_path / "lock") not in links


def test_a_long_prompt_does_not_hold_up_the_others(spawn: Spawn) -> None:
    child = spawn(env={"RETOMA_SCRIPTED_PREFILL_MS": "40", "RETOMA_SCRIPTED_TOKEN_MS": "1"})
    child.process.send(request("long", content="x" * 40_000))  # forty chunks
    child.process.send(request("short", max_output_tokens=100))
    assert isinstance(child.last("short"), Done)
    chunks = [frame for frame in child.of("long") if isinstance(frame, Alive)]
    assert 1 <= len(chunks) < 20  # in turns by number, a hundred tokens would have let all forty pass
    child.process.send(Cancel("long"))
    assert isinstance(child.last("long"), Cancelled)


def test_a_child_that_can_not_be_started_is_told_twice_over(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses: list[int | None] = []
    monkeypatch.setattr(sys, "executable", "/there/is/no/python")
    with pytest.raises(EngineCrashed):
        EngineProcess(Load("scripted", "m", None, "", 0, 1, 1), lambda _: None, statuses.append)
    assert statuses == [None]


def test_an_engine_that_is_not_there_is_a_sentence(spawn: Spawn) -> None:
    child = spawn(engine="steam")
    assert child.wait_exit() == 1
    (frame,) = child.frames
    assert isinstance(frame, LoadFailed)
    assert frame.code == "model_unavailable"
    assert "steam" in frame.message


def test_a_child_that_talks_nonsense_is_ended(spawn: Spawn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "retoma.engines.process.WORKER", ["-c", "import sys; sys.stdout.write('hello' * 99); sys.stdin.read()"]
    )
    child = spawn()
    assert child.wait_exit() == -signal.SIGKILL


def test_a_state_of_other_tokens_is_refused_by_the_engine() -> None:
    options = EngineOptions("m", None, "", 0, 1, 1)
    generation = Generation([{"role": "user", "content": "hi"}], None, 0.0, 1.0, 1)
    first = load(options).open(generation)
    first.prefill()
    first.decode(300)
    second = load(options).open(generation)
    with pytest.raises(EngineError):
        second.restore_state(first.save_state(), [301])
    second.restore_state(first.save_state(), [300])
    assert second.save_state() == first.save_state()
