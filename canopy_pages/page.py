"""One HTML file: how it looks, and how it is kept to itself.

Promises: nothing is fetched: a Content-Security-Policy forbids it, and allows no script but the one whose hash it
names. All text goes through ``markup``; the plots' data is JSON in which no tag can begin. Long tables are cut, with a
line that says so.

Nothing is computed: rows that are few already are handed over.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from canopy_pages.drawing import Plot
from canopy_pages.markup import Markup, element, joined, table

ROWS: Final = 200
"""Rows of a table on a page; the whole table is elsewhere, and the page says where."""
_LINKS: Final = "<!-- links to other pages -->"
_DASH: Final = "–"


def document(title: str, body: Markup, plots: Sequence[Plot] = ()) -> str:
    """A whole page; `plots` are those that `plotted` has places for in the body."""
    here = files("canopy_pages")
    style = "".join((here / name).read_text(encoding="utf-8") for name in ("look.css", "page.css"))
    drawn = [plot for plot in plots if not plot.absent]
    script = (here / "page.js").read_text(encoding="utf-8") if drawn else ""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"'sha256-{digest}'" if drawn else "'none'"
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<meta name="referrer" content="no-referrer">',
        '<link rel="icon" href="data:,">',
        element("title", title),
        f"<style>{style}</style>",
    ]
    tail = [f'<script type="application/json" id="plots">{_data(drawn)}</script>']
    tail += [f"<script>{script}</script>"] if drawn else []
    return "\n".join(["<!DOCTYPE html>", '<html lang="en">', "<head>", *head, "</head>", "<body>", _LINKS, body, *tail,
                      "</body>", "</html>", ""])  # fmt: skip


def _data(drawn: Sequence[Plot]) -> Markup:
    """The plots as JSON; with `<` written as an escape, nothing in it can end the script element."""
    data = json.dumps([plot.data() for plot in drawn], separators=(",", ":"))
    return Markup(data.replace("<", "\\u003c").replace(">", "\\u003e"))


def linked(page: str, links: Mapping[str, str], here: str = "") -> str:
    """A page that is whole, with links to others at its top: text → address, relative to it; `here` is its own text."""
    items = [element("b", text) if text == here else element("a", text, href=to) for text, to in links.items()]
    return page.replace(_LINKS, element("nav", *items), 1)


def plotted(plot: Plot) -> Markup:
    """The place of a plot, with what is said of it."""
    inside = (
        element("p", plot.absent, class_="absent soft")
        if plot.absent
        else joined([element("p", plot.about, class_="about"), element("div", class_="plot", id=f"plot-{plot.key}")])
    )
    kinds = [plot.key, *(["broad"] if plot.broad else []), *(["tall"] if plot.tall else [])]
    return element("figure", element("h3", plot.title), inside, class_=" ".join(kinds), id=plot.key)


def facts(pairs: Sequence[tuple[str, str]]) -> Markup:
    """Names with their values, in a line."""
    rows = (element("div", element("dt", name), element("dd", value)) for name, value in pairs)
    return element("dl", joined(rows), class_="facts")


def number(value: float | None) -> str:
    """A number as people read it."""
    if value is None:
        return _DASH
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


class Page:
    """One page; what is added stands in the order in which it was added."""

    def __init__(self, title: str, about: str = "", command: str = "canopy pipeline") -> None:
        self._title = title
        self._command = command
        self._parts: list[Markup] = [element("p", command, class_="kicker"), element("h1", title)]
        self._plots: list[Plot] = []
        # Plots that stand beside each other.
        self._row: list[Plot] = []
        if about:
            self._parts.append(element("p", about, class_="about"))

    def _add(self, part: Markup) -> None:
        self._flush()
        self._parts.append(part)

    def _flush(self) -> None:
        if self._row:
            self._parts.append(element("div", joined(plotted(plot) for plot in self._row), class_="plots"))
            self._plots += self._row
            self._row = []

    def heading(self, text: str) -> None:
        self._add(element("h2", text))

    def paragraph(self, text: str, tone: str = "") -> None:
        """A paragraph; `tone`: good, warn or bad (a finding), note (in small letters), or nothing."""
        finding = tone in ("good", "warn", "bad")
        self._add(element("p", text, class_=f"finding {tone}" if finding else "about" if tone == "note" else ""))

    def figures(self, figures: Mapping[str, str | int | float | None]) -> None:
        """A few numbers with what they are."""
        tiles = (
            element(
                "div",
                element("dt", name),
                element("dd", value, class_="words") if isinstance(value, str) else element("dd", number(value)),
            )
            for name, value in figures.items()
        )
        self._add(element("dl", joined(tiles), class_="figures"))

    def links(self, links: Mapping[str, str]) -> None:
        """A list of links: text → address, relative to the page."""
        self._add(element("ul", *(element("li", element("a", text, href=to)) for text, to in links.items())))

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[Any]], whole: str = "") -> None:
        """A table, of which `ROWS` rows are shown; `whole` says where the others are."""
        if not rows:
            self._add(element("p", "None.", class_="soft"))
            return
        left = [
            heading
            for at, heading in enumerate(headings)
            if not all(row[at] is None or isinstance(row[at], (int, float)) for row in rows)
        ]
        self._add(table(headings, ([_cell(cell) for cell in row] for row in rows[:ROWS]), left))
        if len(rows) > ROWS:
            where = f"; all of them are in {whole}" if whole else ""
            self.paragraph(f"{ROWS} of {len(rows):,} rows are shown{where}.", "note")

    def plot(self, plot: Plot) -> None:
        """A plot; those that follow each other stand in a grid."""
        self._row.append(plot)

    def html(self) -> str:
        """The whole page."""
        self._flush()
        footer = element("footer", f"{self._command} · this page is one file and fetches nothing.")
        return document(self._title, joined([*self._parts, footer]), self._plots)


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return number(value)
    return str(value)
