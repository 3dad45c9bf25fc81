"""What people look at rather than read as a table: one HTML file with figures, plots and short tables.

Owns: how a page looks, and how it is kept to itself: plotly.js is in the file, nothing is fetched, and all text is
escaped. Long tables are cut, with a line that says so.

Nothing is computed: jobs hand over rows that are few already.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

ROWS: Final = 200
"""Rows of a table on a page; the whole table is in the job's output."""

STYLE: Final = """
:root {
  color-scheme: light dark;
  --ink: #1d2733; --faint: #5d6b7a; --line: #d9dfe6; --paper: #fff; --accent: #1f6f5c; --bad: #b3261e;
}
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e9ee; --faint: #9aa7b4; --line: #33404d; --paper: #151b21; --accent: #6cc3ad; --bad: #ff8a80; }
}
body {
  font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
}
h1 { font-size: 1.6rem; margin-bottom: 0; }
h2 { font-size: 1.15rem; margin-top: 2.2rem; }
a { color: var(--accent); }
.about, .note, footer { color: var(--faint); }
.good { color: var(--accent); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
.figures { display: flex; flex-wrap: wrap; gap: .6rem 2.2rem; margin: 1rem 0; }
.figures div { min-width: 7rem; }
.figures b { display: block; font-size: 1.3rem; font-variant-numeric: tabular-nums; }
.figures span { color: var(--faint); font-size: .85rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; }
td, th { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: left; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.plot { background: #fff; border-radius: 6px; margin: .8rem 0; }
"""


def number(value: float | int | None) -> str:
    """A number as people read it."""
    if value is None:
        return "–"
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


class Page:
    """One page; what is added stands in the order in which it was added."""

    def __init__(self, title: str, about: str = "") -> None:
        self._title = title
        self._parts: list[str] = [f"<h1>{escape(title)}</h1>"]
        self._plots = 0
        if about:
            self._parts.append(f'<p class="about">{escape(about)}</p>')

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def paragraph(self, text: str, tone: str = "") -> None:
        """A paragraph; `tone`: good, bad, note, or nothing."""
        self._parts.append(f'<p class="{escape(tone)}">{escape(text)}</p>' if tone else f"<p>{escape(text)}</p>")

    def figures(self, figures: Mapping[str, str | int | float | None]) -> None:
        """A few numbers with what they are."""
        cells = "".join(
            f"<div><b>{escape(value if isinstance(value, str) else number(value))}</b><span>{escape(name)}</span></div>"
            for name, value in figures.items()
        )
        self._parts.append(f'<div class="figures">{cells}</div>')

    def links(self, links: Mapping[str, str]) -> None:
        """A list of links: text → address, relative to the page."""
        items = "".join(f'<li><a href="{escape(where)}">{escape(text)}</a></li>' for text, where in links.items())
        self._parts.append(f"<ul>{items}</ul>")

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[Any]], whole: str = "") -> None:
        """A table, of which `ROWS` rows are shown; `whole` says where the others are."""
        if not rows:
            self._parts.append('<p class="note">None.</p>')
            return
        numeric = [
            all(row[at] is None or isinstance(row[at], (int, float)) for row in rows) for at in range(len(headings))
        ]
        tags = [' class="number"' if each else "" for each in numeric]
        head = "".join(f"<th{tag}>{escape(text)}</th>" for tag, text in zip(tags, headings, strict=True))
        body = "".join(
            "<tr>"
            + "".join(f"<td{tag}>{escape(_cell(cell))}</td>" for tag, cell in zip(tags, row, strict=True))
            + "</tr>"
            for row in rows[:ROWS]
        )
        self._parts.append(
            f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )
        if len(rows) > ROWS:
            where = f"; all of them are in {whole}" if whole else ""
            self._parts.append(f'<p class="note">{ROWS} of {len(rows):,} rows are shown{escape(where)}.</p>')

    def plot(self, figure: Figure, caption: str = "") -> None:
        """A plotly figure."""
        from plotly.io import to_html

        # Room for the label of the last tick, which is centred below it.
        figure.update_layout(
            template="plotly_white",
            margin={"l": 80, "r": 60, "t": 40, "b": 60},
            font={"family": "system-ui, sans-serif"},
        )
        figure.update_xaxes(automargin=True)
        figure.update_yaxes(automargin=True)
        # Ids of its own, so that the same figures make the same page.
        self._plots += 1
        drawn = to_html(
            figure,
            full_html=False,
            include_plotlyjs=self._plots == 1,
            div_id=f"plot-{self._plots}",
            config={"displaylogo": False},
        )
        self._parts.append(f'<div class="plot">{drawn}</div>')
        if caption:
            self._parts.append(f'<p class="note">{escape(caption)}</p>')

    def html(self) -> str:
        """The whole page."""
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(self._title)}</title>'
            f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
            + "".join(self._parts)
            + "<footer><p>canopy pipeline · this page is one file and fetches nothing.</p></footer></body></html>"
        )

    def write(self, path: Path) -> None:
        """Put the page under its name, whole."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.part")
        draft.write_text(self.html(), encoding="utf-8")
        os.replace(draft, path)


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return number(value)
    return str(value)
