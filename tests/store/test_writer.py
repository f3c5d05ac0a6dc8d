"""The writer: many functions in one commit, each with its own fate; shown on a connection that only counts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from retoma import failpoints, limits
from retoma.errors import Conflict, ShuttingDown, StoreFull, StoreUnavailable
from retoma.failpoints import Failpoint
from retoma.store import writer as writer_module
from retoma.store.contract import Outcome
from retoma.store.writer import CommitUnknown, Writer

BOUND_S = 10.0


class FakeTx:
    """Collects what is written, so that a rollback can be seen."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.woken: set[str] = set()
        self.points: list[Failpoint] = []
        self.pending: list[str] = []

    def write(self, name: str) -> str:
        self.pending.append(name)
        return name

    def wake(self, task_id: str) -> None:
        self.woken.add(task_id)

    def after_commit(self, point: Failpoint) -> None:
        self.points.append(point)


@dataclass
class Disk:
    """What is durable, what was called, and what shall fail: an error for each call of `begin` or `commit`."""

    durable: list[list[str]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    begin_errors: list[Exception | None] = field(default_factory=list)
    commit_errors: list[tuple[Exception, bool] | None] = field(default_factory=list)
    """With each error, whether the commit has reached the disk all the same."""
    whole_rollback: bool = False
    opened: int = 0

    def connect(self) -> Any:
        self.opened += 1
        return FakeConnection(self)

    @property
    def items(self) -> list[str]:
        return [name for commit in self.durable for name in commit]


class FakeConnection:
    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.tx = FakeTx(disk)
        self.mark = 0

    def begin(self) -> None:
        self.disk.calls.append("begin")
        self.tx.pending = []
        error = self.disk.begin_errors.pop(0) if self.disk.begin_errors else None
        if error is not None:
            raise error

    def savepoint(self) -> None:
        self.mark = len(self.tx.pending)

    def release(self) -> None:
        pass

    def rollback_to_savepoint(self) -> bool:
        if self.disk.whole_rollback:
            return False
        del self.tx.pending[self.mark :]
        return True

    def commit(self) -> None:
        self.disk.calls.append("commit")
        failure = self.disk.commit_errors.pop(0) if self.disk.commit_errors else None
        if failure is None or failure[1]:
            self.disk.durable.append(self.tx.pending)
        if failure is not None:
            raise failure[0]

    def rollback(self) -> None:
        self.disk.calls.append("rollback")

    def after_batch(self) -> None:
        self.disk.calls.append("after_batch")

    def close(self) -> None:
        self.disk.calls.append("close")


class Client:
    """Submits functions and waits for their outcomes."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.outcomes: dict[str, Outcome] = {}
        self.changed = threading.Condition()

    def submit(self, name: str, function: Callable[[Any], Any] | None = None) -> None:
        def settle(outcome: Outcome) -> None:
            with self.changed:
                assert name not in self.outcomes, "settled twice"
                self.outcomes[name] = outcome
                self.changed.notify_all()

        self.writer.submit(function or (lambda tx: tx.write(name)), settle)

    def outcome(self, name: str) -> Outcome:
        with self.changed:
            assert self.changed.wait_for(lambda: name in self.outcomes, BOUND_S), f"{name} was never settled"
            return self.outcomes[name]

    def hold(self) -> threading.Event:
        """Keeps the writer inside a transaction until the event is set, so that more can be queued behind it."""
        inside, go = threading.Event(), threading.Event()

        def function(_: Any) -> None:
            inside.set()
            assert go.wait(BOUND_S)

        self.submit("hold", function)
        assert inside.wait(BOUND_S)
        return go


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def client(disk: Disk) -> Iterator[Client]:
    writer = Writer(disk.connect)
    yield Client(writer)
    writer.close()


def own_effect_or_write(disk: Disk, name: str) -> Callable[[Any], str]:
    """A function as transactions are: it looks for what it did before."""
    return lambda tx: f"found {name}" if name in disk.items else tx.write(name)


def test_what_waits_behind_a_commit_goes_into_the_next_one_together(client: Client, disk: Disk) -> None:
    go = client.hold()
    names = [f"n{number}" for number in range(20)]
    for name in names:
        client.submit(name)
    go.set()
    assert [client.outcome(name).result for name in names] == names
    assert disk.durable == [[], names]
    assert (client.writer.commits, client.writer.committed_items) == (2, 21)


def test_a_batch_is_bounded(client: Client, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WRITER_BATCH_MAX", 8)
    go = client.hold()
    for number in range(20):
        client.submit(f"n{number}")
    go.set()
    client.outcome("n19")
    assert [len(commit) for commit in disk.durable] == [0, 8, 8, 4]


@pytest.mark.requirement("S-005c")
def test_nobody_hears_of_a_result_before_the_commit(client: Client, disk: Disk) -> None:
    seen: list[list[str]] = []
    done = threading.Event()

    def settle(_: Outcome) -> None:
        seen.append(list(disk.items))
        done.set()

    client.writer.submit(lambda tx: tx.write("a"), settle)
    assert done.wait(BOUND_S)
    assert seen == [["a"]]


@pytest.mark.requirement("S-005")
def test_a_function_that_fails_takes_nothing_with_it_but_its_own_writes(client: Client, disk: Disk) -> None:
    def fails(tx: Any) -> None:
        tx.write("half of it")
        tx.wake("resp_1")
        raise Conflict("no")

    go = client.hold()
    client.submit("before")
    client.submit("fails", fails)
    client.submit("after")
    go.set()
    assert client.outcome("after").error is None
    assert client.outcome("before").error is None
    assert isinstance(client.outcome("fails").error, Conflict)
    assert disk.items == ["before", "after"]


@pytest.mark.parametrize("reached_the_disk", [True, False])
@pytest.mark.requirement("S-005", "S-007", "S-005b", "S-007c")
def test_an_unknown_commit_is_driven_again_on_a_new_connection_with_one_effect(
    client: Client, disk: Disk, reached_the_disk: bool
) -> None:
    disk.commit_errors = [(CommitUnknown("disk I/O error"), reached_the_disk)]
    client.submit("a", own_effect_or_write(disk, "a"))
    outcome = client.outcome("a")
    assert outcome == Outcome("found a" if reached_the_disk else "a")
    assert disk.items == ["a"]
    assert disk.opened == 2
    assert client.writer.problem is None


@pytest.mark.requirement("S-007d")
def test_an_outcome_that_stays_unknown_is_called_unknown(client: Client, disk: Disk) -> None:
    disk.commit_errors = [(CommitUnknown("disk I/O error"), False)] * limits.COMMIT_TRIES_MAX
    client.submit("a")
    error = client.outcome("a").error
    assert isinstance(error, StoreUnavailable)
    assert "outcome is unknown" in error.message
    assert client.writer.problem == "disk I/O error"
    client.submit("b")
    assert client.outcome("b").error is None
    assert client.writer.problem is None


@pytest.mark.parametrize("later", [StoreFull(), StoreUnavailable("busy")])
@pytest.mark.requirement("S-007")
def test_an_unknown_commit_is_never_called_a_definite_no_because_something_else_failed_later(
    client: Client, disk: Disk, later: Exception
) -> None:
    disk.commit_errors = [(CommitUnknown("disk I/O error"), True)]
    disk.begin_errors = [None, later]
    client.submit("a")
    error = client.outcome("a").error
    assert isinstance(error, StoreUnavailable)
    assert "outcome is unknown" in error.message


@pytest.mark.parametrize("error", [StoreFull(), StoreUnavailable("busy"), ValueError("a bug")])
def test_an_error_before_the_commit_is_a_definite_no_for_the_whole_batch(
    client: Client, disk: Disk, error: Exception
) -> None:
    disk.begin_errors = [error]
    client.submit("a")
    assert client.outcome("a").error is error
    assert disk.items == []
    client.submit("b")
    assert client.outcome("b").error is None


def test_a_full_disk_at_the_commit_is_a_definite_no(client: Client, disk: Disk) -> None:
    full = StoreFull()
    disk.commit_errors = [(full, False)]
    client.submit("a")
    assert client.outcome("a").error is full
    assert disk.calls.count("commit") == 1


def test_when_the_database_gives_up_the_transaction_everybody_in_it_hears_of_it(client: Client, disk: Disk) -> None:
    disk.whole_rollback = True
    error = StoreFull()

    def fails(_: Any) -> None:
        raise error

    go = client.hold()
    client.submit("before")
    client.submit("fails", fails)
    client.submit("after")
    go.set()
    assert [client.outcome(name).error for name in ("before", "fails", "after")] == [error] * 3
    assert disk.items == []


def test_the_queue_has_a_bound_and_says_that_nothing_was_accepted(
    client: Client, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WRITER_QUEUE_MAX", 3)
    go = client.hold()
    for name in ("a", "b", "c", "d"):
        client.submit(name)
    assert isinstance(client.outcome("d").error, StoreUnavailable)
    go.set()
    client.outcome("c")
    assert disk.items == ["a", "b", "c"]


def test_close_commits_what_is_queued_and_refuses_what_comes_later(client: Client, disk: Disk) -> None:
    go = client.hold()
    client.submit("queued before")
    closing = threading.Thread(target=client.writer.close)
    closing.start()
    while not client.writer._closing:
        threading.Event().wait(0.001)
    client.submit("too late")
    assert isinstance(client.outcome("too late").error, ShuttingDown)
    go.set()
    closing.join(BOUND_S)
    assert not closing.is_alive()
    assert client.outcome("queued before").error is None
    assert disk.items == ["queued before"]
    assert disk.calls[-1] == "close"
    client.writer.close()


@pytest.fixture
def gathers(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Every wait of the writer for company."""
    waits: list[float] = []
    monkeypatch.setattr(writer_module.time, "sleep", waits.append)
    return waits


def test_a_lone_client_is_never_made_to_wait(client: Client, gathers: list[float]) -> None:
    for number in range(20):
        client.submit(f"n{number}")
        client.outcome(f"n{number}")
    assert gathers == []


def test_after_a_batch_with_company_the_writer_gathers_once_for_a_shorter_queue(
    client: Client, gathers: list[float]
) -> None:
    go = client.hold()
    for name in ("a", "b", "c"):
        client.submit(name)
    go.set()
    client.outcome("c")
    client.submit("alone")
    client.outcome("alone")
    assert gathers == [limits.WRITER_GATHER_US / 1e6]
    client.submit("alone again")
    client.outcome("alone again")
    assert len(gathers) == 1


def test_each_commit_wakes_its_listeners_once_with_all_tasks_that_changed(client: Client) -> None:
    deliveries: list[Callable[[], None]] = []
    woken: list[frozenset[str]] = []
    go = client.hold()
    client.writer.deliver = lambda thunk: (deliveries.append(thunk), thunk())[1]
    client.writer.on_commit = woken.append
    client.submit("a", lambda tx: tx.wake("resp_1"))
    client.submit("b", lambda tx: tx.wake("resp_2"))
    client.submit("c", lambda _: None)
    go.set()
    client.outcome("c")
    client.submit("d", lambda _: None)
    client.outcome("d")
    assert woken == [frozenset({"resp_1", "resp_2"})]
    assert len(deliveries) == 3


def test_a_listener_that_fails_stops_neither_the_others_nor_the_writer(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    def bad(_: Any) -> None:
        raise ValueError("a listener's bug")

    go = client.hold()
    client.writer.on_commit = bad
    client.writer.submit(lambda tx: tx.wake("resp_1"), bad)
    client.submit("neighbour")
    go.set()
    assert client.outcome("neighbour").error is None
    broken = threading.Event()

    def deliver(thunk: Callable[[], None]) -> None:
        if not broken.is_set():
            broken.set()
            raise ValueError("a bug of the loop")
        thunk()

    client.writer.deliver = deliver
    client.writer.submit(lambda tx: tx.write("unheard"), lambda _: None)
    assert broken.wait(BOUND_S)
    client.submit("next")
    assert client.outcome("next").error is None
    assert "a listener of the store failed" in caplog.text


@pytest.mark.requirement("S-007", "S-007d")
def test_an_answer_lost_after_the_commit_is_called_unknown_and_the_effect_stays(client: Client, disk: Disk) -> None:
    def accept(tx: Any) -> None:
        tx.write("accepted")
        tx.after_commit(Failpoint.ACCEPT_COMMITTED)

    failpoints.arm(f"{Failpoint.ACCEPT_COMMITTED.label}=error")
    try:
        client.submit("a", accept)
        error = client.outcome("a").error
    finally:
        failpoints.arm(None)
    assert isinstance(error, StoreUnavailable)
    assert "outcome is unknown" in error.message
    assert disk.items == ["accepted"]
