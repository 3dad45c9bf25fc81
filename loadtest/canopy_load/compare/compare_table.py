"""The table of a comparison, for terminals and plain text.

Owns: its layout: a block for each figure, a line for each broker in it.

Promises: 80 columns are enough. A figure that may be the generator's is marked. Notes that change the reading of the
figures stand below them.

``comparison`` has computed the medians and ratios.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from canopy_load.compare.comparison import FIGURES, Comparison


def table(comparison: Comparison) -> RenderableType:
    first = comparison.first
    parts: list[RenderableType] = []
    if first is None:
        parts.append(Text("Nothing was measured."))
    else:
        shown = Table(box=None, pad_edge=False, header_style="bold")
        shown.add_column(comparison.name)
        shown.add_column("broker")
        for heading in ("median", "least", "greatest", f"× {first.label}"):
            shown.add_column(heading, justify="right")
        for figure in FIGURES:
            for number, entrant in enumerate(each for each in comparison.entrants if each.results):
                title = figure.title if number == 0 else ""
                shown.add_row(title, entrant.label, *comparison.cell(entrant, figure))
        parts.append(shown)
    words = [f"{comparison.played}; {comparison.cores}."]
    if comparison.marked:
        words.append("* The generator was the limit in at least one run: not the broker's figure.")
    return Group(*parts, *map(Text, words + comparison.notes()))
