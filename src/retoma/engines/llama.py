"""The engine `llama`: GGUF models in llama.cpp, in settings under which a text continues bit by bit.

The settings and what they rest on are in `llama_context.py`. One sequence per decode, the prompt always in the same
chunks from position 0 on, every token of the answer alone; so a text's bits depend on nothing but itself.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retoma.engines import llama_selftest
from retoma.engines.contract import EngineOptions, Generation, ModelFacts
from retoma.engines.llama_api import LlamaApi
from retoma.engines.llama_context import Context, Profile
from retoma.engines.llama_format import Constraint, Vocabulary
from retoma.engines.llama_prompt import ChatTemplate
from retoma.engines.llama_sampler import Sampler
from retoma.engines.prompt import fit
from retoma.errors import ModelCorrupt, ModelUnavailable
from retoma.limits import PREFILL_CHUNK_TOKENS

_MAGIC = b"GGUF"
_ALIVE_EVERY_S = 0.4
_CONTEXT_TOKENS_MAX = 8192
"""What a model gets that was made for more, unless the setting asks for it: memory is taken for the whole context."""
_SELFTEST_TEXT = (
    "The keeper of the lighthouse wrote down every wave, and in the morning he read what he had written. " * 2
)


def load(options: EngineOptions) -> LlamaModel:
    """Loads a GGUF file; raises ModelUnavailable or ModelCorrupt."""
    path = _checked(options.path)
    api = LlamaApi(options.library)
    return LlamaModel(api, _load_weights(api, path, options), path, options)


def _checked(path: Path | None) -> Path:
    """A file that begins like a GGUF file; whether it is whole, llama.cpp finds out."""
    if path is None or not path.is_file():
        raise ModelUnavailable(f"The model's file {path} is not there; add the model again with `retoma models add`.")
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise ModelUnavailable(f"The model's file {path} can't be read: {error.strerror}.") from error
    if magic != _MAGIC:
        raise ModelCorrupt(f"The model's file {path} is not a GGUF file.")
    return path


def _load_weights(api: LlamaApi, path: Path, options: EngineOptions) -> int:
    params = api.model_params()
    params.n_gpu_layers = 0
    params.use_extra_bufts = bool(options.settings.get("extra_buffers", True))
    model = api.load_model(path, params, _seldom(options.alive))
    if model is None:
        raise ModelCorrupt(f"llama.cpp can't load the model's file {path}: {api.last_error or 'no reason given'}.")
    return model


def _seldom(alive: Callable[[], None]) -> Callable[[], None]:
    """Lets a call through every now and then; llama.cpp reports progress for every tensor."""
    last_s = time.monotonic()

    def call() -> None:
        nonlocal last_s
        if time.monotonic() - last_s >= _ALIVE_EVERY_S:
            last_s = time.monotonic()
            alive()

    return call


class LlamaModel:
    """A model in memory, with one context for all its texts."""

    def __init__(self, api: LlamaApi, model: int, path: Path, options: EngineOptions) -> None:
        self._api = api
        self.vocabulary = api.vocabulary(model)
        trained = api.trained_context(model)
        self._context_tokens = min(options.context_tokens or _CONTEXT_TOKENS_MAX, trained)
        self.context = Context(
            api, model, tokens=_padded(self._context_tokens), sequences=options.sequences, threads=options.threads
        )
        self._free = list(reversed(range(options.sequences)))
        self._bos = api.first_token(self.vocabulary) if api.adds_first_token(self.vocabulary) else -1
        self._template = ChatTemplate(
            api.chat_template(model),
            self._token_text(api.first_token(self.vocabulary)),
            self._token_text(api.last_token(self.vocabulary)),
        )
        self._grammar_vocabulary: Vocabulary | None = None
        self.facts = self._find_facts(model, path, options)

    def _token_text(self, token: int) -> str:
        return "" if token < 0 else self._api.piece(self.vocabulary, token, special=True).decode("utf-8", "replace")

    def _find_facts(self, model: int, path: Path, options: EngineOptions) -> ModelFacts:
        base = _fingerprint(self._api, model, path, options)
        flags = dict(options.flags or {})
        if not flags or options.flags_fingerprint != _with_threads(base, flags, options.threads):
            flags = self._examine(model, options)
        return ModelFacts(
            context_tokens=self._context_tokens,
            fingerprint=_with_threads(base, flags, options.threads),
            exact_restore=flags["exact_restore"],
            batch_invariant=flags["batch_invariant"],
            thread_invariant=flags["thread_invariant"],
            description={
                "model": self._api.description(model),
                "trained_context_tokens": self._api.trained_context(model),
                "vocabulary": self._api.vocabulary_size(self.vocabulary),
                "library": self._api.path.name,
            },
        )

    def _examine(self, model: int, options: EngineOptions) -> dict[str, bool]:
        context = Context(self._api, model, tokens=llama_selftest.CONTEXT_TOKENS, sequences=2, threads=options.threads)
        try:
            tokens = self._tokenize(_SELFTEST_TEXT, False)
            return llama_selftest.examine(context, tokens, options.threads, options.alive)
        finally:
            context.close()

    def open(self, generation: Generation) -> LlamaSequence:
        """Begins a text; raises PromptTooLong, or EngineError for messages or a schema that can't be used."""
        prompt = fit(generation.messages, generation.truncation, self._context_tokens, self._prompt)
        constraint = None
        if generation.format is not None and generation.format["type"] != "text":
            self._grammar_vocabulary = self._grammar_vocabulary or Vocabulary(self._api, self.vocabulary)
            constraint = Constraint(self._grammar_vocabulary, generation.format)
        assert self._free, "more texts at once than sequences"
        return LlamaSequence(self.context, self._free, prompt, _sampler(generation), constraint)

    def _prompt(self, messages: Sequence[Mapping[str, Any]]) -> tuple[list[int], int]:
        tokens = self._template.tokens(messages, self._tokenize)
        if self._bos >= 0 and tokens[:1] != [self._bos]:  # many templates write it themselves
            tokens.insert(0, self._bos)
        return tokens, len(tokens)

    def _tokenize(self, text: str, parse_special: bool) -> list[int]:  # noqa: FBT001 - the form that Tokenize has
        return self._api.tokenize(self.vocabulary, text, parse_special=parse_special)

    def piece(self, token: int) -> bytes:
        """The bytes of a token; none for a control token."""
        return self._api.piece(self.vocabulary, token)

    def is_end(self, token: int) -> bool:
        """End of text or of turn."""
        return self._api.is_end(self.vocabulary, token)


