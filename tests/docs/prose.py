"""The sentences and the table cells of a page, for the tests of how long they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

END: Final = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]*[A-Z0-9])")
"""Where one sentence of a paragraph ends and the next one begins."""

LABEL: Final = re.compile(r"^\S[^.]{0,60}\.$")
"""The bold words that name a paragraph, and are no sentence of it."""


def sentences(page: str) -> Iterator[str]:
    """The sentences of a page's paragraphs and list items, without headings, tables, blocks of code and labels.

    A colon or a semicolon ends no sentence. A word of code counts as one word. A paragraph that does not end like a
    sentence, such as an item that is only a name, is left out.
    """
    table = False
    before = ""
    for token in MarkdownIt("commonmark").enable("table").parse(page):
        if token.type in ("table_open", "table_close"):
            table = token.type == "table_open"
        if token.type == "inline" and not table and before == "paragraph_open":
            text = _text(token.children or [])
            if re.search(r"[.!?:][\"')]*$", text):
                yield from END.split(text)
        before = token.type


def cells(page: str) -> Iterator[str]:
    """What a reader sees in each cell of the tables of a page."""
    cell = False
    for token in MarkdownIt("commonmark").enable("table").parse(page):
        if token.type == "inline" and cell:
            yield "".join(child.content or " " * child.type.endswith("break") for child in token.children or [])
        cell = token.type in ("td_open", "th_open")


def _text(children: list[Token]) -> str:
    parts: list[str] = []
    label = False
    for child in children:
        if child.type == "strong_open":
            label = not any(parts)
        elif child.type == "strong_close":
            if label and LABEL.match("".join(parts)):
                parts.clear()
        elif child.type == "code_inline":
            parts.append(" ".join("X" for _ in child.content.split()))
        else:
            parts.append(child.content or " " * child.type.endswith("break"))
    return "".join(parts).strip()
