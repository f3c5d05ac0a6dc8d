"""Which token comes next: a pure function of the logits, the parameters, the seed and the position.

There is no generator of random numbers whose state would have to be saved. The number for a position is a hash of the
seed and the position, and candidates are taken in an order that the logits alone decide (larger first, then the lower
id), so nothing depends on how a partial sort happens to leave them.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from retoma.errors import EngineError

_NUCLEUS_DEPTHS = (4.0, 12.0, 40.0, np.inf)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that belongs to this position of the text."""
    digest = blake2b(f"{seed} {position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


@dataclass(frozen=True, slots=True)
class Sampler:
    """The parameters of one text."""

    temperature: float
    top_p: float
    seed: int

    def pick(self, logits: NDArray[np.float32], position: int) -> int:
        """The token for `position`; raises EngineError when no token is possible."""
        best = int(np.argmax(logits))  # the first of equals, so the lowest id
        highest = float(logits[best])
        if not np.isfinite(highest):
            raise EngineError("The model gave no usable probabilities; its file or its parameters are wrong.")
        if self.temperature <= 0:
            return best
        scaled = (logits.astype(np.float64) - highest) / self.temperature
        weights = np.exp(scaled)
        tokens = np.arange(len(weights)) if self.top_p >= 1 else self._nucleus(scaled, weights)
        cumulative: NDArray[np.float64] = np.cumsum(weights[tokens])
        target = uniform(self.seed, position) * float(cumulative[-1])
        index = int(np.searchsorted(cumulative, target, side="right"))
        return int(tokens[min(index, len(tokens) - 1)])

    def _nucleus(self, scaled: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.intp]:
        """The fewest most probable tokens whose share reaches top_p; at least one.

        Sorting a whole vocabulary costs as much as decoding a token of a small model, so only as many as are needed are
        sorted: those that are near enough to the best one.
        """
        wanted = self.top_p * float(np.sum(weights))
        tokens = np.arange(0)
        for depth in _NUCLEUS_DEPTHS:
            tokens = np.flatnonzero(scaled >= -depth)
            if float(np.sum(weights[tokens])) >= wanted:
                break
        order = tokens[np.lexsort((tokens, -scaled[tokens]))]
        count = int(np.searchsorted(np.cumsum(weights[order]), wanted)) + 1
        return order[:count]
