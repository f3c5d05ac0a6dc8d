"""Numbers, instants and codes as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType

from retoma.core.task import OnRestart

_ID_END = 8
# What a failed task's code means, where the stored message says only what happened, and what to do about it.
ERROR_ADVICE: Mapping[str, str] = MappingProxyType(
    {
        "server_restarted": "Its policy was to fail. Ask again with on_restart set to resume and the text will go on.",
        "engine_crashed": "Its engine ended several times before the text got further. Try another prompt or model.",
        "engine_stalled": "The engine was silent for too long. Try again, or raise the setting stall_timeout_s.",
        "model_unavailable": "Look at the model under Models and add it again if its file is gone.",
        "model_corrupt": "Add the model again with `retoma models add`.",
        "context_length_exceeded": "Shorten the prompt, or raise the setting context_tokens up to the model's limit.",
        "store_full": "Free some space on the store's disk, then ask again.",
        "internal": "The service's log says more.",
    }
)
CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "server_restarted": "the service that worked on it ended or was paused",
        "engine_crashed": "its engine's process ended",
        "engine_stalled": "its engine stopped answering and was ended",
    }
)
PATHS: Mapping[str, str] = MappingProxyType(
    {
        "snapshot": "A snapshot was restored, and what was committed after it decoded again.",
        "log": "No snapshot could be used, so the prompt and all committed tokens were decoded again.",
        "prompt": "Nothing had been committed yet, so the prompt was decoded again.",
    }
)
POLICIES: Mapping[OnRestart, str] = MappingProxyType(
    {
        OnRestart.FAIL: "after a restart it fails",
        OnRestart.RETRY: "after a restart it begins again",
        OnRestart.RESUME: "after a restart it goes on where it was",
    }
)


def duration(milliseconds: float) -> str:
    """A length of time in its two largest units."""
    if milliseconds < 100:  # noqa: PLR2004 - what would be shown as no time at all
        return f"{max(0, round(milliseconds))} ms"
    if milliseconds < 10_000:  # noqa: PLR2004 - below ten seconds tenths are worth showing
        return f"{milliseconds / 1000:.1f} s"
    seconds = round(milliseconds / 1000)
    for unit, length, smaller, part in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= length:
            rest = seconds % length // part
            return f"{seconds // length} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds} s"


def size(count: float) -> str:
    """A number of bytes, short."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:  # noqa: PLR2004 - the step between the units
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def number(value: float) -> str:
    """A count, its thousands apart; a rate with one decimal below a hundred."""
    if isinstance(value, float):
        return f"{value:.1f}" if value < 100 else f"{value:,.0f}".replace(",", "\u202f")  # noqa: PLR2004
    return f"{value:,}".replace(",", "\u202f")


def plain(value: object) -> str:
    """A setting's value: whole numbers without a point."""
    if isinstance(value, float) and value.is_integer():
        return number(int(value))
    return number(value) if isinstance(value, int | float) else str(value)


def instant(at_ms: int) -> str:
    """For `datetime` of a `time` element; the page shows it in the reader's own zone."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def instant_utc(at_ms: int) -> str:
    """The same for a reader without the page's script."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def short_id(full: str) -> str:
    """The random end of an id, enough to tell tasks apart in a list; short ones are shown whole."""
    kind, _, rest = full.partition("_")
    return f"{kind}…{rest[-_ID_END:]}" if len(rest) > _ID_END * 2 else full


def plural(count: int, one: str, many: str = "") -> str:
    """`1 task`, `2 tasks`."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"
