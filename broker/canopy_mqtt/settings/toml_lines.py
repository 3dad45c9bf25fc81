"""Finds the line of each key and each list item in a TOML document: `tomllib` returns only values.

Owns one scan over a text that `tomllib` has accepted: it is valid TOML 1.0, so that a few patterns suffice. The scan
takes linear time, and recurses no deeper than the values are nested.
"""

from __future__ import annotations

import re
import tomllib
from typing import Final

from canopy_mqtt.settings.descriptions import Steps

_SPACE: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
"""White space and comments between values."""

_KEY: Final = re.compile(r"""[ \t]*("(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[A-Za-z0-9_-]+)[ \t]*""")

_STRING: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|' + r"'''.*?'{3,5}|" + r'"(?:[^"\\\n]|\\.)*"|' + r"'[^'\n]*'", re.DOTALL
)

_PLAIN: Final = re.compile(r"[^,\]}#\r\n]+")
"""A number, a date, true or false."""


def lines(text: str) -> dict[Steps, int]:
    """Return the line, from 1, of each table, key and list item in a document that `tomllib` can read."""
    return _Scan(text).found


class _Scan:
    """One pass over a document."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._counted_to = 0
        self.found: dict[Steps, int] = {}
        # How many tables there are so far in each list of tables.
        self._tables: dict[Steps, int] = {}
        table: Steps = ()
        self._skip()
        while self._at < len(text):
            if text.startswith("[", self._at):
                table = self._header()
            else:
                self._pair(table)
            self._skip()

    def _skip(self) -> None:
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _note(self, path: Steps) -> None:
        """Note the line of `path`. The first one counts, if a table is named again."""
        self._line += self._text.count("\n", self._counted_to, self._at)
        self._counted_to = self._at
        self.found.setdefault(path, self._line)

    def _keys(self) -> list[str]:
        keys: list[str] = []
        while True:
            match = _KEY.match(self._text, self._at)
            assert match is not None
            name = match[1]
            if name[0] in "\"'":
                name = tomllib.loads(f"k = {name}")["k"]
            keys.append(name)
            self._at = match.end()
            if not self._text.startswith(".", self._at):
                return keys
            self._at += 1

    def _header(self) -> Steps:
        """Parse [table] or [[table]], and return the path for the following keys."""
        start = self._at
        listed = self._text.startswith("[[", start)
        self._at += 2 if listed else 1
        keys = self._keys()
        end = self._at + (2 if listed else 1)
        path: Steps = ()
        self._at = start
        for key in keys[:-1]:
            path = (*path, key)
            self._note(path)
            path = self._last(path)
        path = (*path, keys[-1])
        self._note(path)
        if listed:
            self._tables[path] = self._tables.get(path, 0) + 1
        path = self._last(path)
        self._note(path)
        self._at = end
        return path

    def _last(self, path: Steps) -> Steps:
        """Return the path of a table; in a list of tables, that of the last one."""
        count = self._tables.get(path, 0)
        return (*path, count - 1) if count else path

    def _pair(self, table: Steps) -> None:
        start = self._at
        path = table
        keys = self._keys()
        end = self._at
        self._at = start
        for key in keys:
            path = (*path, key)
            self._note(path)
        self._at = end + 1
        self._value(path)

    def _value(self, path: Steps) -> None:
        self._skip()
        text = self._text
        if text.startswith("[", self._at):
            self._items(path)
        elif text.startswith("{", self._at):
            self._inline(path)
        else:
            match = _STRING.match(text, self._at) or _PLAIN.match(text, self._at)
            assert match is not None
            self._at = match.end()

    def _items(self, path: Steps) -> None:
        self._at += 1
        self._skip()
        number = 0
        while not self._text.startswith("]", self._at):
            self._note((*path, number))
            self._value((*path, number))
            self._skip()
            if self._text.startswith(",", self._at):
                self._at += 1
                self._skip()
            number += 1
        self._at += 1

    def _inline(self, path: Steps) -> None:
        self._at += 1
        self._skip()
        while not self._text.startswith("}", self._at):
            self._pair(path)
            self._skip()
            if self._text.startswith(",", self._at):
                self._at += 1
                self._skip()
        self._at += 1
