"""The routes of the broker's figures: for Prometheus, and as JSON in the API.

The catalogue (`canopy_mqtt.observe.figures`) defines them. The cost of an answer depends on the length of the
catalogue, not on the number of clients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from aiohttp import hdrs, web
from prometheus_client import exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector, CollectorRegistry
from pydantic import RootModel

from canopy_mqtt.admin.routing import BASE, Call, Routes
from canopy_mqtt.histogram import Histogram
from canopy_mqtt.observe.figures.catalogue import Found, read
from canopy_mqtt.observe.figures.figure import Figure, Kind

ROUTES: Final = Routes("metrics")

GAUGES: Final = (Kind.GAUGE,)
COUNTERS: Final = (Kind.COUNTER, Kind.HISTOGRAM)


class Figures(RootModel[dict[str, int | float]]):
    """Figures by name, with `.` between the words and before the value of a label."""


class FigureCollector(Collector):
    """Presents figures to Prometheus' library."""

    def __init__(self, figures: Iterable[tuple[Figure, Found]]) -> None:
        self._figures = figures

    def describe(self) -> Iterator[Metric]:
        """Return no metrics, so that registering the collector reads nothing."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        for figure, found in self._figures:
            metric = _metric(figure, found)
            if metric is not None:
                yield metric


def _metric(figure: Figure, found: Found) -> Metric | None:
    if isinstance(found, Histogram):
        buckets = [("+Inf" if bound == math.inf else repr(bound), float(count)) for bound, count in found.cumulative()]
        return HistogramMetricFamily(figure.metric, figure.help, buckets, found.sum)
    family: CounterMetricFamily | GaugeMetricFamily
    if figure.kind is Kind.COUNTER:
        family = CounterMetricFamily(figure.metric, figure.help, labels=figure.labels)
    else:
        family = GaugeMetricFamily(figure.metric, figure.help, labels=figure.labels)
    for labels, value in found:
        family.add_metric(labels, float(value))
    return family if family.samples else None


def as_figures(figures: Iterable[tuple[Figure, Found]], kinds: tuple[Kind, ...]) -> Figures:
    """Return the figures of these kinds for the API."""
    made: dict[str, int | float] = {}
    for figure, found in figures:
        if figure.kind not in kinds or figure.name == "build_info":
            # The API says what runs in words (`status`).
            continue
        name = figure.metric.removeprefix("canopy_").replace("_", ".")
        if isinstance(found, Histogram):
            made[f"{name}.count"], made[f"{name}.sum"] = found.count, found.sum
            continue
        for labels, value in found:
            if not isinstance(value, str):
                made[".".join((name, *labels))] = value
    return Figures(made)


def as_text(figures: Iterable[tuple[Figure, Found]], accept: str) -> web.Response:
    """Return the figures for Prometheus. `accept`: the header of the request."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(FigureCollector(figures))
    # Not the library's choice: it raises at versions that are no numbers.
    if "application/openmetrics-text" in accept:
        text: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]
        content_type = openmetrics.CONTENT_TYPE_LATEST
    else:
        text, content_type = exposition.generate_latest(registry), exposition.CONTENT_TYPE_PLAIN_0_0_4
    return web.Response(body=text, headers={hdrs.CONTENT_TYPE: content_type})


def _exported(call: Call) -> Iterator[tuple[Figure, Found]]:
    return read(call.broker.figures.read(), lambda figure: figure.exported)


@ROUTES.add("GET", "/metrics")
async def metrics(call: Call) -> web.Response:
    """All figures, in Prometheus' text format or as OpenMetrics."""
    return as_text(_exported(call), call.request.headers.get(hdrs.ACCEPT, ""))


@ROUTES.add("GET", f"{BASE}/stats")
async def stats(call: Call) -> Figures:
    """The gauges: current values."""
    return as_figures(_exported(call), GAUGES)


@ROUTES.add("GET", f"{BASE}/metrics")
async def counters(call: Call) -> Figures:
    """The counters since the start."""
    return as_figures(_exported(call), COUNTERS)
