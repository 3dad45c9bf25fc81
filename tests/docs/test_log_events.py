"""docs/logs.md names every event that the broker logs, and every cause of an end, and no other."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from canopy_mqtt.core import causes
from tests.support.tools import load

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "logs.md").read_text(encoding="utf-8")


@cache
def code() -> Any:
    """What the calls say of each event."""
    return load("log_events").events(ROOT / "broker")


def first_columns(after: str) -> set[str]:
    """What stands in backticks in the first column of the tables below a heading, up to the next one."""
    text = GUIDE.partition(f"\n{after}\n")[2].partition("\n## ")[0] if after else GUIDE
    cells = re.findall(r"^\| (`.+?`) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def logged() -> set[str]:
    found = set(code())
    # What is told by other ways: lines about clients, exceptions, and the log's own losses.
    from canopy_mqtt.net.connections.connection_log import FIELDS, NAMES

    found |= {*FIELDS, *NAMES, "a hook keeps the event loop waiting", "log lines lost"}
    return found | {f"{event}{again}" for event in ("a hook failed", "internal error") for again in ("", ", again")}


def test_every_event_is_explained_and_none_that_there_is_not() -> None:
    listed = first_columns("") - causes_of_an_end()
    assert listed == logged()
    assert len(listed) > 40


def test_every_row_has_the_levels_and_the_fields_of_its_events_and_no_other_field() -> None:
    for line in GUIDE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| `") or len(cells) != 4:
            continue
        assert cells[1], f"{line}: a level is missing"
        named = [code()[name] for name in re.findall(r"`([^`]+)`", cells[0]) if name in code()]
        fields = {name for event in named for name in event.fields}
        shown = set(re.findall(r"`(\w+)`", cells[3]))
        for level in {level for event in named for level in event.levels}:
            assert level in cells[1], f"{line}: {level}"
        assert fields <= shown, f"{line}: {fields - shown}"
        if named and not any(event.open for event in named):
            assert shown == fields, f"{line}: {shown - fields}"
    assert len([event for event in code().values() if not event.open]) > 40


def causes_of_an_end() -> set[str]:
    return {value for name, value in vars(causes).items() if name.isupper() and isinstance(value, str)}


def test_every_cause_of_an_end_is_explained() -> None:
    table = GUIDE.partition("| cause | what happened |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == causes_of_an_end()
