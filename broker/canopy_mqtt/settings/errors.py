"""The error of settings that cannot be used."""

from __future__ import annotations

from collections.abc import Sequence


class SettingsError(ValueError):
    """The settings cannot be used. The text has one line for each problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(_one_line(problem) for problem in problems)
        super().__init__("\n".join(self.problems))


def _one_line(text: str) -> str:
    """Escape line ends and control characters: a name or value may contain any."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
