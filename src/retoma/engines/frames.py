"""What the service and an engine's process say to each other: length-prefixed JSON over two pipes.

Service → engine: `load` once, then `generate`, `cancel`, `park`, `stop`. Engine → service: `ready` or `load_failed`,
then for each generation `started`, `output`…, `snapshot`…, and exactly one of `done`, `cancelled`, `failed`; `alive` at
any time (while loading with an empty key), at least after every chunk of prompt, so that silence means something. `key`
names the generation; the service picks a fresh one for each attempt, so that a late frame of an earlier attempt can't
be taken for one of this.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, BinaryIO, ClassVar

from retoma.limits import FRAME_BYTES_MAX

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Load:
    """Service: load this model. The fields of EngineOptions."""

    kind: ClassVar[str] = "load"
    engine: str
    model: str
    path: str | None
    digest: str
    context_tokens: int
    sequences: int
    threads: int
    library: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Each engine's own; for all: `snapshot_every_tokens`, `output_every_ms`, as in the settings."""
    flags: Mapping[str, bool] | None = None
    """Stored result of an earlier self-test, with `flags_fingerprint`; None: test now."""
    flags_fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Generate:
    """Service: begin or continue a text. The fields of Generation, and what is committed already."""

    kind: ClassVar[str] = "generate"
    key: str
    messages: list[dict[str, Any]]
    max_output_tokens: int | None
    temperature: float
    top_p: float
    seed: int
    stop: list[str] = field(default_factory=list[str])
    truncation: str = "disabled"
    format: dict[str, Any] | None = None
    committed: list[int] = field(default_factory=list[int])
    """Token ids of the log, in order; the text goes on after them."""
    snapshots: list[str] = field(default_factory=list[str])
    """Snapshot files that may fit, newest first."""
    snapshot_path: str = ""
    """Where new snapshots go, with `{tokens}` for their length; empty: take none."""
    fingerprint: str = ""
    """The fingerprint (of `Ready`) under which `committed` was made; empty: not known."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Service: stop this generation within one batch."""

    kind: ClassVar[str] = "cancel"
    key: str


@dataclass(frozen=True, slots=True)
class Park:
    """Service: write a snapshot at the next token, whatever it costs, then stop as for `cancel`."""

    kind: ClassVar[str] = "park"
    key: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Service: end the process. The end of the pipe means the same."""

    kind: ClassVar[str] = "stop"


@dataclass(frozen=True, slots=True)
class Ready:
    """Engine: the model is loaded. The fields of ModelFacts."""

    kind: ClassVar[str] = "ready"
    context_tokens: int
    fingerprint: str
    exact_restore: bool
    batch_invariant: bool
    thread_invariant: bool
    description: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """Engine: the model can't be loaded; the process ends. `code` is one of the error codes of a failed task."""

    kind: ClassVar[str] = "load_failed"
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Alive:
    """Engine: still at work. `done` of `total` prompt tokens are decoded."""

    kind: ClassVar[str] = "alive"
    key: str = ""
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """Engine: the prompt and everything committed is decoded; the next token comes now."""

    kind: ClassVar[str] = "started"
    key: str
    prompt_tokens: int
    path: str
    """How the committed part came back: `snapshot`, `log` (decoded again one by one), or `prompt` (there was none)."""
    restored_tokens: int
    """How many committed tokens the snapshot held."""
    exact: bool
    """False: `committed` was made under another fingerprint, so the text may differ from here on."""


@dataclass(frozen=True, slots=True)
class Output:
    """Engine: these tokens together add this text; both go into one event."""

    kind: ClassVar[str] = "output"
    key: str
    tokens: list[int]
    text: str


@dataclass(frozen=True, slots=True)
class SnapshotWritten:
    """Engine: a snapshot file is durable; the service may register it once more than `tokens` tokens are committed."""

    kind: ClassVar[str] = "snapshot"
    key: str
    tokens: int
    path: str
    bytes: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Done:
    """Engine: the text is complete. `tokens` (with the end token) and `text` are what no `output` carried yet."""

    kind: ClassVar[str] = "done"
    key: str
    reason: str
    """`stop` (end of text or stop string), `max_output_tokens` (that, or the context is full)."""
    tokens: list[int]
    text: str
    prompt_tokens: int
    output_tokens: int
    """All tokens of the answer, those that were committed before included."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Engine: the generation has stopped and its place is free."""

    kind: ClassVar[str] = "cancelled"
    key: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Engine: the generation can't go on; the process can. `code` is one of the error codes of a failed task."""

    kind: ClassVar[str] = "failed"
    key: str
    code: str
    message: str


Frame = (
    Load
    | Generate
    | Cancel
    | Park
    | Stop
    | Ready
    | LoadFailed
    | Alive
    | Started
    | Output
    | SnapshotWritten
    | Done
    | Cancelled
    | Failed
)
_KINDS: dict[str, type[Frame]] = {
    frame.kind: frame
    for frame in (
        Load, Generate, Cancel, Park, Stop,
        Ready, LoadFailed, Alive, Started, Output, SnapshotWritten, Done, Cancelled, Failed,
    )
}  # fmt: skip


def write_frame(pipe: BinaryIO, frame: Frame) -> None:
    """Writes one frame in one piece and flushes; raises OSError when the other side is gone."""
    content = {"kind": frame.kind} | {entry.name: getattr(frame, entry.name) for entry in fields(frame)}
    # A client may send half of a surrogate pair; it must come out as it went in, not end the process.
    body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    assert len(body) <= FRAME_BYTES_MAX, len(body)
    pipe.write(_LENGTH.pack(len(body)) + body)
    pipe.flush()


def read_frame(pipe: BinaryIO) -> Frame | None:
    """The next frame; None at the end of the pipe, also inside a frame; raises ValueError for anything else."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {length} bytes is longer than {FRAME_BYTES_MAX}")
    body = pipe.read(length)
    if len(body) < length:
        return None
    try:
        content = json.loads(body)
        return _KINDS[content.pop("kind")](**content)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is no frame: {error!r}") from error
