"""The engine alone, in a process of its own: no service, no store, no pipe. What the service is compared with."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from retoma.engines.contract import EngineOptions, Generation
from retoma.engines.llama import load


def main() -> None:
    """Prints one JSON object: tokens, seconds of decoding, seconds of the prompt."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prompt", required=True)
    arguments = parser.parse_args()
    model = load(
        EngineOptions(
            model="bench",
            path=arguments.model,
            digest="0" * 64,
            context_tokens=4096,
            sequences=2,
            threads=arguments.threads,
        )
    )
    messages = [{"role": "user", "content": arguments.prompt}]
    sequence = model.open(Generation(messages, arguments.tokens, 0.0, 1.0, 1))
    began = time.perf_counter()
    while sequence.prefill():
        pass
    prefilled = time.perf_counter()
    for _ in range(arguments.tokens):
        token = sequence.sample()
        sequence.accept(token)
        sequence.decode(token)
    ended = time.perf_counter()
    print(json.dumps({"tokens": arguments.tokens, "decode_s": ended - prefilled, "prompt_s": prefilled - began}))


if __name__ == "__main__":
    main()