class LlamaSequence:
    """One text in the shared context."""

    def __init__(
        self, context: Context, free: list[int], prompt: list[int], sampler: Sampler, constraint: Constraint | None
    ) -> None:
        """Takes a place out of `free` and gives it back in `close`."""
        self._context = context
        self._free = free
        self._id = free.pop()
        self._prompt = prompt
        self._sampler = sampler
        self._constraint = constraint
        self._interrupted = threading.Event()
        self._position = 0
        self._logits: NDArray[np.float32] | None = None
        self.prompt_tokens = len(prompt)
        self.prompt_digest = blake2b(np.array(prompt, np.int64).tobytes(), digest_size=16).hexdigest()

    def prefill(self) -> bool:
        """Decodes the next chunk of the prompt; raises Interrupted."""
        end = min(self._position + PREFILL_CHUNK_TOKENS, self.prompt_tokens)
        self._decode(self._prompt[self._position : end])
        return self._position < self.prompt_tokens

    def decode(self, token: int) -> None:
        """Decodes one token of the answer; raises Interrupted."""
        assert self._position >= self.prompt_tokens
        self._decode([token])

    def _decode(self, tokens: list[int]) -> None:
        self._logits = None
        self._logits = self._context.decode(self._id, tokens, self._position, self._interrupted)
        self._position += len(tokens)

    def sample(self) -> int:
        """Picks from the logits of the newest token."""
        assert self._logits is not None
        assert self._position >= self.prompt_tokens
        logits = self._logits if self._constraint is None else self._constraint.apply(self._logits)
        return self._sampler.pick(logits, self._position)

    def accept(self, token: int) -> None:
        """Moves the grammar on."""
        if self._constraint is not None:
            self._constraint.accept(token)

    def save_state(self) -> memoryview:
        """llama.cpp's state of this sequence."""
        return self._context.save(self._id)

    def restore_state(self, state: bytes | memoryview, tokens: Sequence[int]) -> None:
        """llama.cpp checks nothing: whoever calls has proved that the state belongs to these tokens."""
        self._context.restore(self._id, state)
        self._position = self.prompt_tokens + len(tokens)
        self._logits = None

    def state_bytes(self) -> int:
        """Grows with every token."""
        return self._context.state_bytes(self._id)

    def interrupt(self) -> None:
        """Ends a running decode within milliseconds."""
        self._interrupted.set()

    def close(self) -> None:
        """Frees the place; more than once does no harm."""
        if self._id >= 0:
            self._context.clear(self._id)
            self._free.append(self._id)
            self._id = -1


def _sampler(generation: Generation) -> Sampler:
    return Sampler(generation.temperature, generation.top_p, generation.seed)


def _padded(tokens: int) -> int:
    """llama.cpp rounds a sequence's share up to this by itself, or down when it divides."""
    return -(-tokens // 256) * 256


def _fingerprint(api: LlamaApi, model: int, path: Path, options: EngineOptions) -> str:
    """Everything that may change a bit, except the number of threads."""
    profile = Profile.of(api.window(model))
    parts = [
        _file_digest(api.path),
        api.system_info(),
        _processor(),
        np.__version__,
        options.digest or _file_digest(path),
        [profile.flash_attention, profile.kv_type, PREFILL_CHUNK_TOKENS, options.settings.get("extra_buffers", True)],
    ]
    return blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _with_threads(base: str, flags: Mapping[str, bool], threads: int) -> str:
    return base if flags["thread_invariant"] else f"{base}-{threads}"


def _file_digest(path: Path) -> str:
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _processor() -> str:
    """Model and abilities of the processor: another one may take other paths through the same library."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    wanted = ("model name", "flags", "Features")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))
