"""A QR code in a terminal, in its own black and white: a scanner needs dark on light, whatever the terminal's colours.

The two colours are of the fixed part of the 256, which no theme replaces. Two rows of the code share a line of text
where the terminal can show half blocks; elsewhere each square is two spaces wide.
"""

from __future__ import annotations

from itertools import zip_longest

import segno

_QUIET_ZONE = 4
_WHITE_ON_BLACK = "\x1b[38;5;231;48;5;16m"
_BACKGROUND = {0: "\x1b[48;5;231m", 1: "\x1b[48;5;16m"}
_RESET = "\x1b[0m"
# By the upper and the lower square, 1 for dark; what is drawn is what is light.
_BLOCKS = {(0, 0): "█", (0, 1): "▀", (1, 0): "▄", (1, 1): " "}


def qr_lines(text: str, encoding: str) -> list[str]:
    """The code of this text, with its quiet zone, in lines that a terminal of this encoding can show."""
    code = segno.make_qr(text, error="m")
    rows = [[int(square) for square in row] for row in code.matrix_iter(border=_QUIET_ZONE)]
    if not _can_show_blocks(encoding):
        return ["".join(f"{_BACKGROUND[square]}  " for square in row) + _RESET for row in rows]
    pairs = zip_longest(rows[::2], rows[1::2], fillvalue=[0] * len(rows[0]))
    return [
        _WHITE_ON_BLACK + "".join(_BLOCKS[pair] for pair in zip(upper, lower, strict=True)) + _RESET
        for upper, lower in pairs
    ]


def _can_show_blocks(encoding: str) -> bool:
    try:
        "".join(_BLOCKS.values()).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
