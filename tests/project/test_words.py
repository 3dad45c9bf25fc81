"""The prose of the core and of the network: who does what, without words that say it of no one."""

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


def found(path: Path) -> Iterator[str]:
    """Yield what a reader would stumble over, with its line."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT or token.string.startswith('"""'):
            wrong = PROSE.search(token.string) or FIRST.match(token.string) or COMMENT.match(token.string)
            if wrong:
                yield f"{path.relative_to(ROOT)}:{token.start[0]}: {wrong[0]}"


def test_the_prose_says_who_does_what() -> None:
    rooms = [ROOT / "broker" / "canopy_mqtt" / room for room in ("core", "net")]
    assert [line for room in rooms for path in sorted(room.rglob("*.py")) for line in found(path)] == []
