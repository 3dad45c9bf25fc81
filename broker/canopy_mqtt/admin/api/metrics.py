"""The routes of the broker's figures: for Prometheus, and as JSON in the API.

The catalogue (`canopy_mqtt.observe.figures`) defines them. The cost of an answer depends on the length of the
catalogue, not on the number of clients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from aiohttp import hdrs, web
from prometheus_client import exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector, CollectorRegistry
from pydantic import RootModel

from canopy_mqtt.admin.routing import BASE, Call, Routes
from canopy_mqtt.histogram import Histogram
from canopy_mqtt.observe.figures.catalogue import FIGURES
from canopy_mqtt.observe.figures.figure import Figure, Kind
from canopy_mqtt.observe.figures.sources import Reading, Sources

ROUTES: Final = Routes("metrics")


class Figures(RootModel[dict[str, int | float]]):
    """Figures by name, with `.` between the words and before the value of a label."""


class FigureCollector(Collector):
    """Presents the catalogue to Prometheus' library."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def describe(self) -> Iterator[Metric]:
        """Return no metrics, so that registering the collector reads nothing."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        reading = self._sources.read()
        for figure in FIGURES:
            if figure.exported:
                metric = _metric(figure, reading)
                if metric is not None:
                    yield metric


def _metric(figure: Figure, reading: Reading) -> Metric | None:
    if figure.kind is Kind.HISTOGRAM:
        found = figure.read(reading)
        if not isinstance(found, Histogram):
            return None
        buckets = [("+Inf" if bound == math.inf else repr(bound), float(count)) for bound, count in found.cumulative()]
        return HistogramMetricFamily(figure.metric, figure.help, buckets, found.sum)
    family: CounterMetricFamily | GaugeMetricFamily
    if figure.kind is Kind.COUNTER:
        family = CounterMetricFamily(figure.metric, figure.help, labels=figure.labels)
    else:
        family = GaugeMetricFamily(figure.metric, figure.help, labels=figure.labels)
    for labels, value in figure.samples(reading):
        family.add_metric(labels, float(value))
    return family if family.samples else None


def _json(call: Call, kinds: tuple[Kind, ...]) -> Figures:
    reading = call.broker.figures.read()
    found: dict[str, int | float] = {}
    for figure in FIGURES:
        if figure.kind not in kinds or figure.name == "build_info":
            # The API says what runs in words (`status`).
            continue
        name = figure.metric.removeprefix("canopy_").replace("_", ".")
        if figure.kind is Kind.HISTOGRAM:
            times = figure.read(reading)
            if isinstance(times, Histogram):
                found[f"{name}.count"], found[f"{name}.sum"] = times.count, times.sum
            continue
        for labels, value in figure.samples(reading):
            if not isinstance(value, str):
                found[".".join((name, *labels))] = value
    return Figures(found)


@ROUTES.add("GET", "/metrics")
async def metrics(call: Call) -> web.Response:
    """All figures, in Prometheus' text format or as OpenMetrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(FigureCollector(call.broker.figures))
    # Not the library's choice: it raises at versions that are no numbers.
    if "application/openmetrics-text" in call.request.headers.get(hdrs.ACCEPT, ""):
        text: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]
        content_type = openmetrics.CONTENT_TYPE_LATEST
    else:
        text, content_type = exposition.generate_latest(registry), exposition.CONTENT_TYPE_PLAIN_0_0_4
    return web.Response(body=text, headers={hdrs.CONTENT_TYPE: content_type})


@ROUTES.add("GET", f"{BASE}/stats")
async def stats(call: Call) -> Figures:
    """The gauges: current values."""
    return _json(call, (Kind.GAUGE,))


@ROUTES.add("GET", f"{BASE}/metrics")
async def counters(call: Call) -> Figures:
    """The counters since the start."""
    return _json(call, (Kind.COUNTER, Kind.HISTOGRAM))
