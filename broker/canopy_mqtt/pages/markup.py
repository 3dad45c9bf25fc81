"""Makes HTML that is always escaped.

Owns `Markup`, text that is HTML already, and `element`, the only way to make it. Promises: any text that is no `Markup`
is escaped, as text and as attribute.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def plain(text: str, keep: str = "") -> str:
    """Replace invisible characters by escapes, except for the characters in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode("ascii") for each in text
    )


class Markup(str):
    """Text that is HTML."""

    __slots__ = ()


def text(value: str) -> Markup:
    """Return text as HTML: escaped, with invisible characters made visible, and line ends kept."""
    return value if isinstance(value, Markup) else Markup(escape(plain(value, keep="\n\t")))


def element(name: str, *children: str, **attributes: str) -> Markup:
    """Make an element with its children; `class_` stands for `class`, and an underscore for a hyphen."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"' for key, value in attributes.items() if value
    )
    return Markup(f"<{name}{given}>{''.join(text(child) for child in children)}</{name}>")


def joined(parts: Iterable[Markup]) -> Markup:
    return Markup("".join(parts))


def folded_text(about: str, content: str) -> Markup:
    """Make a long text that is folded under `about` and the number of its lines."""
    lines = len(content.splitlines())
    summary = element("summary", f"{about}, {lines:,} {'line' if lines == 1 else 'lines'}")
    return element("details", summary, element("pre", content))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str] = ()) -> Markup:
    """Make a table; only the columns in `left` are aligned to the left. A wide table scrolls by itself."""
    sides = ["left" if heading in left else "" for heading in headings]
    head = joined(
        element("th", heading, class_=side, scope="col") for heading, side in zip(headings, sides, strict=True)
    )
    body = joined(
        element("tr", joined(element("td", cell, class_=side) for cell, side in zip(row, sides, strict=True)))
        for row in rows
    )
    inner = element("table", element("thead", element("tr", head)), element("tbody", body))
    return element("div", inner, class_="wide", tabindex="0")
