"""Limits: docs/limits.md names settings that there are, and each bound of the settings has a test."""

from __future__ import annotations

import re
from pathlib import Path

from canopy_mqtt.settings import Settings, flatten
from tests.support.runs import for_each

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/limits.md").read_text(encoding="utf-8")
SETTINGS = flatten(Settings())
BOUNDS = ("limits", "session", "queue", "retained", "http", "recorder", "log", "otel")
"""The sections whose numbers bound memory or time."""

TESTED = {
    word
    for file in (ROOT / "tests").rglob("*.py")
    if file.relative_to(ROOT / "tests").parts[0] not in ("settings", "docs")
    for word in re.findall(r"\w+", file.read_text(encoding="utf-8"))
}


def test_settings_that_are_named_exist() -> None:
    named = set(re.findall(r"`([a-z]+\.[a-z_]+)`", PAGE))
    assert len(named) > 20
    assert named - SETTINGS.keys() == set()


@for_each("section", BOUNDS)
def test_each_bound_is_in_a_test_of_what_it_bounds(section: str) -> None:
    bounds = {
        name.partition(".")[2]
        for name, value in SETTINGS.items()
        if name.startswith(f"{section}.") and type(value) in (int, float)
    }
    assert bounds - TESTED == set()
