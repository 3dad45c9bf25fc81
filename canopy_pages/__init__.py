"""Pages for people: one HTML file each, with charts and tables, light or dark. The load report, its comparison and the
jobs over recorded segments use it; it imports none of them, and nothing that is not Python's own.

A page's parts: `Page` (all of one, in order) or `document` of `element`s; `Chart` with `Series` and `Stage`s, put in
its place by `plotted`, with a table of its values; `barred` for bars with names; `table`, `facts`, `folded_text`. uPlot
is here once, for these pages and the broker's.
"""

from canopy_pages.charts import (
    AMBER,
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    RED,
    TIME,
    VIOLET,
    Bar,
    Chart,
    Series,
    Stage,
    label,
    over,
)
from canopy_pages.markup import Markup, element, folded_text, joined, plain, table, text
from canopy_pages.page import Page, barred, document, facts, linked, number, plotted

__all__ = [
    "AMBER",
    "BLUE",
    "COLOURS",
    "GREEN",
    "GREY",
    "RED",
    "TIME",
    "VIOLET",
    "Bar",
    "Chart",
    "Markup",
    "Page",
    "Series",
    "Stage",
    "barred",
    "document",
    "element",
    "facts",
    "folded_text",
    "joined",
    "label",
    "linked",
    "number",
    "over",
    "plain",
    "plotted",
    "table",
    "text",
]
