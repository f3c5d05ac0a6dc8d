"""What all engines do alike with the messages of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from retoma.errors import PromptTooLong

INSTRUCTIONS = frozenset({"system", "developer"})

Prompt = TypeVar("Prompt")


def fit(
    messages: Sequence[Mapping[str, Any]],
    truncation: str,
    context_tokens: int,
    make: Callable[[Sequence[Mapping[str, Any]]], tuple[Prompt, int]],
) -> Prompt:
    """The prompt that `make` builds (with its length in tokens) of all messages, or with `auto` of the newest that fit.

    Instructions and the newest message are never dropped. One place in the context is kept for the answer. Raises
    PromptTooLong.
    """
    kept = list(messages)
    while True:
        prompt, tokens = make(kept)
        if tokens < context_tokens:
            return prompt
        oldest = next((i for i, message in enumerate(kept[:-1]) if message["role"] not in INSTRUCTIONS), None)
        if truncation != "auto" or oldest is None:
            raise PromptTooLong(
                f"The prompt has {tokens} tokens; with room for an answer the context holds "
                f"{context_tokens - 1}. Shorten the input or send `truncation: auto`."
            )
        del kept[oldest]
