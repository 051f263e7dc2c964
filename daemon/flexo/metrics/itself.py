"""The metrics of every process of flexod, whether it acts or stands by."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

import flexo


class Itself(Collector):
    """The metrics of this process: flexod's version, and whether it is the one that acts."""

    def __init__(self, acts: Callable[[], bool]) -> None:
        self._acts = acts

    def collect(self) -> Iterator[Metric]:
        """The metrics as of now."""
        versions = {"version": flexo.__version__, "python": platform.python_version()}
        yield InfoMetricFamily("flexo_build", "Which flexod this is.", versions)
        text = "1 if this flexod acts, 0 if it stands by; gauges of the cluster come from the one that acts."
        yield GaugeMetricFamily("flexo_active", text, value=self._acts())
