"""Any commands, by any owner, with any token, over restarts of the process: the store does what the tables say.

The oracle is a dictionary and the pure tables of `retoma.core`; it knows nothing of SQL, events or versions of rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from retoma.core.crash import CrashCount, decide_after_crash
from retoma.core.response import Ending
from retoma.core.restart import decide_restart
from retoma.core.task import Command, OnRestart, State
from retoma.core.transitions import TRANSITIONS
from retoma.errors import IllegalTransition, LeaseLost, NotFound, RetomaError, TaskUnfinished
from retoma.store.migrate_postgres import prepare
from retoma.store.rows import TaskRow
from tests.conftest import SEED
from tests.support.clock import ManualClock, SequentialIds
from tests.support.postgres import empty
from tests.support.stores import new_file, open_store
from tests.support.world import World, key_of

MEMORY = Path("/dev/shm")  # noqa: S108 - where a sync costs nothing; files in it have random names
INSTANCES = st.sampled_from(["instance-1", "instance-2", "instance-3"])
TERMINAL = {"completed": Command.COMPLETE, "failed": Command.FAIL, "cancelled": Command.CONFIRM_CANCEL}
REFUSALS = (LeaseLost, IllegalTransition, TaskUnfinished, NotFound)
# A lease on nothing, for rules that must return one.
NOBODY = TaskRow(**dict.fromkeys(TaskRow.__dataclass_fields__, ""))  # pyright: ignore[reportArgumentType]


NO_CRASH = CrashCount(0, 0)


@dataclass(frozen=True)
class Known:
    """What the oracle knows of a task."""

    policy: OnRestart
    owner: str
    state: State = State.QUEUED
    token: int = 0
    attempt: int = 1
    text: str = ""
    crashes: CrashCount = NO_CRASH
    tokens: int = 0

    def moved(self, command: Command, **changes: Any) -> Known:
        return replace(self, state=TRANSITIONS[self.state, command], **changes)

    def taken(self, command: Command, owner: str) -> Known:
        """After a recovery or a crash."""
        again = command is Command.REQUEUE
        reached = TRANSITIONS[self.state, command]
        return self.moved(
            command,
            owner=owner,
            token=self.token + 1,
            attempt=self.attempt + (self.state is not State.QUEUED and not reached.finished),
            text="" if again else self.text,
            tokens=0 if again else self.tokens,
        )


@seed(SEED)
class Tasks(RuleBasedStateMachine):
    """On SQLite; on PostgreSQL below."""

    tasks: Bundle[str] = Bundle("tasks")
    leases: Bundle[TaskRow] = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.target = self.place()
        self.known: dict[str, Known] = {}
        self.keys: dict[int, str] = {}
        self.world = World(open_store(self.target), ManualClock(), SequentialIds())

    def place(self) -> str:
        """A store without a row."""
        return str(new_file(Path(mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))))

    def leave(self) -> None:
        """The store is closed and isn't needed any more."""
        shutil.rmtree(Path(self.target).parent)

    def teardown(self) -> None:
        self.world.store.close()
        self.leave()

    def expect(self, refused: type[RetomaError] | None, act: Callable[[], Any]) -> Any:
        """The store agrees on whether the command is carried out, and if not, why."""
        try:
            result = act()
        except REFUSALS as error:
            result, was = None, type(error)
        else:
            was = None
        assert was is refused
        return result

    def refusal(self, lease: TaskRow, command: Command) -> type[RetomaError] | None:
        known = self.known.get(lease.id)
        if known is None:
            return NotFound
        if known.token != lease.fencing_token:
            return LeaseLost
        return None if (known.state, command) in TRANSITIONS else IllegalTransition

    @rule(target=tasks, policy=st.sampled_from(OnRestart), owner=INSTANCES, key=st.integers(0, 3))
    def accept(self, policy: OnRestart, owner: str, key: int) -> str:
        self.world.me = owner
        task = self.world.accept(policy, key=key_of(str(key)))
        if self.keys.get(key) in self.known:
            assert task.id == self.keys[key]
        else:
            assert task.id not in self.known
            self.keys[key] = task.id
            self.known[task.id] = Known(policy, owner)
        return task.id

    @rule(target=leases, owner=INSTANCES)
    def claim(self, owner: str) -> TaskRow:
        self.world.me = owner
        waiting = sorted(task_id for task_id, known in self.known.items() if known.state is State.QUEUED)
        task = self.world.claim()
        if task is None:
            assert not waiting
            return replace(NOBODY, id="resp_none")
        assert task.id == waiting[0]
        known = self.known[task.id]
        self.known[task.id] = known.moved(Command.CLAIM, owner=owner, token=known.token + 1)
        return task

    @rule(lease=leases)
    def start(self, lease: TaskRow) -> None:
        known = self.known.get(lease.id)
        command = Command.CONTINUE if known and known.state is State.RUNNING else Command.START
        refused = self.refusal(lease, command)
        self.expect(refused, lambda: self.world.start(lease))
        if known and refused is None:
            self.known[lease.id] = known.moved(command)

    @rule(lease=leases, text=st.text(min_size=1, max_size=3))
    def append(self, lease: TaskRow, text: str) -> None:
        refused = self.refusal(lease, Command.APPEND)
        self.expect(refused, lambda: self.world.append(lease, text))
        if refused is None:
            known = self.known[lease.id]
            self.known[lease.id] = known.moved(Command.APPEND, text=known.text + text, tokens=known.tokens + 1)

    @rule(lease=leases, status=st.sampled_from(sorted(TERMINAL)))
    def finish(self, lease: TaskRow, status: str) -> None:
        refused = self.refusal(lease, TERMINAL[status])
        ending = Ending(status, [], code="internal" if status == "failed" else None)
        whole = {} if status == "completed" else {"ending": ending, "fold_output": True}
        self.expect(refused, lambda: self.world.finish(lease, status, **whole))
        if refused is None:
            self.known[lease.id] = self.known[lease.id].moved(TERMINAL[status])

    @rule(task_id=tasks)
    def cancel(self, task_id: str) -> None:
        known = self.known.get(task_id)
        self.expect(None if known else NotFound, lambda: self.world.cancel(task_id))
        if known and (known.state, Command.CANCEL) in TRANSITIONS:
            self.known[task_id] = known.moved(Command.CANCEL)

    @rule(target=leases, task_id=tasks, dead=INSTANCES, owner=INSTANCES)
    def recover(self, task_id: str, dead: str, owner: str) -> TaskRow:
        known = self.known.get(task_id)
        self.world.me = owner
        moved = self.world.recover(replace(NOBODY, id=task_id, instance_id=dead))
        if known is None or known.owner != dead or known.state.finished:
            assert moved is None
            return replace(NOBODY, id="resp_none")
        command, _ = decide_restart(known.state, known.policy)
        self.known[task_id] = known.taken(command, owner)
        assert moved is not None
        return moved

    @rule(target=leases, lease=leases, owner=INSTANCES)
    def engine_crash(self, lease: TaskRow, owner: str) -> TaskRow:
        known = self.known.get(lease.id)
        refused: type[RetomaError] | None = NotFound if known is None else None
        if known and (known.token != lease.fencing_token or known.state.finished):
            refused = LeaseLost
        self.world.me = owner
        moved = self.expect(refused, lambda: self.world.crash(lease))
        if known is None or moved is None:
            return lease
        count = known.crashes.after_crash_at(known.tokens)
        command = decide_after_crash(known.state, known.policy, count)
        self.known[lease.id] = replace(known.taken(command, owner), crashes=count)
        return moved

    @rule(task_id=tasks)
    def delete(self, task_id: str) -> None:
        known = self.known.get(task_id)
        refused = NotFound if known is None else None if known.state.finished else TaskUnfinished
        self.expect(refused, lambda: self.world.delete(task_id))
        if refused is None:
            del self.known[task_id]

    @rule(limit=st.integers(1, 3))
    def prune(self, limit: int) -> None:
        """A year later every key has expired; the clock then goes back, as a wrong one may."""
        year_ms = 365 * 24 * 3600 * 1000
        self.world.clock.advance(year_ms)
        gone = self.world.prune(limit=limit)
        self.world.clock.advance(-year_ms)
        finished = {task_id for task_id, known in self.known.items() if known.state.finished}
        assert set(gone) <= finished
        assert len(gone) == min(limit, len(finished))
        for task_id in gone:
            del self.known[task_id]

    @rule()
    def reopen(self) -> None:
        self.world.store.close()
        self.world.store = open_store(self.target)

    @invariant()
    def the_store_holds_what_the_oracle_knows(self) -> None:
        for task_id, known in self.known.items():
            row = self.world.task(task_id)
            held = (row.on_restart, row.instance_id, row.state, row.fencing_token, row.attempt, row.tokens)
            assert held == (known.policy, known.owner, known.state, known.token, known.attempt, known.tokens)
            assert self.world.output(task_id).text == known.text
        assert self.world.problems() == []


# Shrinking takes up to five minutes when there is something to shrink.
pytestmark = [pytest.mark.requirement("P-11.2-cancel", "S-002", "S-003"), pytest.mark.timeout(400)]
TestTasks = Tasks.TestCase
TestTasks.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


class TasksOnPostgres(Tasks):
    """The same on PostgreSQL, less often: its transactions take longer."""

    url: ClassVar[str]

    def place(self) -> str:
        empty(self.url)
        return self.url

    def leave(self) -> None:
        """The next example empties it."""


class TestTasksOnPostgres(TasksOnPostgres.TestCase):
    # Without shrinking, which would take minutes here: the steps that fail are kept as they are.
    settings = settings(TestTasks.settings, max_examples=8, phases=(Phase.explicit, Phase.reuse, Phase.generate))

    @pytest.fixture(autouse=True)
    def schema(self, postgres_url: str) -> None:
        prepare(postgres_url, 0)
        TasksOnPostgres.url = postgres_url
