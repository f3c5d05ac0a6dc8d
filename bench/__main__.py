"""Runs every measurement, or those named: `make bench ARGS="generation latency"`."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from typing import Any

from bench import accepting, generating

MEASUREMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "generation": generating.overhead,
    "resume": generating.resume,
    "latency": accepting.latency_while_busy,
    "accept": accepting.throughput,
    "memory": accepting.idle_memory,
}


def main() -> None:
    """One JSON line per measurement."""
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("names", nargs="*", choices=[*MEASUREMENTS, []], default=[])
    names = parser.parse_args().names or list(MEASUREMENTS)
    machine = {"processors": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    print(json.dumps(machine), flush=True)
    for name in names:
        print(json.dumps({name: MEASUREMENTS[name]()}), flush=True)


if __name__ == "__main__":
    main()
