"""`python -m tests.support.saturate FILE SPACE TOTAL`: commits as fast as it can until all processes have TOTAL tasks.

Says `ready`, begins at `go`, and says how many of the commits were its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

from retoma.store.sqlite import SqliteStore
from retoma.transactions.read import count_states
from tests.support.clock import ManualClock, SequentialIds
from tests.support.world import World

_LOOK_EVERY = 5


def saturate(path: Path, space: int, total: int) -> int:
    store = SqliteStore(path)
    world = World(store, ManualClock(), SequentialIds(space), f"instance-{space}")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    own = 0
    while store.read(count_states).get("queued", 0) < total:
        for _ in range(_LOOK_EVERY):
            world.accept()
            own += 1
    store.close()
    return own


if __name__ == "__main__":
    sys.stdout.write(f"{saturate(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))}\n")
