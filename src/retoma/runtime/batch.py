"""What an attempt takes from its engine at once: all frames that have come since its last commit."""

from __future__ import annotations

from dataclasses import dataclass, field

from retoma.engines.frames import Alive, Cancelled, Done, Failed, Frame, SnapshotWritten, Started
from retoma.engines.frames import Output as OutputFrame


@dataclass(slots=True)
class Batch:
    """What these frames say together."""

    started: Started | None = None
    text: str = ""
    tokens: list[int] = field(default_factory=list[int])
    snapshots: list[SnapshotWritten] = field(default_factory=list[SnapshotWritten])
    end: Done | Failed | Cancelled | None = None


def gather(frames: list[Frame]) -> Batch:
    """Adds up frames of one text, in their order."""
    batch = Batch()
    for frame in frames:
        match frame:
            case Started():
                batch.started = frame
            case OutputFrame():
                batch.text += frame.text
                batch.tokens += frame.tokens
            case SnapshotWritten():
                batch.snapshots.append(frame)
            case Done() | Failed() | Cancelled():
                batch.end = frame
            case Alive():
                pass
            case _:
                raise AssertionError(f"an engine never sends {frame.kind} here")
    return batch
