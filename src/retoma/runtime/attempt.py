"""One attempt at one task: get the engine, generate, commit everything before anybody sees it, end the task.

The attempt owns its task through the fencing token and through nothing else. It learns that it has lost it, or that a
client has cancelled, from the store's refusal of its next write; a notice from elsewhere only makes that quicker. One
append is under way at a time; what the engine produces meanwhile goes into the next one, so a slow disk makes larger
events, never a longer queue of commits.

A store that can't write (a full disk, an I/O error) stops the attempt where it is: it tries again until the store is
back or the ownership is lost. The engine runs ahead by no more than the text's own length.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from retoma import limits
from retoma.clock import Clock
from retoma.core.events import EventDraft
from retoma.core.output import Output
from retoma.core.response import Ending, Usage
from retoma.core.task import OnRestart, State
from retoma.engines.frames import Done, Failed, Frame, Generate, SnapshotWritten, Started
from retoma.errors import (
    EngineCrashed,
    EngineError,
    EngineStalled,
    IllegalTransition,
    LeaseLost,
    NotFound,
    Unavailable,
)
from retoma.ids import Ids
from retoma.runtime.batch import gather
from retoma.runtime.bridge import AsyncStore
from retoma.runtime.engines import Engine, Generation, engine_error
from retoma.runtime.observing import Observer
from retoma.store.contract import Tx
from retoma.store.rows import TaskRow
from retoma.telemetry import Telemetry
from retoma.transactions import read
from retoma.transactions.append import Append, append
from retoma.transactions.finish import Finish, finish
from retoma.transactions.recover import AfterCrash, recover_after_crash
from retoma.transactions.snapshots import RegisterSnapshot, read_snapshots, register_snapshot
from retoma.transactions.start import Start, start

logger = logging.getLogger(__name__)
T = TypeVar("T")
_RETRY_S = (0.05, 0.2, 0.5, 1.0, 2.0)


class Engines(Protocol):
    """Where an attempt gets its engine."""

    async def acquire(self, model: str) -> Engine:
        """The loaded engine of this model; raises EngineError."""
        ...

    def release(self, model: str) -> None:
        """Gives it back."""
        ...


class SnapshotFiles(Protocol):
    """Where an attempt's snapshots lie."""

    enabled: bool

    def pattern(self, task_id: str, fencing_token: int) -> str:
        """Path for new files, with `{tokens}`."""
        ...

    def absolute(self, path: str) -> Path:
        """A registered path as a file."""
        ...

    def relative(self, path: str) -> str:
        """A file as it is registered."""
        ...

    async def remove(self, paths: list[str]) -> None:
        """Removes registered files; those that are gone already are no error."""
        ...

    async def remove_all(self, task_id: str) -> None:
        """Removes all files of a task."""
        ...


@dataclass(frozen=True, slots=True)
class Tools:
    """What every attempt of an instance shares."""

    store: AsyncStore
    engines: Engines
    snapshots: SnapshotFiles
    clock: Clock
    ids: Ids
    instance_id: Callable[[], str]
    loadable: Callable[[], Awaitable[frozenset[str] | None]]
    """The models that this instance can load, where its files are not everybody's; None: claim any task."""
    telemetry: Telemetry


class Stopping(Enum):
    """Why an attempt is told to stop."""

    CANCELLED = "cancelled"
    PARKED = "parked"
    """The instance ends in good order: a snapshot is written and the text is left to whoever recovers it."""
    ABANDONED = "abandoned"
    """The task is not ours any more, or the instance ends: nothing more is written."""


