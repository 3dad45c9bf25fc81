"""docs/limits.md: its settings exist, and its tests stand where it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker.settings import Settings, flatten

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs/limits.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and line.count("|") > 3 and not line.startswith("| limit |")
]
KEYS = set(flatten(Settings()))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_row_is_true(row: list[str]) -> None:
    assert len(row) == 6
    for name in re.findall(r"`([a-z_]+\.[a-z_]+)`", row[2]):
        assert name in KEYS
    for file, test in re.findall(r"(tests/[\w/]+\.py)(?:::([A-Za-z_]\w*))?", row[5]):
        source = (ROOT / file).read_text(encoding="utf-8")
        assert test in source


def test_every_limit_of_the_settings_has_a_row() -> None:
    """Those of the section that is there for it."""
    named = {name for row in ROWS for name in re.findall(r"`([a-z_]+\.[a-z_]+)`", row[2] + row[1])}
    assert sorted(key for key in KEYS if key.startswith("limits.") and key not in named) == []
