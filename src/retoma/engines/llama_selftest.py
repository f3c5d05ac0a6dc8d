"""Does this model, with this library on this processor, continue bit by bit? Found out instead of believed.

At two depths, one inside the first chunk of prompt and one past it: decode some tokens, save, decode on; restore the
state into another sequence, decode the same tokens there, and compare all logits bit by bit. Then the same with a
neighbour in the batch, and with another number of threads. About 350 tokens, most of them prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from retoma.engines.llama_context import Context
from retoma.limits import PREFILL_CHUNK_TOKENS

CONTEXT_TOKENS = 512
_DEPTHS = (24, PREFILL_CHUNK_TOKENS + 24)
_BEFORE, _AFTER = 2, 5
# More threads than free processors spin against each other, so that a token may take a second: these have to do.
_WITH_OTHER_THREADS = 1
Logits = list[NDArray[np.float32]]


def examine(context: Context, vocabulary: Sequence[int], threads: int, alive: Callable[[], None]) -> dict[str, bool]:
    """`exact_restore`, `batch_invariant`, `thread_invariant`; `context` needs two empty sequences of CONTEXT_TOKENS."""
    flags = {"exact_restore": True, "batch_invariant": True, "thread_invariant": True}
    for depth in _DEPTHS:
        tokens = [vocabulary[i % len(vocabulary)] for i in range(depth + _BEFORE + _AFTER)]
        found = _examine_at(context, tokens, depth, threads, alive)
        flags = {name: flags[name] and found[name] for name in flags}
    return flags


def _examine_at(
    context: Context, tokens: list[int], depth: int, threads: int, alive: Callable[[], None]
) -> dict[str, bool]:
    """`tokens` are the prompt of length `depth` and what follows it."""
    saved_at = depth + _BEFORE
    for start in range(0, depth, PREFILL_CHUNK_TOKENS):
        context.decode(0, tokens[start : min(start + PREFILL_CHUNK_TOKENS, depth)], start)
        alive()
    _one_by_one(context, 0, tokens, depth, saved_at)
    state = bytes(context.save(0))
    expected = _one_by_one(context, 0, tokens, saved_at, len(tokens))
    context.restore(1, state)
    restored = _same(expected, _one_by_one(context, 1, tokens, saved_at, len(tokens)))
    alive()
    context.restore(0, state)
    context.restore(1, state)
    together = [
        context.decode_rows([(1, tokens[-1], at), (0, tokens[at], at)])[0] for at in range(saved_at, len(tokens))
    ]
    alive()
    context.set_threads(1 if threads > 1 else 2)
    context.restore(0, state)
    other_threads = _one_by_one(context, 0, tokens, saved_at, saved_at + _WITH_OTHER_THREADS)
    context.set_threads(threads)
    context.clear(0)
    context.clear(1)
    alive()
    return {
        "exact_restore": restored,
        "batch_invariant": _same(expected, together),
        "thread_invariant": _same(expected[:_WITH_OTHER_THREADS], other_threads),
    }


def _one_by_one(context: Context, sequence: int, tokens: list[int], start: int, end: int) -> Logits:
    return [context.decode(sequence, [tokens[at]], at) for at in range(start, end)]


def _same(one: Logits, other: Logits) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))
