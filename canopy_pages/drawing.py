"""What plots are made of: data that `page.js` draws.

Owns: ``Plot``, the colours, and which keys of a trace or a layout `page.js` knows. Names and meaning of these are
plotly's, of which it draws a small part: lines, bars, cells (heatmap) and trees, on linear, logarithmic and time axes
(seconds since 1970). Bars with texts on their axis have a place each.

Refuses: a key that `page.js` would pass over in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from canopy_pages.markup import plain

BLUE: Final = "#3d84c6"
GREEN: Final = "#2f9e6e"
AMBER: Final = "#cf8a1c"
RED: Final = "#d2455b"
VIOLET: Final = "#8b68d0"
GREY: Final = "#85909c"
"""Of a middle lightness: they have to do before black and white."""
COLOURS: Final = (BLUE, AMBER, GREEN, RED, VIOLET, "#3d8a99", "#a85b00", GREY)

SHADE: Final = "rgba(61, 132, 198, 0.09)"

Data = dict[str, Any]

POWERS: Final[Data] = {"type": "log"}
"""An axis of powers of ten."""

_TRACE: Final[Mapping[str, frozenset[str]]] = {
    "scatter": frozenset({"type", "mode", "name", "x", "y", "yaxis", "line", "marker"}),
    "bar": frozenset({"type", "name", "x", "y", "yaxis", "width", "marker", "error_y"}),
    "heatmap": frozenset({"type", "x", "y", "z", "zmin", "zmax", "customdata", "colorbar"}),
    "treemap": frozenset({"type", "ids", "labels", "parents", "values", "paths", "notes", "unit"}),
}
_AXIS: Final = frozenset({"type", "title", "range", "rangemode", "tickvals", "ticktext", "ticksuffix", "matches"})
_SECOND: Final = _AXIS | {"domain", "overlaying"}
_LAYOUT: Final[Mapping[str, frozenset[str] | None]] = {
    "xaxis": _AXIS,
    "yaxis": _SECOND,
    "yaxis2": _SECOND,
    "showlegend": None,
    "barmode": None,
    "shapes": None,
    "annotations": None,
}


@dataclass
class Plot:
    """One plot, or the reason why there is none (`absent`)."""

    key: str
    title: str
    about: str
    """A sentence under the title: what is drawn, and how to read it."""
    traces: list[Data] = field(default_factory=list)
    layout: Data = field(default_factory=dict)
    absent: str = ""
    broad: bool = True
    """Over the whole width; the others stand two beside each other where there is room."""
    tall: bool = False

    def data(self) -> Data:
        """As `page.js` reads it.

        Raises:
            ValueError: something in it means nothing there.
        """
        for trace in self.traces:
            _known(trace, _TRACE[trace["type"]], self.key)
        _known(self.layout, _LAYOUT.keys(), self.key)
        for name, value in self.layout.items():
            keys = _LAYOUT[name]
            if keys is not None:
                _known(value, keys, f"{self.key}.{name}")
        return {"key": self.key, "title": self.title, "traces": self.traces, "layout": self.layout}


def _known(given: Mapping[str, Any], keys: Any, where: str) -> None:
    unknown = given.keys() - keys
    if unknown:
        raise ValueError(f"plot {where}: page.js knows no {', '.join(sorted(unknown))}")


def label(text: str, at_most: int = 40) -> str:
    """A text from outside, as it can be shown: in a line, and not too long."""
    shown = plain(text)
    return shown if len(shown) <= at_most else shown[: at_most - 1] + "…"


def line(name: str, x: Sequence[float | None], y: Sequence[float | None], colour: str, **more: Any) -> Data:
    """A line through points, with a gap where there is a None; `more` goes into the trace."""
    drawn = {"color": colour, "width": 1.6, **more.pop("line", {})}
    mode = "lines" if len(x) > 1 else "markers"
    return {"type": "scatter", "mode": mode, "name": name, "x": list(x), "y": list(y), "line": drawn, **more}


def bars(name: str, x: Sequence[float | str], y: Sequence[float], colour: str, **more: Any) -> Data:
    """Bars; where `x` are texts, they stand below their bars."""
    return {"type": "bar", "name": name, "x": list(x), "y": list(y), "marker": {"color": colour}, **more}


def treemap(
    unit: str, nodes: Sequence[tuple[str, str, str, float, str, str]], key: str, title: str, about: str
) -> Plot:
    """A tree as rectangles; a node is its id, its parent's id, name, value, path, and what else is told of it.

    The root's parent is an id that no node has.
    """
    ids, parents, labels, values, paths, notes = ([node[at] for node in nodes] for at in (0, 1, 2, 3, 4, 5))
    trace = {
        "type": "treemap", "ids": ids, "parents": parents, "labels": labels, "values": values, "paths": paths,
        "notes": notes, "unit": unit,
    }  # fmt: skip
    return Plot(key, title, about, [trace], tall=True)
