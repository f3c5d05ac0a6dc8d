"""What is wrong with the files that a crash left behind, made a moment ago or kept as evidence."""

from __future__ import annotations

from pathlib import Path

from tests.faults.flow import look
from tests.support import evidence
from tests.support.evidence import Image


def wrong_with(image: Image, folder: Path) -> list[str]:
    """Where the crash was and what is wrong with what it left; nothing if it is sound.

    What must be found there is in the image's facts: `contents`, of which the store must hold one (with the rows of
    snapshots or without), and `promised`, the last event of each task that somebody was told of.
    """
    seen = look(image.put_into(folder))
    found = list(seen.problems)
    if "contents" in image.facts and {seen.content, seen.without_snapshots}.isdisjoint(image.facts["contents"]):
        found.append("a step was lost or half done")
    for task_id, seq in image.facts.get("promised", {}).items():
        if seen.tasks.get(task_id, ("", -1))[1] < seq:
            found.append(f"{task_id} was promised to event {seq}")
    if not found:
        return []
    evidence.keep_image(image)
    return [image.where, *found]
