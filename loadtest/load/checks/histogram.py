"""Distributions of times, kept by HdrHistogram."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hdrh.histogram import HdrHistogram

from loadtest.load.report.result import Latency

HIGHEST: Final = 3_600_000_000
"""Microseconds: an hour. What takes longer counts as an hour."""
DIGITS: Final = 3


def latency(counts: Mapping[int, int]) -> Latency:
    """The distribution of some counts by microseconds."""
    if not counts:
        return Latency()
    # The lowest value that can be told apart is 1: what took less than a microsecond counts as one.
    histogram = HdrHistogram(1, HIGHEST, DIGITS)
    for value, count in counts.items():
        histogram.record_value(min(max(value, 1), HIGHEST), count)
    encoded = histogram.encode()
    return Latency(
        count=histogram.get_total_count(),
        min=float(min(counts)),
        mean=sum(value * count for value, count in counts.items()) / sum(counts.values()),
        p50=float(histogram.get_value_at_percentile(50)),
        p90=float(histogram.get_value_at_percentile(90)),
        p99=float(histogram.get_value_at_percentile(99)),
        p999=float(histogram.get_value_at_percentile(99.9)),
        max=float(max(counts)),
        histogram=encoded.decode() if isinstance(encoded, bytes) else str(encoded),
    )
