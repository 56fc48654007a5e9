"""What the metrics of coordinator and shim are made of alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from coordinator.telemetry.version import own_version


def build_info(registry: CollectorRegistry) -> None:
    """Tell which version runs here."""
    gauge = Gauge("allstop_build_info", "What runs here", ["version"], registry=registry)
    gauge.labels(own_version()).set(1)


def family(
    name: str, about: str, values: Mapping[tuple[str, ...], float], *labels: str
) -> GaugeMetricFamily:
    """One gauge with the values it has now, by the values of its labels."""
    made = GaugeMetricFamily(name, about, labels=labels)
    for label_values, value in values.items():
        made.add_metric(label_values, value)
    return made


class Present(Collector):
    """Gauges without a memory: how things are, asked for at each scrape."""

    def __init__(self, collect: Callable[[], Iterator[GaugeMetricFamily]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Every gauge."""
        return self._collect()

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Nothing: names are known when they are collected."""
        return iter(())
