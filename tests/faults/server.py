"""`python -m tests.faults.server DATA_DIR`, with the shim preloaded: children whose disk fails at the k-th call.

This process has one thread and no store, so it may fork. Each line is a command in JSON, each answer one line.

    plan                              finds out the steps and writes them beside the data directory
    drive FIRST, END, FAULT           does the steps from FIRST to before END, on the disk as it is
    stop FIRST, END, AT               the same, but the child stands still at a call, and another process writes then
    trace LOG                         does all steps and writes down every call
    rescue LOG                        takes over what was left behind, and writes down every call
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from retoma import limits
from retoma.errors import StoreUnavailable, Unavailable
from retoma.store.sqlite import SqliteStore
from tests.faults.flow import LEFT_BEHIND_BY, Files, Plan, content, do, find_plan, world_of
from tests.support.shim import Action, Fault, Shim

CHECKPOINT_PAGES = 60
PATIENCE = 2
"""A step is tried so often on a disk that stays broken; then the disk is mended."""
Say = Callable[..., None]


class Child:
    """The process that works while its disk fails."""

    def __init__(self, data_dir: Path, plan: Plan, say: Say, shim: Shim) -> None:
        self._path = data_dir / "retoma.db"
        self._files = Files(data_dir)
        self._plan = plan
        self._say = say
        self._shim = shim

    def work(self, first: int, end: int) -> None:
        """The steps from `first` to before `end`, each until it is done."""
        store = self._until_done(first, lambda _: SqliteStore(self._path))
        for number in range(first, end):
            # Whoever begins behind a crash does not know whether this first step was done before.
            self._until_done(number, partial(self._do, number, store, begun=number == first))
            self._say("done", number)
        store.transact(lambda _: None)  # comes behind the checkpoint of the last step
        self._shim.disarm()
        store.transact(lambda _: None)  # a checkpoint that failed is tried again behind the next commit
        store.transact(lambda _: None)
        self._say("problem", store.problem())
        store.close()

    def _do(self, number: int, store: SqliteStore, tries: int, *, begun: bool) -> None:
        do(self._plan.steps[number], store, self._files, again=begun or tries > 0)

    def _until_done(self, number: int, act: Callable[[int], Any]) -> Any:
        tries = 0
        while True:
            try:
                return act(tries)
            except (Unavailable, OSError) as refusal:
                tries += 1
                self._look(number, refusal)
                if tries > PATIENCE:
                    raise
                if tries == PATIENCE:
                    self._shim.disarm()

    def _look(self, number: int, refusal: Exception) -> None:
        """What was refused has not happened, or, where nobody can know, has happened as a whole."""
        before, after = self._plan.without_snapshots[number : number + 2]
        unknown = isinstance(refusal, StoreUnavailable) and "unknown" in refusal.message
        kind = "unknown" if unknown else "file" if isinstance(refusal, OSError) else "no"
        self._say("refused", number, kind)
        if content(self._path, leave_out="snapshots") not in ({before, after} if unknown else {before}):
            self._say("half", number, f"{kind}: {refusal}")


class Server:
    """Obeys the commands."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._shim = Shim()
        self._arm = self._shim.arm

    @cache  # noqa: B019 - there is one server, and it lives as long as its process
    def _plan(self) -> Plan:
        return pickle.loads(self._data_dir.with_name("plan").read_bytes())  # noqa: S301 - written by `plan`, below

    def plan(self) -> dict[str, Any]:
        def act(_: Say) -> None:
            self._arm(self._data_dir, Fault(Action.COUNT, 0))
            found = find_plan(self._data_dir, lambda: self._shim.calls)
            self._data_dir.with_name("plan").write_bytes(pickle.dumps(found))

        return self._finished(*self._fork(act))

    def drive(self, first: int, end: int, fault: list[int]) -> dict[str, Any]:
        plan = self._plan()

        def act(say: Say) -> None:
            self._arm(self._data_dir, Fault(Action(fault[0]), fault[1], bool(fault[2])))
            Child(self._data_dir, plan, say, self._shim).work(first, end)

        return self._finished(*self._fork(act))

    def stop(self, first: int, end: int, at: int) -> dict[str, Any]:
        plan = self._plan()

        def act(say: Say) -> None:
            self._arm(self._data_dir, Fault(Action.STOP, at))
            Child(self._data_dir, plan, say, self._shim).work(first, end)

        pid, pipe = self._fork(act)
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return self._answer(status, pipe)
        locked = holds_write_lock(pid)
        other = self._finished(*self._fork(lambda say: say("other", write_once(self._data_dir, at))))
        os.kill(pid, signal.SIGCONT)
        answer = self._finished(pid, pipe)
        return answer | {"locked": locked, "other": other["said"][0][1]}

    def trace(self, log: str) -> dict[str, Any]:
        plan = self._plan()

        def act(_: Say) -> None:
            self._shim.record(self._data_dir, Path(log))
            child = Child(self._data_dir, plan, lambda *words: self._shim.say(json.dumps(words)), self._shim)
            child.work(0, len(plan.steps))

        return self._finished(*self._fork(act))

    def rescue(self, log: str) -> dict[str, Any]:
        """What a start does with what an earlier instance left behind."""

        def act(_: Say) -> None:
            self._shim.record(self._data_dir, Path(log))
            store = SqliteStore(self._data_dir / "retoma.db")
            world = world_of(store, space=7)
            world.me = "rescuer"
            for dead in (LEFT_BEHIND_BY, "instance-1"):
                for task in world.unfinished_of(dead):
                    moved = world.recover(task)
                    assert moved is not None
                    self._shim.say(json.dumps(("moved", moved.id, moved.last_seq)))
            store.close()

        return self._finished(*self._fork(act))

    def _fork(self, act: Callable[[Say], None]) -> tuple[int, int]:
        """A child, and the pipe through which it says what has happened."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(read)
                limits.CHECKPOINT_PAGES = CHECKPOINT_PAGES
                act(lambda *words: os.write(write, f"{json.dumps(words)}\n".encode()))
                os._exit(0)
            except BaseException:  # noqa: BLE001 - it must be seen, and the child must not go on as its parent
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(99)
        os.close(write)
        return pid, read

    def _finished(self, pid: int, pipe: int) -> dict[str, Any]:
        # What it says fits into the pipe's buffer, so that its end can be waited for first.
        return self._answer(os.waitpid(pid, 0)[1], pipe)

    def _answer(self, status: int, pipe: int) -> dict[str, Any]:
        with os.fdopen(pipe) as heard:
            said = [json.loads(line) for line in heard]
        shim = self._shim
        return {
            "status": os.waitstatus_to_exitcode(status),
            "said": said,
            "calls": shim.calls,
            "fired": shim.fired,
            "where": shim.where,
        }


def write_once(data_dir: Path, number: int) -> str:
    """Another process accepts one task: `committed`, or `busy` when it has not got the lock for a while."""
    limits.BUSY_WAIT_MS_MAX = 4
    store = SqliteStore(data_dir / "retoma.db")
    try:
        world_of(store, space=1_000 + number).accept(priority=5)
    except StoreUnavailable as refusal:
        return "busy" if "busy" in refusal.message else refusal.message
    else:
        return "committed"
    finally:
        store.close()


def holds_write_lock(pid: int) -> bool:
    """Whether a process holds the lock that SQLite's writers take: byte 120 of the -shm file."""
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(words[3] == "WRITE" and words[4] == str(pid) and words[6] == "120" for words in locks)


if __name__ == "__main__":
    server = Server(Path(sys.argv[1]))
    gc.freeze()  # a collection in a child would touch, and so copy, all of this process's memory
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        sys.stdout.write(f"{json.dumps(getattr(server, verb)(*arguments))}\n")
        sys.stdout.flush()
