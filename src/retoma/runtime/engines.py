"""Engines as the event loop sees them: a process per loaded model, its frames sorted by generation.

A model stays loaded between tasks. Every wait has a bound: a model that does not load in time, or an engine from which
nothing is heard, is ended, and whoever waited gets EngineStalled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from retoma.engines.frames import (
    Alive,
    Cancel,
    Cancelled,
    Done,
    Failed,
    Frame,
    Generate,
    Load,
    LoadFailed,
    Park,
    Ready,
)
from retoma.engines.process import EngineProcess
from retoma.engines.turn import mark_of
from retoma.errors import EngineCrashed, EngineError, EngineStalled, ModelCorrupt, ModelUnavailable, PromptTooLong

logger = logging.getLogger(__name__)

_STOP_GRACE_S = 2.0
_ERRORS: dict[str, type[EngineError]] = {
    error.code: error for error in (ModelUnavailable, ModelCorrupt, PromptTooLong, EngineCrashed, EngineStalled)
}


def engine_error(code: str, message: str) -> EngineError:
    """The exception for an error code that an engine reported."""
    return _ERRORS.get(code, EngineError)(message)


def _innocent(end: EngineError) -> EngineError:
    """The same end for a text that the engine did not work on. Its last words are of another one, so they stay out."""
    seen = type(end)("the engine ended while it worked on another text")
    seen.innocent = True
    return seen


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long an engine may take, in seconds."""

    load_s: float
    stall_s: float


OnCrash = Callable[[str], None]
"""Told the error code of an engine that has ended by itself, or that was ended because it hung."""


