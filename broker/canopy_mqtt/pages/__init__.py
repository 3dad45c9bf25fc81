"""HTML pages for people: one file each, with charts and tables, light or dark.

The load report, its comparison and the jobs over recorded segments use it; it imports only the standard library. `Page`
collects the parts of a page in order; `document` makes one of `element`s; `plotted` places a `Chart` of `Series` and
`Stage`s, with a table of its values; `barred`, `table`, `facts` and `folded_text` make further parts. uPlot is here
once, for these pages and the broker's.
"""

from canopy_mqtt.pages.charts import (
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
from canopy_mqtt.pages.markup import Markup, element, folded_text, joined, plain, table, text
from canopy_mqtt.pages.page import Page, barred, document, facts, linked, number, plotted

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
