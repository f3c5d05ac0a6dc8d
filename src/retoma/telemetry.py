"""What an instance tells about itself, handed to everything that has something to tell."""

from __future__ import annotations

from dataclasses import dataclass, field

from retoma.metrics import Metrics
from retoma.tracing import Commit, NoTracing, Tracing

_NS = 1e-9


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Metrics always, traces where they are switched on."""

    metrics: Metrics = field(default_factory=Metrics)
    tracing: Tracing = field(default_factory=NoTracing)

    def committed(self, commit: Commit) -> None:
        """Told by the store after each commit, in the writer's thread."""
        metrics = self.metrics
        metrics.batch.observe(len(commit.contexts))
        metrics.sync_s.observe((commit.ended_ns - commit.began_ns) * _NS)
        for submitted_ns in commit.submitted_ns:
            metrics.commit_s.observe((commit.ended_ns - submitted_ns) * _NS)
        self.tracing.committed(commit)
