"""`python -m tests.support.replay FOLDER`: does what failed again, from the evidence that it left (`make replay`).

The same test by the same seed, under the same switches. Where the evidence has an image and the test takes it, that
very image is looked at again. Exit status: that of the test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support import evidence


def environment(record: dict[str, Any], folder: Path) -> dict[str, str]:
    """As it was, but for the database server: a URL is written down without its password."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RETOMA_")}
    switches = {name: value for name, value in record["switches"].items() if name != evidence.POSTGRES}
    here = {name: os.environ[name] for name in (evidence.POSTGRES, evidence.PLACE) if name in os.environ}
    fixed = {"RETOMA_TEST_SEED": str(record["seed"]), evidence.REPLAY: str(folder)}
    path = os.pathsep.join(filter(None, [str(evidence.ROOT / "src"), os.environ.get("PYTHONPATH")]))
    return {**kept, **switches, **here, **fixed, "PYTHONPATH": path}


def replay(folder: Path) -> int:
    """The status of what was done again."""
    try:
        record = json.loads((folder / evidence.RECORD).read_text())
    except FileNotFoundError:
        sys.stderr.write(f"{folder} has no {evidence.RECORD}; say which: make replay FROM=evidence/NAME\n")
        return 2
    print(f"again: {record['what']}\nseed {record['seed']}; it failed with: {record['failed']}", flush=True)  # noqa: T201
    command = [sys.executable, "-m", *record["command"]]
    status = subprocess.run(command, cwd=evidence.ROOT, env=environment(record, folder), check=False).returncode
    if status == 0:
        print("it does not fail any more")  # noqa: T201
    return status


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("say which: make replay FROM=evidence/NAME")
    sys.exit(replay(Path(sys.argv[1]).resolve()))
