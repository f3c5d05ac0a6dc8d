"""The smallest engine: deterministic text without a model, for tests and as the example to write one's own from.

The next token depends on the prompt, the parameters, the seed and every token so far, through a rolling hash that lives
in the state. So a wrong restore, a token left out or decoded twice changes the text, and a test notices.

Switches, read when the model is loaded: `RETOMA_SCRIPTED_TOKEN_MS` (per decoded token), `RETOMA_SCRIPTED_PREFILL_MS`
(per chunk of prompt), `RETOMA_SCRIPTED_LOAD_MS`, `RETOMA_SCRIPTED_TOKENS` (natural length, 256). A prompt that
contains `[[crash]]` ends the process when token 8 is to be sampled, one that contains `[[stall]]` stops it there for
good.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from retoma.engines.contract import EngineOptions, Generation, Interrupted, ModelFacts
from retoma.engines.prompt import fit
from retoma.errors import EngineError
from retoma.limits import PREFILL_CHUNK_TOKENS

CONTEXT_TOKENS = 1_000_000
SWITCH_TOKEN = 8
"""Where `[[crash]]` and `[[stall]]` act: this many tokens exist by then."""

_TEXT = (
    "the sea took a lamp and left some salt on every stone while far from here they count waves by hand until morning, "
    "then someone writes it down again; nothing is lost."
)
_WORDS = _TEXT.split()
# Each of these is given out byte by byte; the first byte tells which one it is.
_BYTEWISE = tuple(text.encode() for text in ("é", "漢字", "🌊"))
_WORD_BASE = 256
_END = _WORD_BASE + len(_WORDS)
_STATE = struct.Struct("<32s32sQB8s")


def load(options: EngineOptions) -> ScriptedModel:
    """Always succeeds; `path` and `digest` are not looked at."""
    until = time.monotonic() + _milliseconds("RETOMA_SCRIPTED_LOAD_MS") / 1000
    while (rest := until - time.monotonic()) > 0:
        options.alive()
        time.sleep(min(rest, 0.1))
    return ScriptedModel(options)


def _milliseconds(name: str) -> float:
    return float(os.environ.get(name) or 0)


def _hash(*parts: bytes) -> bytes:
    return blake2b(b"".join(parts), digest_size=32).digest()


class ScriptedModel:
    """One byte per token inside the characters of `_BYTEWISE`, else a word per token."""

    def __init__(self, options: EngineOptions) -> None:
        self.facts = ModelFacts(
            context_tokens=options.context_tokens or CONTEXT_TOKENS,
            fingerprint="scripted-1",
            exact_restore=True,
            batch_invariant=True,
            thread_invariant=True,
        )
        self.token_ms = _milliseconds("RETOMA_SCRIPTED_TOKEN_MS")
        self.prefill_ms = _milliseconds("RETOMA_SCRIPTED_PREFILL_MS")
        self.natural_tokens = int(os.environ.get("RETOMA_SCRIPTED_TOKENS") or 256)

    def open(self, generation: Generation) -> ScriptedSequence:
        """Begins a text; raises PromptTooLong. A prompt has one token for every four bytes."""
        if generation.format is not None:
            raise EngineError("The model `scripted` writes free text only; ask another model for JSON.")
        prompt = fit(generation.messages, generation.truncation, self.facts.context_tokens, _render)
        return ScriptedSequence(self, generation, prompt)

    def piece(self, token: int) -> bytes:
        """One byte, a word with a space before it, or nothing for the end."""
        if token < _WORD_BASE:
            return bytes([token])
        return b"" if token == _END else b" " + _WORDS[token - _WORD_BASE].encode()

    def is_end(self, token: int) -> bool:
        """This token ends the text."""
        return token == _END


def _render(messages: Sequence[Mapping[str, Any]]) -> tuple[bytes, int]:
    pairs = [[message["role"], message["content"]] for message in messages]
    prompt = json.dumps(pairs).encode()
    return prompt, _prompt_tokens(prompt)


def _prompt_tokens(prompt: bytes) -> int:
    return -(-len(prompt) // 4)


class ScriptedSequence:
    """Decoding is a hash; sampling reads it."""

    def __init__(self, model: ScriptedModel, generation: Generation, prompt: bytes) -> None:
        self._model = model
        self._prompt = prompt
        self._interrupted = threading.Event()
        self.prompt_tokens = _prompt_tokens(prompt)
        self.prompt_digest = _hash(prompt).hex()
        chosen = f"{generation.seed} {generation.temperature!r} {generation.top_p!r}"
        self._base = _hash(prompt, chosen.encode())
        self._prefilled = 0
        self._rolling = self._base
        self._count = 0
        self._rest = b""

    def prefill(self) -> bool:
        """Takes the next chunk of the prompt."""
        self._wait(self._model.prefill_ms)
        self._prefilled = min(self._prefilled + PREFILL_CHUNK_TOKENS, self.prompt_tokens)
        return self._prefilled < self.prompt_tokens

    def decode(self, token: int) -> None:
        """Takes one token."""
        assert self._prefilled == self.prompt_tokens
        self._wait(self._model.token_ms)
        self._take(token)

    def sample(self) -> int:
        """The next token, from the rolling hash."""
        assert self._prefilled == self.prompt_tokens
        if self._count == SWITCH_TOKEN:
            self._act_on_switch()
        if self._rest:
            return self._rest[0]
        tokens_left = self._model.natural_tokens - self._count
        if tokens_left <= 0:
            return _END
        choice = int.from_bytes(self._rolling[:4], "little")
        bytewise = _BYTEWISE[choice % len(_BYTEWISE)]
        if self._rolling[4] < 64 and len(bytewise) <= tokens_left:  # noqa: PLR2004 - every fourth word or so
            return bytewise[0]
        return _WORD_BASE + choice % len(_WORDS)

    def accept(self, token: int) -> None:
        """There is no sampler to tell."""

    def save_state(self) -> bytes:
        """What decoding left, and whose it is."""
        return _STATE.pack(self._base, self._rolling, self._count, len(self._rest), self._rest)

    def restore_state(self, state: bytes | memoryview, tokens: Sequence[int]) -> None:
        """Raises EngineError unless exactly this prompt and these tokens leave exactly this state."""
        self._prefilled = self.prompt_tokens
        for token in tokens:
            self._take(token)
        if bytes(state) != self.save_state():
            self._prefilled, self._rolling, self._count, self._rest = 0, self._base, 0, b""
            raise EngineError("The state does not belong to these tokens.")

    def state_bytes(self) -> int:
        """Always the same."""
        return _STATE.size

    def interrupt(self) -> None:
        """Ends a wait."""
        self._interrupted.set()

    def close(self) -> None:
        """Nothing is held."""

    def _take(self, token: int) -> None:
        self._rolling = _hash(self._rolling, struct.pack("<q", token))
        self._count += 1
        if self._rest:
            self._rest = self._rest[1:]
        else:
            self._rest = next((text[1:] for text in _BYTEWISE if text[0] == token), b"")

    def _wait(self, milliseconds: float) -> None:
        if self._interrupted.wait(milliseconds / 1000) if milliseconds else self._interrupted.is_set():
            raise Interrupted

    def _act_on_switch(self) -> None:
        if b"[[crash]]" in self._prompt:
            os.abort()
        if b"[[stall]]" in self._prompt:
            threading.Event().wait()
