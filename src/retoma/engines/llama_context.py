"""One context of llama.cpp with its sequences, in the settings under which a text is exact.

They were found in an experiment that killed generations and compared token ids. Full attention: flash attention off,
the cache in f16, one cache per sequence (`kv_unified` off), the prompt in fixed chunks of 256 from position 0, one
sequence per call; then a restored state and committed tokens decoded one by one continue bit by bit (64 of 64 texts,
192 kills), while prompt and committed tokens in one batch never did. A sliding window: flash attention on, the cache
in q8_0, the whole window kept (18 of 18; other settings 1 to 12 of 18). Whether it holds for a model on a machine is
tested when it is first loaded.
"""

from __future__ import annotations

import ctypes as c
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retoma.engines.contract import Interrupted
from retoma.engines.llama_api import ABORTED, LlamaApi
from retoma.engines.llama_layout import Batch
from retoma.errors import EngineError, ModelUnavailable
from retoma.limits import PREFILL_CHUNK_TOKENS

_F16, _Q8_0 = 1, 8
_FLASH_ATTENTION_OFF, _FLASH_ATTENTION_ON = 0, 1


@dataclass(frozen=True, slots=True)
class Profile:
    """What was found to continue bit by bit: measured, not reasoned."""

    flash_attention: int
    kv_type: int

    @classmethod
    def of(cls, window: int) -> Profile:
        """`window`: tokens of the sliding window, 0 for full attention."""
        return cls(_FLASH_ATTENTION_ON, _Q8_0) if window else cls(_FLASH_ATTENTION_OFF, _F16)


class Context:
    """Room for some sequences, each with its own positions from 0 on. Used by one thread."""

    def __init__(self, api: LlamaApi, model: int, *, tokens: int, sequences: int, threads: int) -> None:
        """`tokens`: for each sequence. Raises ModelUnavailable when there is not enough memory."""
        profile = Profile.of(api.window(model))
        params = api.context_params()
        params.n_ctx = tokens * sequences
        params.n_seq_max = sequences
        params.n_batch = params.n_ubatch = PREFILL_CHUNK_TOKENS
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = profile.flash_attention
        params.type_k = params.type_v = profile.kv_type
        params.kv_unified = False
        params.swa_full = True
        handle = api.init_context(model, params)
        if handle is None:
            raise ModelUnavailable(
                f"There is not enough memory for {sequences} × {tokens} tokens of context: {api.last_error}."
            )
        self._api = api
        self._handle = handle
        self._vocabulary_size = api.vocabulary_size(api.vocabulary(model))
        self._batch = _Batch()
        self._interrupted: threading.Event | None = None
        self._callback = api.on_abort(handle, self._is_interrupted)

    def decode(
        self, sequence: int, tokens: Sequence[int], position: int, interrupted: threading.Event | None = None
    ) -> NDArray[np.float32]:
        """Decodes `tokens` of one sequence from `position` on; the logits after the last. May raise Interrupted."""
        return self.decode_rows(
            [(sequence, token, position + index) for index, token in enumerate(tokens)], interrupted
        )[0]

    def decode_rows(
        self, rows: Sequence[tuple[int, int, int]], interrupted: threading.Event | None = None, wanted: int = 1
    ) -> list[NDArray[np.float32]]:
        """Decodes (sequence, token, position) in one batch; the logits after the `wanted` last rows."""
        self._batch.fill(rows, wanted)
        self._interrupted = interrupted
        result = self._api.decode(self._handle, self._batch.struct)
        if result == ABORTED:
            raise Interrupted
        if result != 0:
            raise EngineError(f"llama.cpp could not decode (result {result}): {self._api.last_error}.")
        return [self._logits(index) for index in range(len(rows) - wanted, len(rows))]

    def _logits(self, index: int) -> NDArray[np.float32]:
        address = self._api.logits(self._handle, index)
        floats = c.cast(address, c.POINTER(c.c_float))
        return np.ctypeslib.as_array(floats, (self._vocabulary_size,)).copy()

    def _is_interrupted(self) -> bool:
        return self._interrupted is not None and self._interrupted.is_set()

    def save(self, sequence: int) -> memoryview:
        """Everything that decoding left behind for a sequence."""
        return self._api.save_state(self._handle, sequence)

    def restore(self, sequence: int, state: bytes | memoryview) -> None:
        """Raises EngineError if llama.cpp refuses; the sequence is then empty."""
        if not self._api.restore_state(self._handle, sequence, state):
            self.clear(sequence)
            raise EngineError("llama.cpp refused the state.")

    def state_bytes(self, sequence: int) -> int:
        """Size of `save`."""
        return self._api.state_size(self._handle, sequence)

    def clear(self, sequence: int) -> None:
        """Forgets a sequence."""
        self._api.remove(self._handle, sequence)

    def set_threads(self, threads: int) -> None:
        """For the decodes that follow."""
        self._api.set_threads(self._handle, threads)

    def close(self) -> None:
        """Frees the memory."""
        self._api.free_context(self._handle)


class _Batch:
    """A llama_batch over arrays of its own, filled anew for each decode."""

    def __init__(self) -> None:
        size = PREFILL_CHUNK_TOKENS
        self._token = np.zeros(size, np.int32)
        self._position = np.zeros(size, np.int32)
        self._sequence = np.zeros(size, np.int32)
        self._sequences_each = np.ones(size, np.int32)
        # An entry belongs to a list of sequences; here each list is one element of `_sequence`.
        self._lists = self._sequence.ctypes.data + 4 * np.arange(size, dtype=np.uintp)
        self._wants_logits = np.zeros(size, np.int8)
        self.struct = Batch(
            0,
            self._token.ctypes.data,
            None,
            self._position.ctypes.data,
            self._sequences_each.ctypes.data,
            self._lists.ctypes.data,
            self._wants_logits.ctypes.data,
        )

    def fill(self, rows: Sequence[tuple[int, int, int]], wanted: int) -> None:
        count = len(rows)
        assert wanted <= count <= PREFILL_CHUNK_TOKENS, (wanted, count)  # llama.cpp would end the process
        self._sequence[:count], self._token[:count], self._position[:count] = np.array(rows, np.int32).T
        self._wants_logits[:count] = 0
        self._wants_logits[count - wanted : count] = 1
        self.struct.n_tokens = count
