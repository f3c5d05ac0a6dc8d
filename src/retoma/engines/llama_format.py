"""Keeps a text inside a JSON schema, by masking every token that would leave it (llguidance).

The state of the grammar follows from the accepted tokens alone; after a crash it is rebuilt by accepting them again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import llguidance
import numpy as np
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray

from retoma.engines.llama_api import LlamaApi
from retoma.errors import EngineError

_SPECIAL = b"\xff"  # what llguidance takes as: not text


class Vocabulary:
    """A model's tokens in llguidance's form; costs about a second to build, so it is built once, when first needed."""

    def __init__(self, api: LlamaApi, vocabulary: int) -> None:
        self.size = api.vocabulary_size(vocabulary)
        self.eos_token_id = api.last_token(vocabulary)
        self.bos_token_id = None
        self.special_token_ids = [token for token in range(self.size) if api.is_control(vocabulary, token)]
        special = set(self.special_token_ids)
        self.tokens = [
            (_SPECIAL if token in special else b"") + api.piece(vocabulary, token, special=True)
            for token in range(self.size)
        ]
        self._api, self._vocabulary = api, vocabulary
        self.tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(self), n_vocab=self.size)

    def __call__(self, text: bytes | str) -> list[int]:
        """Tokenises; asked by llguidance."""
        plain = text if isinstance(text, str) else text.decode("utf-8", "replace")
        return self._api.tokenize(self._vocabulary, plain, parse_special=False)


class Constraint:
    """The grammar of one text."""

    def __init__(self, vocabulary: Vocabulary, wanted: Mapping[str, Any]) -> None:
        """`wanted`: `Generation.format`. Raises EngineError for a schema that llguidance does not take."""
        schema = wanted["schema"] if wanted["type"] == "json_schema" else {"type": "object"}
        try:
            grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        except ValueError as error:
            raise EngineError(f"The JSON schema can't be used: {error}.") from error
        self._matcher = llguidance.LLMatcher(vocabulary.tokenizer, grammar)
        self._mask = allocate_token_bitmask(1, vocabulary.size)
        self._check("The JSON schema can't be used")

    def apply(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The logits with every impossible token at minus infinity."""
        fill_next_token_bitmask(self._matcher, self._mask)
        self._check("The text can't be kept in its JSON schema")
        allowed = np.unpackbits(self._mask.view(np.uint8), bitorder="little")[: len(logits)]
        return np.where(allowed, logits, np.float32(-np.inf))

    def accept(self, token: int) -> None:
        """Moves on; raises EngineError for a token outside of the grammar."""
        self._matcher.consume_token(token)
        self._check("A token lies outside of the JSON schema")

    def _check(self, what: str) -> None:
        if self._matcher.is_error():
            raise EngineError(f"{what}: {self._matcher.get_error()}.")
