"""How the benchmarks write figures and tables: the same in each of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def number(value: float | None) -> str:
    """Format a number with three significant figures, thousands separated; a dash for None."""
    if value is None:
        return "–"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"


def aligned(headings: Sequence[str], body: Sequence[Sequence[str]], left: Collection[str]) -> str:
    """Return lines of cells under their headings; all columns to the right, except those in ``left``."""
    widths = [max(len(line[at]) for line in [headings, *body]) for at in range(len(headings))]

    def joined(line: Sequence[str]) -> str:
        cells_ = (
            text.ljust(width) if heading in left else text.rjust(width)
            for text, width, heading in zip(line, widths, headings, strict=True)
        )
        return "  ".join(cells_).rstrip()

    return "\n".join([joined(headings), joined(["-" * width for width in widths]), *map(joined, body)])
