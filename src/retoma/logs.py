"""The log: one line a record, as text or as JSON, with the ids of what it is about, and never what a client has sent.

What an exception says may hold a prompt, a piece of output or a token. So a record's exception is shown as its type and
the places it came by, in either format and whoever logged it; the same goes for what the interpreter or the event loop
would print by itself.

Ids travel in a context variable: whoever binds them also binds them for the asyncio tasks that are begun afterwards.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import IO, Any

FORMATS = ("text", "json")
LEVELS: Mapping[str, int] = MappingProxyType({"debug": 10, "info": 20, "warning": 30, "error": 40})
FIELDS = "fields"
"""The key of `extra` under which a record brings its own fields: `logger.info("…", extra={FIELDS: {"route": …}})`."""
_CAUSES_MAX = 4

_bound: ContextVar[Mapping[str, str]] = ContextVar("retoma_log_fields", default=MappingProxyType({}))
logger = logging.getLogger("retoma")


def bind(**ids: str) -> None:
    """From now on, in this asyncio task and those that it begins, every record carries these ids; empty ones don't."""
    _bound.set({**_bound.get(), **ids})


@contextmanager
def bound(**ids: str) -> Generator[None]:
    """As `bind`, for a block."""
    before = _bound.set({**_bound.get(), **ids})
    try:
        yield
    finally:
        _bound.reset(before)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The ids of the record's context and the fields that it brought, without the empty ones."""
    found = {**_bound.get(), **getattr(record, FIELDS, {})}
    return {name: value for name, value in found.items() if value not in {"", None}}


def explain(error: BaseException) -> dict[str, Any]:
    """Type and places of an exception and of what it came from, outermost first; nothing of what they say."""
    explained: dict[str, Any] = {}
    inner, seen = explained, error
    for _ in range(_CAUSES_MAX):
        inner["type"] = type(seen).__name__
        inner["places"] = [
            f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(seen.__traceback__)
        ]
        cause = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
        if cause is None:
            break
        inner["cause"] = inner = {}
        seen = cause
    return explained


class _Formatter(logging.Formatter):
    def time_of(self, record: logging.LogRecord) -> str:
        """ISO 8601, UTC, milliseconds."""
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def exception_of(self, record: logging.LogRecord) -> dict[str, Any] | None:
        error = record.exc_info[1] if record.exc_info else None
        return explain(error) if error is not None else None


class JsonFormatter(_Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, logger and message, then ids and fields, then the exception."""
        line: dict[str, Any] = {
            "time": self.time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if exception := self.exception_of(record):
            line["exception"] = exception
        return json.dumps(line, default=str)  # in ASCII: some readers cut lines at U+2028


class TextFormatter(_Formatter):
    """One line for people, a traceback too, so that a log can be cut by lines."""

    def format(self, record: logging.LogRecord) -> str:
        """The same as in JSON, in the same order, without the instance: a text is read where it is written."""
        parts = [f"{self.time_of(record)} {record.levelname} {record.name}: {record.getMessage()}"]
        parts += [f"{name}={value}" for name, value in fields_of(record).items() if name != "instance"]
        exception = self.exception_of(record)
        while exception:
            parts.append(f"[{exception['type']} at {' > '.join(exception['places']) or 'an unknown place'}]")
            exception = exception.get("cause")
        return " | ".join(" ".join(parts).splitlines())


def set_up(level: int, form: str, stream: IO[str] | None = None) -> None:
    """Sends records to standard error: Retoma's own from `level` on, those of the libraries from warnings on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)
    logger.setLevel(level)
    # A collector that is away is told once for each batch, not at each of its tries.
    logging.getLogger("opentelemetry").setLevel(max(level, logging.ERROR))
    logging.captureWarnings(capture=True)
    threading.excepthook = _thread_ended
    sys.unraisablehook = _unraisable


def on_loop_error(_loop: object, context: Mapping[str, Any]) -> None:
    """The event loop's handler for errors that nobody waits for; its own prints what the exception says."""
    what = str(context.get("message", "")).partition(" in callback ")[0]
    logger.error("event loop: %s", what, exc_info=context.get("exception"))


def _thread_ended(what: threading.ExceptHookArgs) -> None:
    logger.error("a thread ended with an error", exc_info=what.exc_value)


def _unraisable(what: sys.UnraisableHookArgs) -> None:
    logger.error("an error was ignored", exc_info=what.exc_value)
