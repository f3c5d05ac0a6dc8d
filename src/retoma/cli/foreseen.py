"""What `retoma store prune` would do now, found out by reading alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from retoma.blobs.snapshots import SnapshotFolder
from retoma.cli.looked_at import Read
from retoma.limits import PRUNE_BATCH_MAX
from retoma.runtime.retention import Windows
from retoma.transactions.prune import (
    ExpiredKey,
    Place,
    StaleSnapshot,
    Window,
    find_expired,
    find_expired_keys,
    find_stale_snapshots,
    read_newest_finished,
    read_weight,
)

KINDS = ("stored", "unstored", "keys", "snapshots")


@dataclass(slots=True)
class Tally:
    """How much of one kind would go, and how much stays beyond its time because of a valid key.

    `oldest` and `newest` are the ids of the tasks.
    """

    count: int = 0
    events: int = 0
    bytes: int = 0
    files: int = 0
    kept_by_key: int = 0
    oldest: str | None = None
    newest: str | None = None

    def add(self, task_id: str, *, events: int = 0, size_bytes: int = 0, files: int = 0) -> None:
        """One more; they come oldest first."""
        self.count += 1
        self.events += events
        self.bytes += size_bytes
        self.files += files
        self.oldest, self.newest = self.oldest or task_id, task_id


@dataclass(slots=True)
class Foreseen:
    """All kinds, and when the last task in the store ended."""

    newest_ms: int | None
    kinds: dict[str, Tally] = field(default_factory=lambda: {kind: Tally() for kind in KINDS})


def foresee(read: Read, windows: Windows, snapshots: SnapshotFolder, now_ms: int) -> Foreseen:
    """Goes through the same pages as the deletion, and deletes nothing."""
    found = Foreseen(read(read_newest_finished))
    folders = set(snapshots.tasks())
    for window in windows.of_tasks(now_ms):
        for task_id in _expired(read, window, found.kinds[window.retention]):
            weight = read(partial(read_weight, task_id=task_id))
            files = len(snapshots.files(task_id)) if task_id in folders else 0
            found.kinds[window.retention].add(task_id, events=weight.events, size_bytes=weight.size_bytes, files=files)
    for key in _expired_keys(read, now_ms):
        found.kinds["keys"].add(key.task_id)
    before_ms = windows.of_snapshots(now_ms)
    if before_ms is not None:
        for snapshot in _stale_snapshots(read, before_ms):
            here = snapshots.absolute(snapshot.path).exists()
            found.kinds["snapshots"].add(snapshot.task_id, size_bytes=snapshot.size_bytes, files=int(here))
    return found


def _expired(read: Read, window: Window, tally: Tally) -> Iterator[str]:
    after: Place | None = Place()
    while after is not None:
        page = read(partial(find_expired, window=window, after=after))
        tally.kept_by_key += page.kept
        yield from page.task_ids
        after = page.next_after


def _expired_keys(read: Read, now_ms: int) -> Iterator[ExpiredKey]:
    after: ExpiredKey | None = ExpiredKey()
    while after is not None:
        page = read(partial(find_expired_keys, now_ms=now_ms, after=after))
        yield from page.keys
        after = page.next_after


def _stale_snapshots(read: Read, before_ms: int) -> Iterator[StaleSnapshot]:
    after = ""
    look = partial(find_stale_snapshots, before_ms=before_ms, limit=PRUNE_BATCH_MAX)
    while found := read(partial(look, after_path=after)):
        yield from found
        after = found[-1].path
