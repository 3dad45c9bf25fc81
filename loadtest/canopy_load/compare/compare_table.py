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

from canopy_load.compare.comparison import FIGURES, Comparison, Entrant, Figure


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
                shown.add_row(figure.title if number == 0 else "", entrant.label, *_cells(comparison, entrant, figure))
        parts.append(shown)
    parts += [Text(line) for line in _words(comparison)]
    return Group(*parts)


def _cells(comparison: Comparison, entrant: Entrant, figure: Figure) -> tuple[str, str, str, str]:
    spread = entrant.spread(figure)
    if spread is None:
        return "–", "", "", ""
    relative = comparison.ratio(entrant, figure)
    return (
        figure.show(spread.median) + ("*" if entrant.is_not_its(figure) else ""),
        figure.show(spread.low),
        figure.show(spread.high),
        "" if relative is None else f"{relative:.2f}",
    )


def _words(comparison: Comparison) -> list[str]:
    rounds = "round" if comparison.rounds == 1 else "rounds"
    words = [f"{comparison.rounds} {rounds}, brokers in turn; {comparison.cores}."]
    if any(entrant.limited for entrant in comparison.entrants):
        words.append("* The generator was the limit in at least one run: not the broker's figure.")
    return words + comparison.notes()
