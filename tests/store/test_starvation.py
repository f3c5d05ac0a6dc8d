"""Several processes that write as fast as they can: each gets its share (I12).

SQLite's own `busy_timeout` waits longer and longer between its tries, so that whoever has waited long waits longest.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import processes
from tests.support.stores import new_file

PROCESSES = 3
COMMITS = 900


@pytest.mark.requirement("S-002")
@pytest.mark.timeout(120)
def test_three_saturating_processes_all_make_progress(tmp_path: Path) -> None:
    path = new_file(tmp_path)
    running = [
        processes.python("tests.support.saturate", str(path), str(space), str(COMMITS))
        for space in range(1, PROCESSES + 1)
    ]
    for process in running:
        assert processes.line(process) == "ready"
    for process in running:
        processes.tell(process, "go")
    shares = [int(processes.line(process)) for process in running]
    assert [processes.end(process) for process in running] == [0] * PROCESSES
    assert sum(shares) >= COMMITS
    assert min(shares) >= COMMITS // PROCESSES // 5, f"the shares of {sum(shares)} commits: {shares}"