class Attempt:
    """Drives one task that this instance has claimed or recovered."""

    def __init__(self, tools: Tools, task: TaskRow) -> None:
        self._tools = tools
        self._task = task
        self._seq = task.last_seq
        self._output = Output()
        self._fingerprint = ""
        self._generation: Generation | None = None
        self._holds_engine = False
        self._stopping: Stopping | None = None
        self._work: asyncio.Task[None] | None = None
        self._observer = Observer(tools.telemetry, tools.clock, task, tools.instance_id())

    @property
    def task_id(self) -> str:
        """Which task this is about."""
        return self._task.id

    def stop(self, why: Stopping) -> None:
        """Makes the attempt end soon. To be abandoned wins over everything."""
        if self._stopping is not Stopping.ABANDONED:
            self._stopping = why
        if self._work is not None:
            self._work.cancel()

    def park(self) -> None:
        """Makes the attempt end soon, with a snapshot if the text can be continued from one."""
        if self._generation is None or self._task.on_restart is not OnRestart.RESUME or self._stopping:
            self.stop(Stopping.ABANDONED)
            return
        self._stopping = Stopping.PARKED
        self._generation.park()

    async def run(self) -> None:
        """To the end of the attempt; never raises."""
        with self._observer.attempting():
            await self._run()

    async def _run(self) -> None:
        try:
            if self._task.state is State.CANCELLING:
                self._stopping = Stopping.CANCELLED
            if self._stopping is None:
                self._work = asyncio.create_task(self._generate(), name=f"generate {self.task_id}")
                await asyncio.wait([self._work])
                await self._conclude(self._work)
            elif self._stopping is Stopping.CANCELLED:
                await self._confirm_cancel()
        except (LeaseLost, NotFound) as lost:
            logger.info("task %s: given up: %s", self.task_id, lost.message)
        except Exception:
            logger.exception("task %s: the attempt failed", self.task_id)
        finally:
            if self._holds_engine:
                self._tools.engines.release(self._task.model)

    async def _conclude(self, work: asyncio.Task[None]) -> None:
        """Whatever the generation ended with: free the engine, then write what it means."""
        error = None if work.cancelled() else work.exception()
        if self._generation is not None and (error is not None or work.cancelled()):
            await self._generation.stop()
        if self._stopping in {Stopping.ABANDONED, Stopping.PARKED}:
            return
        if work.cancelled() or self._stopping is Stopping.CANCELLED:
            await self._confirm_cancel()
        elif isinstance(error, EngineCrashed | EngineStalled):
            await self._after_crash(error)
        elif isinstance(error, IllegalTransition):  # a cancel was committed before our write
            await self._confirm_cancel()
        elif isinstance(error, EngineError):
            await self._fail(error.code, error.message)
        elif isinstance(error, LeaseLost | NotFound):
            raise error
        elif error is not None:
            logger.error("task %s: an internal error", self.task_id, exc_info=error)
            await self._fail("internal", "an internal error ended this response; the service's log has the details")

    async def _generate(self) -> None:
        committed = await self._committed_output()
        engine = await self._tools.engines.acquire(self._task.model)
        self._holds_engine = True
        self._fingerprint = engine.fingerprint
        self._generation = engine.begin(await self._request(committed))
        await self._follow(self._generation)

    async def _committed_output(self) -> list[int]:
        """What earlier owners have committed; the text goes on after it."""
        if self._task.state is State.RUNNING:
            folded = await self._tools.store.read(partial(read.read_folded, task_id=self.task_id))
            self._output = folded.output
        return list(self._output.tokens)

    async def _request(self, committed: list[int]) -> Generate:
        task, files = self._task, self._tools.snapshots
        wanted = task.request_fields
        rows = await self._tools.store.read(partial(read_snapshots, task_id=task.id)) if committed else []
        generation = wanted["generation"]
        return Generate(
            key=f"{task.id}/{task.fencing_token}/{self._tools.ids.op_id()}",
            messages=wanted["messages"],
            max_output_tokens=generation["max_output_tokens"],
            temperature=generation["temperature"],
            top_p=generation["top_p"],
            seed=generation["seed"],
            stop=generation["stop"],
            truncation=generation["truncation"],
            format=generation["format"],
            committed=committed,
            fingerprint=task.fingerprint,
            snapshots=[str(files.absolute(row.path)) for row in rows if row.tokens < len(committed)],
            snapshot_path=files.pattern(task.id, task.fencing_token) if files.enabled else "",
        )

    async def _follow(self, generation: Generation) -> None:
        """Takes the engine's frames to the end, as many at a time as have come since the last commit."""
        while True:
            frames = [await generation.next()]
            while len(frames) < limits.APPEND_TOKENS_MAX and (frame := generation.waiting()) is not None:
                frames.append(frame)
            if await self._take(generation, frames):
                return

    async def _take(self, generation: Generation, frames: list[Frame]) -> bool:
        """Commits what these frames say; True at the end of the text, or once it is parked."""
        batch = gather(frames)
        if batch.end is not None:  # before anything is awaited: an engine does not answer a cancel of what is over
            generation.over()
            self._generation = None
        if batch.started is not None:
            await self._start(batch.started)
        drafts = self._output.append(batch.text, batch.tokens, self._new_item_id()) if batch.text else []
        if isinstance(batch.end, Done):
            await self._finish(drafts, batch.end)
            return True
        if drafts:
            await self._append(drafts)
        for snapshot in batch.snapshots:
            await self._register(snapshot)
        if isinstance(batch.end, Failed):
            raise engine_error(batch.end.code, batch.end.message)
        return batch.end is not None

    async def _start(self, frame: Started) -> None:
        command = Start(
            self.task_id,
            self._task.fencing_token,
            frame.path,
            frame.exact,
            self._fingerprint,
            self._tools.clock.wall_ms(),
            self._tools.ids.op_id(),
        )
        self._task = await self._write(partial(start, command=command))
        self._observer.started(frame.path)
        self._seq = self._task.last_seq

    async def _append(self, drafts: list[EventDraft]) -> None:
        command = Append(
            self.task_id,
            self._task.fencing_token,
            self._seq,
            drafts,
            self._tools.clock.wall_ms(),
            self._tools.ids.op_id(),
        )
        with self._observer.appending():
            self._seq = await self._write(partial(append, command=command))
        self._observer.appended(drafts)

    async def _finish(self, drafts: list[EventDraft], done: Done) -> None:
        whole = done.reason == "stop"
        status = "completed" if whole else "incomplete"
        if done.text:
            drafts = [*drafts, *self._output.append(done.text, done.tokens, self._new_item_id())]
            rest: list[int] = []
        else:
            rest = done.tokens
        drafts = [*drafts, *self._output.close(status, rest, self._new_item_id())]
        usage = Usage(done.prompt_tokens, done.output_tokens)
        reason = None if whole else "max_output_tokens"
        await self._end(Ending(status, self._output.items(status), usage, reason), drafts)

    async def _fail(self, code: str, message: str) -> None:
        try:
            await self._end(Ending("failed", [], code=code, message=message), fold_output=True)
        except IllegalTransition:
            await self._confirm_cancel()

    async def _confirm_cancel(self) -> None:
        await self._end(Ending("cancelled", []), fold_output=True)

    async def _end(self, ending: Ending, before: list[EventDraft] | None = None, *, fold_output: bool = False) -> None:
        command = Finish(
            self.task_id,
            self._task.fencing_token,
            ending,
            self._tools.clock.wall_ms(),
            self._tools.ids.op_id(),
            before or [],
            fold_output,
        )
        await self._write(partial(finish, command=command))
        self._observer.ended(ending, command.before)
        await self._tools.snapshots.remove_all(self.task_id)

    async def _after_crash(self, error: EngineError) -> None:
        # Not the message: it holds the engine's last words, and those may be of a prompt.
        logger.warning("task %s: %s", self.task_id, error.code)
        command = AfterCrash(
            self.task_id,
            self._task.fencing_token,
            self._tools.instance_id(),
            error.code,
            error.message,
            self._tools.clock.wall_ms(),
            self._tools.ids.op_id(),
            error.innocent,
        )
        moved = await self._write(partial(recover_after_crash, command=command))
        self._observer.crashed(error.code, moved)
        if moved.state is not State.RUNNING:
            await self._tools.snapshots.remove_all(self.task_id)

    async def _register(self, frame: SnapshotWritten) -> None:
        path = self._tools.snapshots.relative(frame.path)
        command = RegisterSnapshot(
            self.task_id,
            self._task.fencing_token,
            frame.tokens,
            path,
            frame.bytes,
            frame.fingerprint,
            self._tools.clock.wall_ms(),
        )
        superseded = await self._write(partial(register_snapshot, command=command))
        self._observer.registered()
        await self._tools.snapshots.remove(superseded)

    async def _write(self, function: Callable[[Tx], T]) -> T:
        """Commits, however long the store may be away; only the loss of the ownership, or a cancel, ends the wait."""
        tries = 0
        while True:
            try:
                return await self._tools.store.transact(function)
            except LeaseLost:
                self._observer.fenced()
                raise
            except Unavailable as away:
                if self._stopping is Stopping.ABANDONED:
                    raise LeaseLost from away
                logger.warning("task %s waits for the store: %s", self.task_id, away.message)
                await asyncio.sleep(_RETRY_S[min(tries, len(_RETRY_S) - 1)])
                tries += 1

    def _new_item_id(self) -> str:
        return self._output.item_id or self._tools.ids.new("msg")
