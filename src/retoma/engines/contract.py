"""How an engine is written: the two protocols that `worker.py` drives in the engine's own process.

An engine knows tokens and nothing else. Everything that all engines share is done once, in the worker: assembling
text from tokens (whole UTF-8 characters, stop strings), forced decoding of what is already committed, snapshots,
cancelling, frames. The smallest example is `scripted.py`.

The promise an engine makes (invariant I16): after the same prompt and the same tokens, decoded one at a time or
restored from `save_state`, `sample` picks the same next token. Its choice may depend on nothing but the prompt, the
parameters, the seed and the tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


class Interrupted(Exception):
    """Raised by `prefill` and `decode` after `interrupt`; the sequence can only be closed."""


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a model is loaded."""

    model: str
    path: Path | None
    digest: str
    context_tokens: int
    """Prompt and answer of one text; 0: what the model was made for."""
    sequences: int
    """How many texts are in the making at once."""
    threads: int
    library: str = ""
    """Path of another llama.cpp library; empty: the one that the extra `llama` brings."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """This engine's own, from the model's entry in the registry."""
    flags: Mapping[str, bool] | None = None
    """What an earlier self-test found under `flags_fingerprint`; with that fingerprint an engine may skip its own."""
    flags_fingerprint: str = ""
    alive: Callable[[], None] = _nothing
    """To be called now and then while loading, so that silence means something."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model once it is loaded."""

    context_tokens: int
    fingerprint: str
    """Changes whenever the same tokens could give other bits: library, processor, parameters, model file."""
    exact_restore: bool
    """A saved state continues bit by bit; without it no snapshots are taken."""
    batch_invariant: bool
    thread_invariant: bool
    description: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Generation:
    """One text to generate, as the service asks for it."""

    messages: Sequence[Mapping[str, Any]]
    """`{"role", "content"}` with plain text, oldest first."""
    max_output_tokens: int | None
    temperature: float
    top_p: float
    seed: int
    stop: tuple[str, ...] = ()
    truncation: str = "disabled"
    """`auto`: drop the oldest messages that are not instructions until the prompt fits."""
    format: Mapping[str, Any] | None = None
    """`{"type": "json_schema", "schema": …}` or `{"type": "json_object"}`; None: free text."""


class EngineSequence(Protocol):
    """One text in the making. Used by one thread, apart from `interrupt`."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt, in tokens."""
        ...

    @property
    def prompt_digest(self) -> str:
        """Names the prompt's token ids, hexadecimal."""
        ...

    def prefill(self) -> bool:
        """Decodes the next chunk of the prompt, always cut alike; True while there is more."""
        ...

    def decode(self, token: int) -> None:
        """Takes one token after the prompt: the one just sampled, or one that was committed before a crash."""
        ...

    def sample(self) -> int:
        """The next token; needs the prompt decoded, and every earlier token."""
        ...

    def accept(self, token: int) -> None:
        """Tells the sampler (grammar, penalties) of a token that was chosen; called once per token, in order."""
        ...

    def save_state(self) -> bytes | memoryview:
        """Everything that decoding left behind for the prompt and the tokens so far."""
        ...

    def restore_state(self, state: bytes | memoryview, tokens: Sequence[int]) -> None:
        """As if the prompt and `tokens` had been decoded; `sample` needs one more `decode` first.

        Raises EngineError if the state does not fit; the sequence is then as it was when it was opened.
        """
        ...

    def state_bytes(self) -> int:
        """How large `save_state` would be now."""
        ...

    def interrupt(self) -> None:
        """Called from another thread: a running or later `prefill` or `decode` may raise Interrupted early."""
        ...

    def close(self) -> None:
        """Frees the place in the context."""
        ...


class LoadedModel(Protocol):
    """A model in memory."""

    @property
    def facts(self) -> ModelFacts:
        """What is known of it."""
        ...

    def open(self, generation: Generation) -> EngineSequence:
        """Begins a text; raises PromptTooLong. The caller keeps within `EngineOptions.sequences`."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; may be part of a character, empty for a control token."""
        ...

    def is_end(self, token: int) -> bool:
        """This token ends the text and is not part of it."""
        ...


class Engine(Protocol):
    """What an entry point of the group `retoma.engines` names: a callable that loads a model."""

    def __call__(self, options: EngineOptions) -> LoadedModel:
        """Loads; raises ModelUnavailable or ModelCorrupt."""
        ...
