"""The offline checker, run on a data directory after a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.service import environment


def assert_store_is_sound(data_dir: Path) -> None:
    """`retoma store check` finds nothing."""
    command = [sys.executable, "-P", "-m", "retoma", "store", "check", "--data-dir", str(data_dir)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
