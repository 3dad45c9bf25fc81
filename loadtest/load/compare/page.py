"""The page of a comparison: one HTML file that needs nothing else.

Owns: `compare.html` and `compare.json`, and how they are written.

Promises: the page holds its own plotly.js and loads nothing; whatever came from outside (names, errors, the scenario's
text) is escaped. A figure that may be the generator's is marked wherever it stands. Files are whole or not there.

``comparison`` has computed the medians and ratios.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Final

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from loadtest.load.compare.comparison import FIGURES, Comparison, Entrant, Figure, Spread

MARK: Final = "*"
FOOTNOTE: Final = "* The generator was the limit in at least one run: the figure is not the broker's, and has no ratio."
COLOURS: Final = ("#1b7f5c", "#a85b00", "#4063b8", "#a23b72", "#5c6b2f", "#7a5195", "#3d8a99", "#8a5a44")
PLOT_HEIGHT: Final = 270  # pixels

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1f2328; --quiet: #59636e; --line: #d1d9e0; --paper: #fff; --warn: #9a5b00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --quiet: #9198a1; --line: #3d444d; --paper: #0d1117; --warn: #e3a23c; }
}
body {
  font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 0 auto; max-width: 76rem; padding: 1.5rem;
}
h1 { font-size: 1.5rem; margin: 0; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; }
.quiet { color: var(--quiet); }
.warn { color: var(--warn); font-weight: 600; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; }
td small { color: var(--quiet); display: block; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: 1rem; }
.plots > * { min-width: 0; }
pre { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; padding: .8rem; font-size: 13px; }
"""

# Axes and words in the page's own colours, also when those change while it is open.
SCRIPT: Final = """
const dark = matchMedia('(prefers-color-scheme: dark)');
function paint() {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue('--ink').trim(), line = style.getPropertyValue('--line').trim();
  const axes = {'font.color': ink, 'xaxis.color': ink, 'yaxis.color': ink, 'yaxis.gridcolor': line};
  for (const plot of document.querySelectorAll('.plotly-graph-div'))
    Plotly.update(plot, {'error_y.color': ink}, axes);
}
paint();
// Each was drawn before the next had its place beside it.
for (const plot of document.querySelectorAll('.plotly-graph-div')) Plotly.Plots.resize(plot);
dark.addEventListener('change', paint);
"""


class PageError(Exception):
    """The folder cannot be written to; the message is one line for people."""


