"""What `/metrics` says, read by Prometheus's own parser."""

from __future__ import annotations

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """One scrape. `scrape["retoma_tasks", "queued"]` is a sample by its name and the values of its labels, in order."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families: list[Metric] = list(text_string_to_metric_families(text))
        self._samples: dict[tuple[str, ...], float] = {}
        for family in self.families:
            for sample in family.samples:
                key = (sample.name, *(value for _, value in sorted(sample.labels.items())))
                assert key not in self._samples, f"{key} is there twice"
                self._samples[key] = sample.value

    def __getitem__(self, key: str | tuple[str, ...]) -> float:
        return self._samples[(key,) if isinstance(key, str) else key]

    def __contains__(self, name: str) -> bool:
        return any(key[0] == name for key in self._samples)

    def of(self, name: str) -> dict[tuple[str, ...], float]:
        """All samples of this name that are not 0, by the values of their labels, sorted by the labels' names."""
        return {key[1:]: value for key, value in self._samples.items() if key[0] == name and value}
