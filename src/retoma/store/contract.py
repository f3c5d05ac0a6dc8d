"""What a transaction may ask of a store, and what the runtime may ask of it; the same for every database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from retoma.failpoints import Failpoint
from retoma.store.liveness import Liveness
from retoma.store.statements import Statement
from retoma.tracing import Commit

T = TypeVar("T")
Value = str | int | float | bytes | None
Row = tuple[Any, ...]


class Tx(Protocol):
    """One transaction. All that a function does through it is committed together or not at all."""

    def rows(self, statement: Statement, params: Mapping[str, Value]) -> list[Row]:
        """Every row, in the statement's order."""
        ...

    def row(self, statement: Statement, params: Mapping[str, Value]) -> Row | None:
        """The only row, or None; more than one is a programmer's error."""
        ...

    def execute(self, statement: Statement, params: Mapping[str, Value]) -> int:
        """Carries out a statement; the number of rows it changed."""
        ...

    def now_ms(self) -> int:
        """The store's time, for leases; the same clock for every instance, and of no meaning outside of it.

        SQLite: milliseconds since the machine started, suspended time included. PostgreSQL: the server's clock.
        """
        ...

    def wake(self, task_id: str) -> None:
        """After the commit, tell those who follow this task."""
        ...

    def after_commit(self, point: Failpoint) -> None:
        """After the commit and before anybody hears of it, pass this failpoint."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a transaction ended: a result, or an error that says that nothing was written."""

    result: Any = None
    error: BaseException | None = None


Settle = Callable[[Outcome], None]
Deliver = Callable[[Callable[[], None]], None]
"""Runs a function where the store's listeners live, e.g. on an event loop; called once per commit."""
OnCommit = Callable[[frozenset[str]], None]
"""Told, once per commit, which tasks changed."""
OnWritten = Callable[[Commit], None]
"""Told, once per commit and in the writer's thread, how long it took; must be quick."""
Elsewhere = Callable[[frozenset[str] | None], None]
"""Told which tasks another process has changed; None: any of them may have."""


def uncounted(_: Commit) -> None:
    """Nobody asks how long commits take."""


class Store(Protocol):
    """A store. Every method may be called from any thread."""

    def submit(self, function: Callable[[Tx], Any], settle: Settle) -> None:
        """Queues a writing transaction; `settle` is called once, after its commit or its refusal.

        The function may be run more than once (an unknown commit is driven again), so its effect must be found by its
        operation id. It must not block, hash, encode at length or call out. Outcomes: the function's result or its own
        RetomaError; StoreUnavailable, also when the outcome is unknown; StoreFull; ShuttingDown.
        """
        ...

    def transact(self, function: Callable[[Tx], T]) -> T:
        """As `submit`, for callers without an event loop: waits for the commit."""
        ...

    def read(self, function: Callable[[Tx], T]) -> T:
        """Runs a reading function on one consistent view, in the calling thread; raises StoreUnavailable."""
        ...

    def give_back(self, settle: Settle, *, all_of_it: bool = False) -> None:
        """Queues one short step of giving free space back to the file system; the result: how many bytes, 0 at the end.

        Without `all_of_it` it is done only where there is much free space, and some is left for what will be written.
        A server's store does so by itself.
        """
        ...

    def listen(self, deliver: Deliver, on_commit: OnCommit, on_written: OnWritten = uncounted) -> None:
        """From now on settle and report commits through `deliver`, and tell `on_written` of each."""
        ...

    def watch(self, on_elsewhere: Elsewhere) -> None:
        """From now on, until it closes, report what other processes commit, through `deliver` like own commits.

        Best effort, within a tenth of a second as a rule: a report may be lost, be doubled or (None, on SQLite) be of
        this process's own commits. Asked once.
        """
        ...

    def liveness(self) -> Liveness:
        """The locks by which the instances on this store show that they live; the caller releases them."""
        ...

    def problem(self) -> str | None:
        """One sentence on what is wrong with the store now, or None."""
        ...

    def close(self) -> None:
        """Commits what is queued, then closes. Later transactions end with ShuttingDown."""
        ...