def write(comparison: Comparison, folder: Path) -> tuple[Path, Path]:
    """Write `compare.html` and `compare.json` into a folder, which is made where there is none; both paths.

    Raises:
        PageError: that is not possible.
    """
    contents = {"compare.json": json.dumps(comparison.as_json(), indent=1) + "\n", "compare.html": page(comparison)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            part = folder / f".{name}.part"
            part.write_text(text, encoding="utf-8")
            part.replace(folder / name)
    except OSError as error:
        raise PageError(
            f"{folder}: cannot be written to ({error.strerror or error}): choose another with --out"
        ) from None
    return folder / "compare.html", folder / "compare.json"


def page(comparison: Comparison) -> str:
    """The whole page."""
    title = f"{comparison.name}: {', '.join(entrant.label for entrant in comparison.entrants)}"
    body = "\n".join(
        (
            _head(comparison, title),
            _table(comparison),
            _plots(comparison),
            _brokers(comparison),
            _environment(comparison),
            f"<h2>Scenario</h2>\n<pre>{escape(comparison.scenario_text)}</pre>",
        )
    )
    return (
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n<script>{get_plotlyjs()}</script>\n</head>\n"
        f"<body>\n{body}\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _head(comparison: Comparison, title: str) -> str:
    rounds = "round" if comparison.rounds == 1 else "rounds"
    lines = [
        f"<h1>{escape(title)}</h1>",
        _paragraph(comparison.description) if comparison.description else "",
        _paragraph(
            f"{comparison.rounds} {rounds}, brokers in turn, each run on a fresh broker process · {comparison.cores} · "
            f"{comparison.begun}",
            "quiet",
        ),
    ]
    if comparison.own_limit is not None:
        lines.append(_paragraph(f"The generator's own limit: {comparison.own_limit}.", "quiet"))
    if comparison.interrupted:
        lines.append(_paragraph("Interrupted: not all rounds were played.", "warn"))
    lines += [_paragraph(remark, "warn") for remark in comparison.remarks]
    lines += [
        _paragraph(f"{entrant.label}: {note}", "warn") for entrant in comparison.entrants for note in entrant.notes()
    ]
    return "\n".join(line for line in lines if line)


def _table(comparison: Comparison) -> str:
    first = comparison.first
    if first is None:
        return _paragraph("Nothing was measured.", "warn")
    head = "".join(f"<th>{escape(figure.title)}</th>" for figure in FIGURES)
    rows = []
    for entrant in comparison.entrants:
        cells = "".join(f"<td>{_cell(comparison, entrant, figure)}</td>" for figure in FIGURES)
        rows.append(f"<tr><th>{escape(entrant.label)}</th>{cells}</tr>")
    marked = any(entrant.limited for entrant in comparison.entrants)
    return (
        "<h2>Figures</h2>\n"
        + _paragraph(
            f"Median of the runs, × the median of {first.label}; below it the least and the greatest.", "quiet"
        )
        + f'\n<div class="wide"><table>\n<tr><th></th>{head}</tr>\n'
        + "\n".join(rows)
        + "\n</table></div>"
        + ("\n" + _paragraph(FOOTNOTE, "quiet") if marked else "")
    )


def _cell(comparison: Comparison, entrant: Entrant, figure: Figure) -> str:
    spread = entrant.spread(figure)
    if spread is None:
        return "–"
    text = escape(figure.show(spread.median)) + (MARK if entrant.is_not_its(figure) else "")
    relative = comparison.ratio(entrant, figure)
    if relative is not None and entrant is not comparison.first:
        text += f" <b>{relative:.2f}×</b>"
    return f"{text}<small>{escape(figure.show(spread.low))} – {escape(figure.show(spread.high))}</small>"


def _plots(comparison: Comparison) -> str:
    drawn = [plot for figure in FIGURES if (plot := _plot(comparison, figure))]
    if not drawn:
        return ""
    note = _paragraph("Bars: medians. Whiskers: the least and the greatest of the runs.", "quiet")
    return f'<h2>Bars</h2>\n{note}\n<div class="plots">\n' + "\n".join(drawn) + "\n</div>"


def _plot(comparison: Comparison, figure: Figure) -> str:
    shown = [
        (number, entrant, spread)
        for number, entrant in enumerate(comparison.entrants)
        if (spread := entrant.spread(figure)) is not None
    ]
    if not shown:
        return ""
    bars = go.Bar(
        x=[_bar_label(entrant, figure, spread) for _, entrant, spread in shown],
        y=[spread.median for _, _, spread in shown],
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [spread.high - spread.median for _, _, spread in shown],
            "arrayminus": [spread.median - spread.low for _, _, spread in shown],
        },
        marker={"color": [COLOURS[number % len(COLOURS)] for number, _, _ in shown]},
        hoverinfo="x+y",
    )
    drawing = go.Figure(bars)
    drawing.update_layout(
        title={"text": f"{figure.title} ({figure.better} is good)", "font": {"size": 14}},
        height=PLOT_HEIGHT,
        margin={"l": 55, "r": 15, "t": 40, "b": 45},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=False,
        yaxis={"rangemode": "tozero"},
    )
    options = {"displayModeBar": False, "responsive": True}
    drawn: str = drawing.to_html(full_html=False, include_plotlyjs=False, config=options)
    return drawn


def _bar_label(entrant: Entrant, figure: Figure, spread: Spread) -> str:
    """The broker with the figure below it. plotly reads some tags in it, as HTML."""
    mark = MARK if entrant.is_not_its(figure) else ""
    return f"{escape(entrant.label)}<br>{escape(figure.show(spread.median))}{mark}"


def _brokers(comparison: Comparison) -> str:
    rows = [(entrant.label, entrant.version or entrant.failure or "") for entrant in comparison.entrants]
    return "<h2>Brokers</h2>\n" + _pairs(rows)


def _environment(comparison: Comparison) -> str:
    return "<h2>Environment</h2>\n" + _pairs(comparison.environment.items())


def _pairs(rows: Iterable[tuple[str, str]]) -> str:
    lines = "\n".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f'<div class="wide"><table>\n{lines}\n</table></div>'


def _paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"
