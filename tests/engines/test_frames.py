from __future__ import annotations

import io
import struct

import pytest

from retoma.engines.frames import (
    Alive,
    Cancel,
    Done,
    Frame,
    Generate,
    Load,
    Output,
    Ready,
    Started,
    read_frame,
    write_frame,
)
from retoma.limits import FRAME_BYTES_MAX

FRAMES: list[Frame] = [
    Load("scripted", "m", None, "", 0, 1, 1, settings={"a": 1}),
    Generate("k", [{"role": "user", "content": "漢字 \ud800 🌊"}], None, 0.5, 1.0, 7, stop=["x"], committed=[1, 2]),
    Cancel("k"),
    Ready(1, "f", exact_restore=True, batch_invariant=False, thread_invariant=True, description={}),
    Started("k", 3, "log", 0, exact=True),
    Output("k", [1], "é"),
    Done("k", "stop", [2], "", 3, 4),
]


def piped(content: bytes) -> Frame | None:
    return read_frame(io.BytesIO(content))


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: frame.kind)
def test_a_frame_comes_out_as_it_went_in(frame: Frame) -> None:
    pipe = io.BytesIO()
    write_frame(pipe, frame)
    pipe.seek(0)
    assert read_frame(pipe) == frame
    assert read_frame(pipe) is None


def test_a_pipe_that_ends_inside_a_frame_has_ended() -> None:
    pipe = io.BytesIO()
    write_frame(pipe, Alive("k"))
    whole = pipe.getvalue()
    assert [piped(whole[:length]) for length in range(len(whole))] == [None] * len(whole)


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b"null", b'{"kind":"steam"}', b'{"kind":"cancel"}', b'{"kind":"cancel","ke":1}', b"\xff"],
)
def test_what_is_no_frame_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        piped(struct.pack("<I", len(body)) + body)


def test_a_length_over_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(ValueError, match="longer than"):
        piped(struct.pack("<I", FRAME_BYTES_MAX + 1))
