"""HTML that cannot forget to escape.

Owns: ``Markup``, text that is HTML already, and ``element``, the one way to make it.

Promises: whatever is not a ``Markup`` is escaped, as text and as attribute.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def plain(text: str, keep: str = "") -> str:
    """The text with what cannot be seen written as escapes, but for the characters in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode("ascii") for each in text
    )


class Markup(str):
    """Text that is HTML."""

    __slots__ = ()


def text(value: str) -> Markup:
    """Text as HTML: escaped, what is invisible made visible, lines kept."""
    return value if isinstance(value, Markup) else Markup(escape(plain(value, keep="\n\t")))


def element(name: str, *children: str, **attributes: str) -> Markup:
    """An element with its children; `class_` stands for `class`, and an underscore for a hyphen."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"' for key, value in attributes.items() if value
    )
    return Markup(f"<{name}{given}>{''.join(text(child) for child in children)}</{name}>")


def joined(parts: Iterable[Markup]) -> Markup:
    """Pieces of HTML one after the other."""
    return Markup("".join(parts))


def folded_text(about: str, content: str) -> Markup:
    """A long text that is shown when one asks for it; `about` and the number of its lines stand there before."""
    lines = len(content.splitlines())
    summary = element("summary", f"{about}, {lines:,} {'line' if lines == 1 else 'lines'}")
    return element("details", summary, element("pre", content))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str] = ()) -> Markup:
    """A table; all columns to the right but those whose heading is in `left`. It scrolls by itself where it is wide."""
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
