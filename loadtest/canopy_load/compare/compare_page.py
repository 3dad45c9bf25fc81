"""The page of a comparison: one HTML file that needs nothing else.

Owns: `compare.html` and `compare.json`, and how they are written.

Promises: all text from outside is escaped. A figure that may be the generator's is marked wherever it stands. Files are
whole or not there.

``comparison`` has computed the medians and ratios.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from canopy_load.compare.comparison import FIGURES, Comparison, Entrant, Figure
from canopy_load.report.report_files import put
from canopy_mqtt.pages import Markup, document, element, folded_text, joined, table, text

FOOTNOTE: Final = "* The generator was the limit in at least one run: the figure is not the broker's, and has no ratio."


def write(comparison: Comparison, folder: Path) -> Path:
    """Write `compare.html` and `compare.json`; see `files.put`."""
    data = json.dumps(comparison.as_json(), indent=1) + "\n"
    return put(folder, {"compare.html": page(comparison), "compare.json": data})


def page(comparison: Comparison) -> str:
    title = f"{comparison.name}: {', '.join(entrant.label for entrant in comparison.entrants)}"
    body = [
        _head(comparison, title),
        _table(comparison),
        _brokers(comparison),
        _environment(comparison),
        element("h2", "Scenario"),
        folded_text("as it was played", comparison.scenario_text),
        element("footer", "canopy load compare · this page is one file and fetches nothing."),
    ]
    return document(title, joined(body))


def _head(comparison: Comparison, title: str) -> Markup:
    lines = [element("p", "canopy load compare", class_="kicker"), element("h1", title)]
    if comparison.description:
        lines.append(element("p", comparison.description))
    lines.append(
        _quiet(f"{comparison.played}, each run on a fresh broker process · {comparison.cores} · {comparison.begun}")
    )
    return joined([*lines, *map(_warning, comparison.notes())])


def _table(comparison: Comparison) -> Markup:
    """A line for each figure and a column for each broker: brokers are fewer, and their names shorter."""
    first = comparison.first
    if first is None:
        return _warning("Nothing was measured.")
    rows = [
        [figure.title, *(_cell(comparison, entrant, figure) for entrant in comparison.entrants)] for figure in FIGURES
    ]
    shown = table(("figure", *(entrant.label for entrant in comparison.entrants)), rows, left=("figure",))
    about = f"Median of the runs, × the median of {first.label}; below it the least and the greatest."
    footnote = _quiet(FOOTNOTE) if comparison.marked else Markup()
    return joined([element("h2", "Figures"), _quiet(about), shown, footnote])


def _cell(comparison: Comparison, entrant: Entrant, figure: Figure) -> str:
    middle, low, high, relative = comparison.cell(entrant, figure)
    parts = [text(middle)]
    if relative and entrant is not comparison.first:
        parts += [Markup(" "), element("b", f"{relative}×")]
    if low:
        parts.append(element("small", f"{low} – {high}"))
    return joined(parts)


def _brokers(comparison: Comparison) -> Markup:
    rows = [[entrant.label, entrant.version or entrant.failure or ""] for entrant in comparison.entrants]
    return joined([element("h2", "Brokers"), table(("broker", "version"), rows, left=("broker", "version"))])


def _environment(comparison: Comparison) -> Markup:
    rows = [[name, value] for name, value in comparison.environment.items()]
    return joined([element("h2", "Environment"), table(("what", "value"), rows, left=("what", "value"))])


def _quiet(words: str) -> Markup:
    return element("p", words, class_="about")


def _warning(words: str) -> Markup:
    return element("p", words, class_="finding warn")
