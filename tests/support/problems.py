"""Returns the problems of wrong settings without the lines of the file: those have tests of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.loader import load_settings


def unplaced(problems: Iterable[str]) -> list[str]:
    """The problems, each without the line that it names."""
    return [re.sub(r"^(\S+): line \d+: (?!not )", r"\1: ", problem, count=1) for problem in problems]


def problem_of(name: str, tables: str) -> str:
    """The one thing that is wrong with this list of tables of a setting, without where it stands."""
    with pytest.raises(SettingsError) as caught:
        load_settings(environ={f"CANOPY_{name}": tables})
    (told,) = caught.value.problems
    return told.removeprefix(f"environment variable CANOPY_{name}: ")