class Engine:
    """One loaded model in its own process."""

    def __init__(self, load: Load, bounds: Bounds, on_crash: OnCrash) -> None:
        self.model = load.model
        self._on_crash = on_crash
        self._stopped = False
        self._load = load
        self._bounds = bounds
        self._loop = asyncio.get_running_loop()
        self._process: EngineProcess | None = None
        self._ready: asyncio.Future[Ready] = self._loop.create_future()
        self._generations: dict[str, asyncio.Queue[Frame | None]] = {}
        self._heard_at = self._loop.time()
        self._end: EngineError | None = None
        self._culprit = ""
        """The generation that the process worked on when it ended; empty: any of them may have been it."""
        self.fingerprint = ""
        self.exited = asyncio.Event()

    @property
    def gone(self) -> bool:
        """The process has ended; this engine is of no use any more."""
        return self._end is not None

    @property
    def busy(self) -> bool:
        """A generation is under way."""
        return bool(self._generations)

    async def start(self) -> Ready:
        """Starts the process and waits for the model; raises EngineError."""
        hear = partial(self._hop, self._hear)
        exit_ = partial(self._hop, self._exit)
        self._process = await self._loop.run_in_executor(None, EngineProcess, self._load, hear, exit_)
        try:
            async with asyncio.timeout(self._bounds.load_s):
                return await self._ready
        except TimeoutError:
            self._kill(EngineStalled(f"{self.model} did not load within {self._bounds.load_s:.0f} s"))
            raise EngineStalled(f"{self.model} did not load within {self._bounds.load_s:.0f} s") from None

    def begin(self, frame: Generate) -> Generation:
        """Begins a text; raises EngineCrashed if the process is gone."""
        if self._end is not None or self._process is None:
            raise _innocent(self._end or EngineCrashed())
        self._generations[frame.key] = asyncio.Queue()
        self._process.send(frame)
        return Generation(self, frame.key)

    async def next_frame(self, key: str) -> Frame:
        """The next frame of one generation; raises EngineCrashed or EngineStalled."""
        frames = self._generations[key]
        while True:
            try:
                async with asyncio.timeout(self._bounds.stall_s):
                    frame = await frames.get()
            except TimeoutError:
                if self._loop.time() - self._heard_at < self._bounds.stall_s:
                    continue  # it works on another text
                self._kill(EngineStalled(f"nothing was heard from {self.model} for {self._bounds.stall_s:.0f} s"))
                raise self._ending_of(key) from None
            if frame is None:
                raise self._ending_of(key)
            return frame

    def waiting_frame(self, key: str) -> Frame | None:
        """A frame of this generation that is here already, or None."""
        frames = self._generations[key]
        frame = None if frames.empty() else frames.get_nowait()
        if frame is None and self.gone:
            frames.put_nowait(None)  # the mark of the end is for `next_frame`, which would wait for it in vain
        return frame

    def park(self, key: str) -> None:
        """Asks for a snapshot at the next token and then the end; the frames of both come as any others."""
        if self._process is not None:
            self._process.send(Park(key))

    async def end(self, key: str) -> None:
        """Stops a generation, waits until the engine says so, and frees its place. An engine that doesn't is ended."""
        if key in self._generations and self._process is not None and not self.gone:
            self._process.send(Cancel(key))
            try:
                while not isinstance(await self.next_frame(key), Done | Cancelled | Failed):
                    pass
            except EngineError as error:
                logger.warning("engine of %s ended while a text was stopped: %s", self.model, error.code)
        self.forget(key)

    def forget(self, key: str) -> None:
        """The generation is over."""
        self._generations.pop(key, None)

    async def stop(self) -> None:
        """Ends the process."""
        self._stopped = True
        if self._process is not None and not self.exited.is_set():
            await self._loop.run_in_executor(None, self._process.stop, _STOP_GRACE_S)

    @property
    def pid(self) -> int | None:
        """Process id, for operators and tests."""
        return self._process.pid if self._process else None

    def _hop(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop has closed
            return

    def _hear(self, frame: Frame) -> None:
        self._heard_at = self._loop.time()
        if isinstance(frame, Ready):
            self.fingerprint = frame.fingerprint
            if not self._ready.done():
                self._ready.set_result(frame)
        elif isinstance(frame, LoadFailed):
            self._end = engine_error(frame.code, frame.message)
        elif not isinstance(frame, Alive) and (queue := self._generations.get(getattr(frame, "key", ""))) is not None:
            queue.put_nowait(frame)

    def _exit(self, status: int | None) -> None:
        words = self._process.last_words.splitlines() if self._process else []
        last = f"; its last words: {words[-1]}" if words else ""
        how = f"signal {-status}" if status is not None and status < 0 else f"exit status {status}"
        self._find_culprit()
        self._end = self._end or EngineCrashed(f"the engine of {self.model} ended with {how}{last}")
        if isinstance(self._end, EngineCrashed | EngineStalled) and not self._stopped:
            logger.warning("the engine of %s ended with %s", self.model, how)
            self._on_crash(self._end.code)
        if not self._ready.done():
            self._ready.set_exception(self._end)
            self._ready.exception()  # it may be that nobody waits any more
        for queue in self._generations.values():
            queue.put_nowait(None)
        self.exited.set()

    def _find_culprit(self) -> None:
        """Only while the process's generations are all there: one that is over is not to blame any more."""
        if not self._culprit and self._process is not None:
            mark = self._process.turn()
            self._culprit = next((key for key in self._generations if mark_of(key) == mark), "")

    def _ending_of(self, key: str) -> EngineError:
        """The process's end as one of its texts sees it."""
        end = self._end or EngineCrashed()
        return _innocent(end) if self._culprit and key != self._culprit else end

    def _kill(self, reason: EngineError) -> None:
        self._find_culprit()
        self._end = self._end or reason
        if self._process is not None:
            self._process.kill()


class Generation:
    """One text in the making, as the attempt sees it."""

    def __init__(self, engine: Engine, key: str) -> None:
        self._engine = engine
        self._key = key

    async def next(self) -> Frame:
        """The next frame; raises EngineError."""
        return await self._engine.next_frame(self._key)

    def waiting(self) -> Frame | None:
        """A frame that is here already, or None."""
        return self._engine.waiting_frame(self._key)

    def park(self) -> None:
        """Asks for a snapshot at the next token and then the end."""
        self._engine.park(self._key)

    async def stop(self) -> None:
        """Stops the engine's work on this text and waits until it has stopped."""
        await self._engine.end(self._key)

    def over(self) -> None:
        """The last frame has come."""
        self._engine.forget(self._key)


OnReady = Callable[[Load, Ready], Awaitable[None]]


class EnginePool:
    """The engines of one instance, by model. An idle one stays loaded, up to a number."""

    def __init__(self, bounds: Bounds, idle_max: int, on_ready: OnReady, on_crash: OnCrash) -> None:
        self._bounds = bounds
        self._idle_max = idle_max
        self._on_ready = on_ready
        self._on_crash = on_crash
        self._engines: dict[str, Engine] = {}
        self._loads: dict[str, asyncio.Task[Engine]] = {}
        self._users: dict[str, int] = {}

    async def acquire(self, load: Load) -> Engine:
        """The engine of this model, loaded now if it was not; raises EngineError. Give it back with `release`.

        Several may wait for one load. Who is cancelled while waiting leaves the load to the others and to later tasks.
        """
        self._users[load.model] = self._users.get(load.model, 0) + 1
        try:
            engine = self._engines.get(load.model)
            if engine is None or engine.gone:
                engine = await asyncio.shield(self._loading(load))
        except BaseException:
            self.release(load.model)
            raise
        return engine

    def release(self, model: str) -> None:
        """The engine is not needed by this user any more."""
        self._users[model] -= 1

    async def make_room(self, model: str) -> None:
        """Ends idle engines of other models beyond the number that may stay."""
        idle = [name for name in self._engines if name != model and not self._users.get(name)]
        keep = max(0, self._idle_max - 1)
        for name in idle[: max(0, len(idle) - keep)]:
            await self._engines.pop(name).stop()

    def pids(self) -> dict[str, int | None]:
        """Process ids of the engines, for operators and tests."""
        return {name: engine.pid for name, engine in self._engines.items() if not engine.gone}

    async def close(self) -> None:
        """Ends all."""
        for task in self._loads.values():
            task.cancel()
        await asyncio.gather(*self._loads.values(), return_exceptions=True)
        await asyncio.gather(*(engine.stop() for engine in self._engines.values()))

    def _loading(self, load: Load) -> asyncio.Task[Engine]:
        task = self._loads.get(load.model)
        if task is None:
            task = asyncio.create_task(self._start(load), name=f"load {load.model}")
            self._loads[load.model] = task
            task.add_done_callback(partial(self._loaded, load.model))
        return task

    def _loaded(self, model: str, task: asyncio.Task[Engine]) -> None:
        self._loads.pop(model, None)
        if not task.cancelled():
            task.exception()  # whoever waited has it; if all were cancelled, nobody needs it

    async def _start(self, load: Load) -> Engine:
        await self.make_room(load.model)
        engine = Engine(load, self._bounds, self._on_crash)
        try:
            ready = await engine.start()
        except BaseException:
            await engine.stop()
            raise
        await self._on_ready(load, ready)
        self._engines[load.model] = engine
        return engine
