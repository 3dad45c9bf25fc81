"""The prose of the broker: who does what, without words that say it of no one."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.support.tools import ROOT

PROSE = re.compile(
    r"\b(nobody|whoever|anybody|somebody|so many|in a while|what is (left|there|behind))\b", re.IGNORECASE
)
FIRST = re.compile(r'"""(What|Whether|Who|How)\b')
"""Docstrings begin with who does it, or with an imperative."""
COMMENT = re.compile(r"# +It\b")
"""What "it" is stands in the code, where no reader looks first."""


UNREAD = {"cluster", "store"}
"""Rooms whose prose does not pass yet."""


def found(path: Path) -> Iterator[str]:
    """Yield what a reader would stumble over, with its line."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT or token.string.startswith('"""'):
            wrong = PROSE.search(token.string) or FIRST.match(token.string) or COMMENT.match(token.string)
            if wrong:
                yield f"{path.relative_to(ROOT)}:{token.start[0]}: {wrong[0]}"


def test_the_prose_says_who_does_what() -> None:
    rooms = [each for each in (ROOT / "broker" / "canopy_mqtt").iterdir() if each.is_dir() and each.name not in UNREAD]
    assert len(rooms) > 15
    assert [line for room in rooms for path in sorted(room.rglob("*.py")) for line in found(path)] == []


OLD_NAMES = re.compile(
    r"\b(_?(?:LARGEST|LONGEST|MOST)_[A-Z0-9_]+|\w*sub_queues?\w*|SubscriptionQueue|(?:inner|outer)_(?:topic|filter|properties))\b"
)
"""A bound is `MAX_` and a noun; terms of messages are no queue; topics are mounted and unmounted."""


def test_one_thing_has_one_name() -> None:
    packages = ("broker", "loadtest", "pipeline", "benchmarks", "tools", "tests")
    files = [path for package in packages for path in sorted((ROOT / package).rglob("*.py")) if path != Path(__file__)]
    found = {str(path.relative_to(ROOT)): OLD_NAMES.findall(path.read_text(encoding="utf-8")) for path in files}
    assert {path: names for path, names in found.items() if names} == {}
    assert len(found) > 500
