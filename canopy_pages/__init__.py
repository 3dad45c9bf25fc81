"""Pages for people: one HTML file each, with plots, light or dark. The load report, its comparison and the jobs over
recorded segments use it; it imports none of them, and nothing that is not Python's own.
"""

from canopy_pages.drawing import (
    AMBER,
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    POWERS,
    RED,
    SHADE,
    VIOLET,
    Data,
    Plot,
    bars,
    label,
    line,
    treemap,
)
from canopy_pages.markup import Markup, element, folded_text, joined, plain, table, text
from canopy_pages.page import Page, document, facts, linked, number, plotted

__all__ = [
    "AMBER",
    "BLUE",
    "COLOURS",
    "GREEN",
    "GREY",
    "POWERS",
    "RED",
    "SHADE",
    "VIOLET",
    "Data",
    "Markup",
    "Page",
    "Plot",
    "bars",
    "document",
    "element",
    "facts",
    "folded_text",
    "joined",
    "label",
    "line",
    "linked",
    "number",
    "plain",
    "plotted",
    "table",
    "text",
    "treemap",
]
