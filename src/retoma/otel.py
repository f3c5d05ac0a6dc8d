"""Traces by OpenTelemetry. The variables OTEL_… say where they go and how many of them; nothing global is set."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import retoma
from retoma import logs
from retoma.clock import Clock
from retoma.tracing import NO_ATTRIBUTES, Commit, Headers, Span, Value

_REMEMBERED_MAX = 10_000
_CLOSE_S = 3.0
_CARRIED = ("traceparent", "tracestate")


class RecordedSpan(Span):
    """A span of OpenTelemetry."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def set(self, name: str, value: Value) -> None:
        """Notes an attribute."""
        self._span.set_attribute(name, value)

    def rename(self, name: str) -> None:
        """Gives it a name that was not known at its beginning."""
        self._span.update_name(name)

    def fail(self, kind: str) -> None:
        """Marks it as failed."""
        self._span.set_attribute("error.type", kind)
        self._span.set_status(StatusCode.ERROR)


class OtelTracing:
    """Tracing into one provider, which `close` shuts down."""

    def __init__(self, provider: TracerProvider, clock: Clock) -> None:
        self._provider = provider
        self._clock = clock
        self._tracer = provider.get_tracer("retoma", retoma.__version__)
        self._propagator = TraceContextTextMapPropagator()
        self._accepted_in: OrderedDict[str, SpanContext] = OrderedDict()

    def request(self, method: str, headers: Headers) -> AbstractContextManager[Span]:
        """See Tracing.request."""
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        parent = self._propagator.extract({name: carrier[name] for name in _CARRIED if name in carrier})
        return self._recorded(method, {"http.request.method": method}, kind=SpanKind.SERVER, parent=parent)

    def span(
        self, name: str, attributes: Mapping[str, Value] = NO_ATTRIBUTES, *, after: str = ""
    ) -> AbstractContextManager[Span]:
        """See Tracing.span."""
        return self._recorded(name, attributes, accepted_in=self._accepted_in.get(after))

    def remember(self, task_id: str) -> None:
        """See Tracing.remember."""
        self._accepted_in[task_id] = trace.get_current_span().get_span_context()
        if len(self._accepted_in) > _REMEMBERED_MAX:
            self._accepted_in.popitem(last=False)

    @contextmanager
    def unnoticed(self) -> Generator[None]:
        """See Tracing.unnoticed."""
        before = contexts.attach(contexts.Context())
        try:
            yield
        finally:
            contexts.detach(before)

    def committed(self, commit: Commit) -> None:
        """See Tracing.committed."""
        for context in commit.contexts:
            parent = context.run(contexts.get_current)
            # The span itself may be over by now: whoever handed in the transaction has been told already.
            if trace.get_current_span(parent).get_span_context().trace_flags.sampled:
                self._commit_span(commit, parent)

    def _commit_span(self, commit: Commit, parent: contexts.Context) -> None:
        # OpenTelemetry counts from 1970; the length is exact, the place to a millisecond.
        began_ns = self._clock.wall_ms() * 1_000_000 - (commit.now_ns - commit.began_ns)
        span = self._tracer.start_span("store commit", parent, start_time=began_ns)
        span.set_attribute("retoma.commit.transactions", len(commit.contexts))
        span.end(began_ns + commit.ended_ns - commit.began_ns)

    def close(self) -> None:
        """See Tracing.close."""
        # With a collector that is away it would go on trying for half a minute.
        closing = threading.Thread(target=self._provider.shutdown, name="otel-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)

    @contextmanager
    def _recorded(
        self,
        name: str,
        attributes: Mapping[str, Value],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        parent: contexts.Context | None = None,
        accepted_in: SpanContext | None = None,
    ) -> Generator[Span]:
        links = [Link(accepted_in)] if accepted_in is not None else []
        # Of an exception only the type is noted, by ourselves: what it says may hold a prompt.
        with self._tracer.start_as_current_span(
            name, parent, kind, attributes, links, record_exception=False, set_status_on_exception=False
        ) as span:
            logs.bind(trace_id=trace.format_trace_id(span.get_span_context().trace_id))
            recorded = RecordedSpan(span)
            try:
                yield recorded
            except BaseException as error:
                recorded.fail(type(error).__name__)
                raise


def open_otel(clock: Clock) -> OtelTracing:
    """Tracing whose exporter, resource and sampler follow the variables OTEL_…, as OpenTelemetry lists them."""
    about = Resource({SERVICE_NAME: "retoma", SERVICE_VERSION: retoma.__version__})
    provider = TracerProvider(resource=about.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return OtelTracing(provider, clock)
