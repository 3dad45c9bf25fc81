"""Patterns in a scenario: one line gives the names of many clients and topics.

Owns: ``Pattern``, the syntax that ``scenario`` describes. Pure.

Promises: a pattern is taken apart once; expanding it is a join. A percent sign that means nothing is an error, so that
a misspelt pattern is not published on as it stands.
"""

from __future__ import annotations

import re
from typing import Final

_TOKEN: Final = re.compile(r"%(?:([cgnrm%])|\{([cn])([%/+])(\d{1,9})\})?")


class Pattern:
    """A pattern, taken apart.

    Raises:
        ValueError: a percent sign before something that is no pattern, or a division by 0.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        # Literals and variables in turn, beginning and ending with a literal.
        self._literals: list[str] = []
        self._variables: list[tuple[str, str, int]] = []
        at = 0
        literal = ""
        for found in _TOKEN.finditer(text):
            literal += text[at : found.start()]
            at = found.end()
            letter, variable, operator, number = found.groups()
            if letter == "%":
                literal += "%"
                continue
            if letter is None and variable is None:
                raise ValueError(f"{text!r}: unknown pattern at {text[found.start() : found.start() + 6]!r}")
            if variable and operator != "+" and int(number) == 0:
                raise ValueError(f"{text!r}: {found.group()} divides by 0")
            self._literals.append(literal)
            self._variables.append((letter or variable, operator or "", int(number or 0)))
            literal = ""
        self._literals.append(literal + text[at:])

    @property
    def varies(self) -> bool:
        """True if it depends on the client or on the topic's number."""
        return any(name in "cn" for name, _, _ in self._variables)

    def uses(self, variable: str) -> bool:
        """Return True if it contains the variable (c, n, g, r or m)."""
        return any(name == variable for name, _, _ in self._variables)

    def expand(self, run: str, group: str, client: int, number: int = 0, mark: str = "") -> str:
        """The text for one client and one topic (or filter) number."""
        if not self._variables:
            return self._literals[0]
        parts = [self._literals[0]]
        for (name, operator, divisor), literal in zip(self._variables, self._literals[1:], strict=True):
            parts.append(self._value(name, operator, divisor, run, group, client, number, mark))
            parts.append(literal)
        return "".join(parts)

    @staticmethod
    def _value(
        name: str, operator: str, divisor: int, run: str, group: str, client: int, number: int, mark: str
    ) -> str:
        if name == "g":
            return group
        if name == "r":
            return run
        if name == "m":
            return mark
        value = client if name == "c" else number
        if operator == "%":
            value %= divisor
        elif operator == "/":
            value //= divisor
        elif operator == "+":
            value += divisor
        return str(value)
