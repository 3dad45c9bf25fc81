"""How the benchmarks write figures, tables and the ends of axes: the same in each of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence


def number(value: float | None) -> str:
    """Three figures that matter, thousands separated; a dash for nothing."""
    if value is None:
        return "–"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"


def short_count(count: float) -> str:
    """A count beside an axis: 500, 1k, 17.8k, 2M."""
    for size, sign in ((1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:g}{sign}"
    return f"{count:g}"


def ceiling(value: float) -> float:
    """Where an axis ends: the next of 1, 2, 3, 4, 5, 6, 8, 10 times a power of ten at or above ``value``, above 0."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 3, 4, 5, 6, 8, 10) if step * power >= value * 0.9999)


def aligned(headings: Sequence[str], body: Sequence[Sequence[str]], left: Collection[str]) -> str:
    """Lines of cells under their headings; all columns to the right, but those in ``left``."""
    widths = [max(len(line[at]) for line in [headings, *body]) for at in range(len(headings))]

    def joined(line: Sequence[str]) -> str:
        cells_ = (
            text.ljust(width) if heading in left else text.rjust(width)
            for text, width, heading in zip(line, widths, headings, strict=True)
        )
        return "  ".join(cells_).rstrip()

    return "\n".join([joined(headings), joined(["-" * width for width in widths]), *map(joined, body)])
