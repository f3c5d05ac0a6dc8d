"""A real service in its own process, for the benchmarks."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

_START_S = 60.0


@dataclass(frozen=True)
class Service:
    """Where it runs and how it is called."""

    client: httpx.Client
    data_dir: Path
    pid: int

    def create(self, **fields: Any) -> dict[str, Any]:
        """POST /v1/responses; the Response."""
        reply = self.client.post("/v1/responses", json=fields)
        reply.raise_for_status()
        return reply.json()

    def resident_kib(self) -> int:
        """Memory of the service's process, without its engines."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1])
        raise RuntimeError("no VmRSS")


@contextmanager
def running(settings: Mapping[str, str], model: Path | None = None) -> Generator[Service]:
    """Starts a service on a fresh data directory and ends it."""
    with tempfile.TemporaryDirectory(prefix="retoma-bench-") as folder:
        data_dir = Path(folder)
        ready = data_dir / "ready"
        environment = {**os.environ, **{f"RETOMA_{name}": value for name, value in settings.items()}}
        retoma = [sys.executable, "-m", "retoma"]
        if model is not None:
            subprocess.run(
                [*retoma, "models", "add", str(model), "--name", "bench", "--data-dir", folder],
                env=environment,
                check=True,
                capture_output=True,
            )
        command = [*retoma, "serve", "--data-dir", folder, "--port", "0", "--ready-file", str(ready)]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            url = _wait(ready, process)
            token = (data_dir / "admin.token").read_text().strip()
            headers = {"Authorization": f"Bearer {token}"}
            with httpx.Client(base_url=url, headers=headers, timeout=600) as client:
                yield Service(client, data_dir, process.pid)
        finally:
            process.terminate()
            process.wait(30)


def _wait(ready: Path, process: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        if ready.exists():
            return ready.read_text().strip()
        time.sleep(0.01)
    raise RuntimeError("the service did not start")
