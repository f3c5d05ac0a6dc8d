"""Traces, for those who switch them on (setting `otel`); otherwise every span here is nothing and costs nothing.

A span has names, ids, numbers and the type of an error; never a prompt, an output text, a token of a client or what an
exception says. The other half, `retoma.otel`, is imported only when it is asked for, because it needs the extra.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from retoma.clock import Clock
from retoma.errors import Refused

Value = str | int | float | bool
Headers = Iterable[tuple[bytes, bytes]]
NO_ATTRIBUTES: Mapping[str, Value] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of the store. Instants are of the monotonic clock, in nanoseconds."""

    submitted_ns: Sequence[int]
    """When each of its transactions was handed in."""
    contexts: Sequence[Context]
    """Where each of them was handed in."""
    began_ns: int
    """When COMMIT was sent."""
    ended_ns: int
    now_ns: int
    """The same clock when this was told."""


class Span:
    """A span that is not recorded."""

    def set(self, name: str, value: Value) -> None:
        """Notes an attribute."""

    def rename(self, name: str) -> None:
        """Gives it a name that was not known at its beginning."""

    def fail(self, kind: str) -> None:
        """What it is about has failed; `kind` is a code or the name of a type."""


class Tracing(Protocol):
    """Where spans are begun. A block that is left by an exception fails its span with the exception's type."""

    def request(self, method: str, headers: Headers) -> AbstractContextManager[Span]:
        """A request from its first to its last byte; goes on with the trace that its `traceparent` header names."""
        ...

    def span(
        self, name: str, attributes: Mapping[str, Value] = NO_ATTRIBUTES, *, after: str = ""
    ) -> AbstractContextManager[Span]:
        """A step within the present span. `after`: a task whose acceptance it follows, perhaps in another trace."""
        ...

    def remember(self, task_id: str) -> None:
        """The present span has accepted this task."""
        ...

    def unnoticed(self) -> AbstractContextManager[None]:
        """What is committed in this block gets no span: there would be one for each token."""
        ...

    def committed(self, commit: Commit) -> None:
        """A span for each of the commit's transactions that was handed in within one. Called in the writer's thread."""
        ...

    def close(self) -> None:
        """Sends what is left; takes a few seconds at most."""
        ...


class NoTracing:
    """Tracing that is switched off."""

    def request(self, method: str, headers: Headers) -> AbstractContextManager[Span]:  # noqa: ARG002 - nobody looks
        """See Tracing.request."""
        return _NOTHING

    def span(
        self,
        name: str,  # noqa: ARG002 - nobody looks
        attributes: Mapping[str, Value] = NO_ATTRIBUTES,  # noqa: ARG002 - nobody looks
        *,
        after: str = "",  # noqa: ARG002 - nobody looks
    ) -> AbstractContextManager[Span]:
        """See Tracing.span."""
        return _NOTHING

    def remember(self, task_id: str) -> None:
        """See Tracing.remember."""

    def unnoticed(self) -> AbstractContextManager[None]:
        """See Tracing.unnoticed."""
        return nullcontext()

    def committed(self, commit: Commit) -> None:
        """See Tracing.committed."""

    def close(self) -> None:
        """See Tracing.close."""


_NOTHING = nullcontext(Span())


def open_tracing(clock: Clock) -> Tracing:
    """Traces for the collector that the variables OTEL_… name; raises Refused when the extra is missing."""
    try:
        from retoma.otel import open_otel  # noqa: PLC0415 - opentelemetry comes with an extra
    except ImportError as missing:
        raise Refused("the setting `otel` needs the extra: pip install 'retoma[otel]'") from missing
    return open_otel(clock)
