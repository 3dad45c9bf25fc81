"""Makes one HTML file of its parts.

Promises: nothing is fetched: a Content-Security-Policy forbids it, and allows only the script whose hash it names. All
text goes through `markup`; the charts' data is JSON in which no tag can begin. Long tables are cut, with a line that
says so. Each chart has a table of its values, with or without scripts. The caller computes the rows, and passes few.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from canopy_mqtt.pages.charts import TIME, Bar, Chart
from canopy_mqtt.pages.markup import Markup, element, folded_text, joined, table

ROWS: Final = 200
"""Rows of a table on a page; the page says where the whole table is."""
VALUES: Final = 100
"""Rows of the table of a chart's values."""
_LINKS: Final = "<!-- links to other pages -->"
_DASH: Final = "–"


def document(title: str, body: Markup, charts: Sequence[Chart] = ()) -> str:
    """Make a whole page; `charts` are those that `plotted` has placed in the body."""
    drawn = [chart for chart in charts if not chart.absent]
    style = _files(*(["uPlot.min.css"] if drawn else []), "look.css", "page.css")
    script = _files("uPlot.iife.min.js", "page.js") if drawn else ""
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
    tail = [f'<script type="application/json" id="charts">{_data(drawn)}</script>']
    tail += [f"<script>{script}</script>"] if drawn else []
    return "\n".join(["<!DOCTYPE html>", '<html lang="en">', "<head>", *head, "</head>", "<body>", _LINKS, body, *tail,
                      "</body>", "</html>", ""])  # fmt: skip


def _files(*names: str) -> str:
    here = files("canopy_mqtt.pages")
    return "\n".join((here / name).read_text(encoding="utf-8") for name in names)


def _data(drawn: Sequence[Chart]) -> Markup:
    """Return the charts as JSON; `<` is escaped, so that the data cannot end the script element."""
    data = json.dumps([chart.data() for chart in drawn], separators=(",", ":"))
    return Markup(data.replace("<", "\\u003c").replace(">", "\\u003e"))


def linked(page: str, links: Mapping[str, str], here: str = "") -> str:
    """Return a complete page with links to others at its top: text → relative address; `here` is its own text."""
    items = [element("b", text) if text == here else element("a", text, href=to) for text, to in links.items()]
    return page.replace(_LINKS, element("nav", *items), 1)


def plotted(chart: Chart) -> Markup:
    """Make the place of a chart, with its title, its explanation, and a table of its values."""
    if chart.absent:
        return _figure(chart.key, chart.title, chart.broad, element("p", chart.absent, class_="absent soft"))
    inside = [
        element("p", chart.about, class_="about"),
        element("div", class_="chart", id=f"chart-{chart.key}"),
        _values(chart),
    ]
    return _figure(chart.key, chart.title, chart.broad, *inside)


def _figure(key: str, title: str, broad: bool, *inside: Markup) -> Markup:
    kinds = f"{key} broad" if broad else key
    return element("figure", element("h3", title), *inside, class_=kinds, id=key)


def _values(chart: Chart) -> Markup:
    """Make the folded values of a chart; of many places only every second, third … one."""
    step = -(-len(chart.x) // VALUES) or 1
    rows = [
        [chart.place(place), *(number(each.values[at]) for each in chart.series)]
        for at, place in enumerate(chart.x)
        if at % step == 0
    ]
    units = {False: f", {chart.unit}" if chart.unit else "", True: f", {chart.right_unit}" if chart.right_unit else ""}
    headings = [chart.x_unit, *(f"{each.name}{units[each.right]}" for each in chart.series)]
    shown = (
        f"{len(rows)} of {len(chart.x):,} rows" if step > 1 else f"{len(rows)} {'row' if len(rows) == 1 else 'rows'}"
    )
    left = (TIME,) if chart.x_unit == TIME else ()
    return element("details", element("summary", f"as a table, {shown}"), table(headings, rows, left), class_="values")


def barred(key: str, title: str, about: str, bars: Iterable[Bar], broad: bool = False) -> Markup:
    """Make named bars as a figure, one below the other; the longest takes the whole width. Values are not negative."""
    told = list(bars)
    most = max((max(each.value, each.high or 0.0) for each in told), default=0.0) or 1.0
    rows = []
    for each in told:
        parts = [element("i", class_="bar", style=f"width:{100 * each.value / most:.4g}%;background:{each.colour}")]
        if each.low is not None and each.high is not None:
            at, length = 100 * each.low / most, 100 * (each.high - each.low) / most
            parts.append(element("i", class_="whisker", style=f"left:{at:.4g}%;width:{length:.4g}%"))
        indent = f"padding-left:{0.7 + 0.9 * each.depth:.4g}rem" if each.depth else ""
        rows.append(
            element(
                "tr",
                element("td", each.name, class_="left", style=indent),
                element("td", each.text),
                element("td", *parts, class_="length"),
            )
        )
    inside = element("table", element("tbody", joined(rows)), class_="bars")
    return _figure(key, title, broad, element("p", about, class_="about"), element("div", inside, class_="wide"))


def facts(pairs: Sequence[tuple[str, str]]) -> Markup:
    """Make a line of names with their values."""
    rows = (element("div", element("dt", name), element("dd", value)) for name, value in pairs)
    return element("dl", joined(rows), class_="facts")


def number(value: float | None) -> str:
    if value is None:
        return _DASH
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


class Page:
    """One page: its parts stand in the order in which they were added."""

    def __init__(self, title: str, about: str = "", command: str = "canopy pipeline") -> None:
        self._title = title
        self._command = command
        self._parts: list[Markup] = [element("p", command, class_="kicker"), element("h1", title)]
        self._charts: list[Chart] = []
        # Figures that stand beside each other.
        self._row: list[Markup] = []
        if about:
            self._parts.append(element("p", about, class_="about"))

    def _add(self, part: Markup) -> None:
        self._flush()
        self._parts.append(part)

    def _flush(self) -> None:
        if self._row:
            self._parts.append(element("div", joined(self._row), class_="plots"))
            self._row = []

    def heading(self, text: str) -> None:
        self._add(element("h2", text))

    def paragraph(self, text: str, tone: str = "") -> None:
        """Add a paragraph; `tone`: good, warn or bad (a finding), note (small letters), or empty."""
        finding = tone in ("good", "warn", "bad")
        self._add(element("p", text, class_=f"finding {tone}" if finding else "about" if tone == "note" else ""))

    def figures(self, figures: Mapping[str, str | int | float | None]) -> None:
        """Add a few numbers with their names."""
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
        """Add a list of links: text → address, relative to the page."""
        self._add(element("ul", *(element("li", element("a", text, href=to)) for text, to in links.items())))

    def folded(self, about: str, content: str) -> None:
        """Add a long text that is folded under `about`."""
        self._add(folded_text(about, content))

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[Any]], whole: str = "") -> None:
        """Add a table, cut to `ROWS` rows; `whole` says where the others are."""
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

    def plot(self, chart: Chart) -> None:
        """Add a chart; figures that follow each other stand in a grid."""
        self._row.append(plotted(chart))
        self._charts.append(chart)

    def bars(self, key: str, title: str, about: str, bars: Iterable[Bar], broad: bool = False) -> None:
        """Add named bars (`barred`), in the same grid."""
        self._row.append(barred(key, title, about, bars, broad))

    def html(self) -> str:
        self._flush()
        footer = element("footer", f"{self._command} · this page is one file and fetches nothing.")
        return document(self._title, joined([*self._parts, footer]), self._charts)


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return number(value)
    return str(value)
