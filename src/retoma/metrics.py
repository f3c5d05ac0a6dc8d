"""What an instance counts, for Prometheus. Each instance has its own registry; nothing here is shared by a process.

Counting happens once per commit, per request or per attempt, never per token. What all instances of a store have in
common (`STORED`) is read from the store at the scrape and shown only if that has succeeded: a number that is absent
misleads nobody, one of yesterday does.

To show one more number of the store, add its line to `STORED` and read it in `transactions/measure.py`. A number of
this instance is an attribute of `Metrics`. docs/observability.md lists them all; a test compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

import retoma
from retoma.errors import EngineCrashed, EngineStalled

# A second series for each counter, with the time it was made, which no query here needs.
prometheus_client.disable_created_metrics()

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OUTCOMES = ("completed", "incomplete", "failed", "cancelled")
PATHS = ("prompt", "log", "snapshot")
_COMMIT_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_REQUEST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_FIRST_TOKEN_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
_BATCH = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Described(NamedTuple):
    """A metric as the documentation lists it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


StoreSeen = Mapping[str, Mapping[str, float]]
"""What one look at the store has found: by metric, then by the value of its label; of no label, by the empty text."""

STORED = (
    Described("retoma_tasks", "gauge", ("state",), "Unfinished tasks of the store, of all instances."),
    Described(
        "retoma_queue_oldest_age_seconds",
        "gauge",
        (),
        "Time since the oldest task that waits was accepted; 0 when none waits.",
    ),
    Described(
        "retoma_instances",
        "gauge",
        ("state",),
        "Instances of the store: `alive`; `expired`, whose lease has run out; `dead`, not yet cleared away.",
    ),
    Described(
        "retoma_webhooks",
        "gauge",
        ("state",),
        "Webhooks that are not over: `waiting` for their task's end, `pending`, or `unconfirmed` (sent, not answered); "
        "counted up to 10 000.",
    ),
    Described(
        "retoma_store_bytes",
        "gauge",
        ("part",),
        "Size of the SQLite file (`database`) and of its log (`wal`); absent with PostgreSQL.",
    ),
)


class Metrics:
    """The numbers of one instance."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.described: list[Described] = list(STORED)
        self._stored = _Stored()
        self.registry.register(self._stored)
        self._count_tasks()
        self._count_store()
        self._count_http()
        ProcessCollector(registry=self.registry)
        build = self._gauge("build_info", "1; the label names the release.", ("version",))
        build.labels(retoma.__version__).set(1)

    def _count_tasks(self) -> None:
        self.accepted = self._counter("tasks_accepted", "Tasks that this instance has accepted.")
        self.finished = self._counter("tasks_finished", "Tasks that this instance has ended.", ("outcome",), OUTCOMES)
        self.events = self._counter("events_committed", "Events that this instance has appended to logs of tasks.")
        self.output_tokens = self._counter("output_tokens", "Output tokens that this instance has committed.")
        self.first_token_s = self._histogram(
            "time_to_first_token_seconds",
            "From the acceptance of a task to the commit of its first output, queue and loading included.",
            _FIRST_TOKEN_S,
        )
        self.started = self._counter(
            "attempts_started",
            "Attempts whose engine became ready for the next token, by how the committed part came back: "
            "`prompt` (there was none), `log` (decoded again), `snapshot`.",
            ("path",),
            PATHS,
        )
        self.attempts_running = self._gauge("attempts_running", "Attempts under way in this instance.")
        self.workers = self._gauge("workers", "How many attempts this instance makes at once.")
        self.snapshots_written = self._counter("snapshots_written", "Snapshots that were written and registered.")
        self.snapshots_used = self._counter("snapshots_used", "Attempts that went on from a snapshot.")
        self.recoveries = self._counter(
            "recoveries",
            "Unfinished tasks that were moved after a restart or a crash: by restart policy, old and new state, cause.",
            ("policy", "from", "to", "cause"),
        )
        self.fenced_writes = self._counter(
            "fenced_writes", "Writes that the store refused because the task has another owner by now (LeaseLost)."
        )
        self.engine_crashes = self._counter(
            "engine_crashes",
            "Engines that ended by themselves (`engine_crashed`) or were ended because they hung (`engine_stalled`).",
            ("code",),
            (EngineCrashed.code, EngineStalled.code),
        )
        self.engines_loaded = self._gauge("engines_loaded", "Engines in memory, each with one model.")
        self.paused = self._gauge("instance_paused", "1 while this instance can't confirm its lease and works on none.")

    def _count_store(self) -> None:
        self.commit_s = self._histogram(
            "store_commit_seconds", "From handing a transaction to the writer to the end of its commit.", _COMMIT_S
        )
        self.sync_s = self._histogram(
            "store_sync_seconds", "The COMMIT itself, in which the disk is synced.", _COMMIT_S
        )
        self.batch = self._histogram("store_transactions_per_commit", "Transactions that shared one commit.", _BATCH)
        self.store_problem = self._gauge(
            "store_problem", "1 while the store can't be written, or was not read at this scrape."
        )

    def _count_http(self) -> None:
        self.requests = self._counter(
            "http_requests",
            "Replies, by route template; status 499: the client left before there was one.",
            ("method", "route", "status"),
        )
        self.request_s = self._histogram(
            "http_request_seconds", "From a request to the first byte of its reply.", _REQUEST_S, ("method", "route")
        )
        self.open_streams = self._gauge("http_open_streams", "Event streams that are being sent.")

    def show_store(self, seen: StoreSeen) -> None:
        """What the next `render` shows of the store; empty: it could not be read."""
        self._stored.seen = seen

    def render(self) -> bytes:
        """Everything, in Prometheus's text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, meaning: str, labels: tuple[str, ...] = (), values: tuple[str, ...] = ()) -> Counter:
        """`values` of the only label are shown as 0 from the start, so that their first increase is seen."""
        made = Counter(
            self._describe(f"{name}_total", "counter", labels, meaning), meaning, labels, registry=self.registry
        )
        for value in values:
            made.labels(value)
        return made

    def _gauge(self, name: str, meaning: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(self._describe(name, "gauge", labels, meaning), meaning, labels, registry=self.registry)

    def _histogram(
        self, name: str, meaning: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()
    ) -> Histogram:
        full = self._describe(name, "histogram", labels, meaning)
        return Histogram(full, meaning, labels, buckets=buckets, registry=self.registry)

    def _describe(self, name: str, kind: str, labels: tuple[str, ...], meaning: str) -> str:
        described = Described(f"retoma_{name}", kind, labels, meaning)
        self.described.append(described)
        return described.name


class _Stored(Collector):
    """The part that is read at the scrape."""

    def __init__(self) -> None:
        self.seen: StoreSeen = {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Nothing, if the store was not read."""
        for described in STORED:
            found = self.seen.get(described.name)
            if found:
                family = GaugeMetricFamily(described.name, described.meaning, labels=described.labels)
                for value, number in found.items():
                    family.add_metric([value] if described.labels else [], number)
                yield family
