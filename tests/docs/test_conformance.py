"""The conformance table's tool: on small trees made here, and on the project's own statement files.

Owns the proof that `tools/conformance.py` finds tags where they stand and objects to what it says it objects to.
Tags in the trees made here are put together at run time, so that they do not count as this file's own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import for_each
from tests.support.tools import load

ROOT = Path(__file__).resolve().parents[2]


tool = load("conformance")


def tag(ident: str) -> str:
    """A tag as it stands in a source file: in brackets, which this file itself must not show."""
    return f"[{ident}]"


V5 = """
[document]
title = "Five"
date = "then"
url = "https://example.org/5"
prefix = "MQTT"
[chapters]
"1.5" = "Data"
"3.1" = "Connect"
[statements]
list = [
  { id = "MQTT-1.5.4-1", party = "both", asks = "Good strings." },
  { id = "MQTT-3.1.2-1", party = "server", asks = "Good | names." },
  { id = "MQTT-3.1.2-2", party = "client", asks = "Client things.", na = "binds the client only" },
]
"""
V3 = """
[document]
title = "Three"
date = "earlier"
url = "https://example.org/3"
prefix = "MQTT3"
[chapters]
"1.5" = "Data"
"3.1" = "Connect"
[statements]
list = [
  { id = "MQTT3-1.5.3-1", party = "both", same = ["MQTT-1.5.4-1", "MQTT-3.1.2-1"], asks = "Both of them." },
  { id = "MQTT3-3.1.2-9", party = "server", asks = "Only here." },
]
"""
CODE = f'''"""A module. {tag("MQTT-1.5.4-1")}"""

# Above the name {tag("MQTT-3.1.2-1")}
LIMIT = 3


class Reader:
    """Reads."""

    def read(self) -> int:
        # {tag("MQTT3-3.1.2-9")}
        return LIMIT
'''
TESTS = f'''"""Tests."""

CASES = [
    ("one", 1),  # {tag("MQTT-1.5.4-1")}
]


def test_names() -> None:
    """Names are good {tag("MQTT-3.1.2-1")}."""


class TestThree:
    def test_here(self) -> None:
        assert 1  # {tag("MQTT3-3.1.2-9")}
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project in which everything is in the code and tested, and whose table is written."""
    for name, text in {
        "docs/conformance/mqtt5.toml": V5,
        "docs/conformance/mqtt311.toml": V3,
        "broker/canopy_mqtt/core/reader.py": CODE,
        "tests/core/test_reader.py": TESTS,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert tool.main(["--root", str(tmp_path), "--write"]) == 0
    return tmp_path


def check(root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """What `--check` returns and lists."""
    capsys.readouterr()
    result = tool.main(["--root", str(root), "--check"])
    return result, capsys.readouterr().out.splitlines()


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_a_complete_tree_passes(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tree, capsys) == (0, [])


def test_the_table_names_the_places(tree: Path) -> None:
    text = tool.statements(tree)
    rows = {row.split(" | ")[0].removeprefix("| "): row for row in text.splitlines() if row.startswith("| MQTT")}
    assert "[`core/reader.py`](../broker/canopy_mqtt/core/reader.py)" in rows["MQTT-1.5.4-1"]
    assert "[`core/test_reader.py::CASES`](../tests/core/test_reader.py)" in rows["MQTT-1.5.4-1"]
    assert "`core/reader.py:LIMIT`" in rows["MQTT-3.1.2-1"]
    assert "`core/test_reader.py::test_names`" in rows["MQTT-3.1.2-1"]
    assert "`core/reader.py:Reader.read`" in rows["MQTT3-3.1.2-9"]
    assert "`core/test_reader.py::TestThree::test_here`" in rows["MQTT3-3.1.2-9"]
    assert r"Good \| names." in rows["MQTT-3.1.2-1"]
    assert "not applicable: binds the client only" in rows["MQTT-3.1.2-2"]
    assert "missing" not in text


def test_the_table_has_no_line_numbers(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = tree / "broker/canopy_mqtt/core/reader.py"
    code.write_text(code.read_text(encoding="utf-8").replace("LIMIT = 3\n", "LIMIT = 3\n\n\n"), encoding="utf-8")
    assert check(tree, capsys) == (0, [])


def test_an_unknown_tag_is_named_with_its_place(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replace(tree / "tests/core/test_reader.py", "Names are good", f"Names are good {tag('MQTT-9.9.9-9')}")
    result, lines = check(tree, capsys)
    assert result == 1
    assert lines == [f"tests/core/test_reader.py:test_names: {tag('MQTT-9.9.9-9')} names no statement"]


@pytest.mark.parametrize("slip", ["MQTT-1.5.4.1", "MQTT-1.5.4-1, MQTT-3.1.2-1", "MQTT3-1.5.4-1", "MQTT-1.5.4-01"])
def test_a_slip_in_a_tag_is_not_passed_over(tree: Path, capsys: pytest.CaptureFixture[str], slip: str) -> None:
    replace(tree / "broker/canopy_mqtt/core/reader.py", '"""Reads."""', f'"""Reads. {tag(slip)}"""')
    result, lines = check(tree, capsys)
    assert result == 1
    assert lines == [f"broker/canopy_mqtt/core/reader.py:Reader: {tag(slip)} names no statement"]


def test_a_missing_test_is_reported(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replace(tree / "tests/core/test_reader.py", tag("MQTT3-3.1.2-9"), "")
    assert tool.main(["--root", str(tree), "--write"]) == 0
    assert check(tree, capsys) == (1, ["MQTT3-3.1.2-9: no test: Only here."])
    assert "**missing**" in tool.statements(tree)


def test_a_shared_statement_needs_all_that_it_is_the_same_as(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in ("broker/canopy_mqtt/core/reader.py", "tests/core/test_reader.py"):
        replace(tree / file, tag("MQTT-3.1.2-1"), "")
    assert tool.main(["--root", str(tree), "--write"]) == 0
    assert check(tree, capsys) == (
        1,
        ["MQTT-3.1.2-1: no code and test: Good | names.", "MQTT3-1.5.3-1: no code and test: Both of them."],
    )


def test_a_stale_table_is_reported(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replace(tree / "docs/conformance.md", "| Five | 3 |", "| Five | 4 |")
    result, lines = check(tree, capsys)
    assert result == 1
    assert len(lines) == 1
    assert "out of date" in lines[0]


def test_where_tags_count() -> None:
    """Names are those a reader looks for: the outer function, the constant, the method."""
    source = f'''
# far above, alone: {tag("MQTT-1.1.1-1")}

# right above {tag("MQTT-1.1.1-2")}
@decorated("{tag("MQTT-1.1.1-3")}")
async def outer() -> None:
    def inner() -> None:
        pass  # {tag("MQTT-1.1.1-4")}

class C:
    # above a field {tag("MQTT-1.1.1-5")}
    x: int = 1
    class D:
        def method(self) -> None: "{tag("MQTT-1.1.1-6")}"

if True:
    TABLE = []
TABLE.append(
    1,  # {tag("MQTT-1.1.1-7")} {tag("MQTT-1.1.1-8")}
)
'''
    assert list(tool.tags_of(source)) == [
        ("MQTT-1.1.1-1", ""),
        ("MQTT-1.1.1-2", "outer"),
        ("MQTT-1.1.1-3", "outer"),
        ("MQTT-1.1.1-4", "outer"),
        ("MQTT-1.1.1-5", "C.x"),
        ("MQTT-1.1.1-6", "C.D.method"),
        ("MQTT-1.1.1-7", "TABLE"),
        ("MQTT-1.1.1-8", "TABLE"),
    ]


# ---------------------------------------------------------------------------------------------- the project's own data

DOCUMENTS = tool.read_documents(ROOT)

# Sections and how many statements each has, counted from each document's appendix B.
_COUNTS = {
    "MQTT": """
        1.5.4:3 1.5.5:1 1.5.7:1 2.1.3:1 2.2.1:5 2.2.2:1 3.1.0:2 3.1.2:30 3.1.3:12 3.1.4:6 3.2.0:2
        3.2.2:22 3.3.1:13 3.3.2:20 3.3.4:10 3.4.2:3 3.5.2:3 3.6.1:1 3.6.2:3 3.7.2:3 3.8.1:1 3.8.3:5
        3.8.4:8 3.9.2:2 3.9.3:2 3.10.1:1 3.10.3:2 3.10.4:6 3.11.2:2 3.11.3:2 3.12.4:1 3.14.0:1
        3.14.1:1 3.14.2:4 3.14.4:3 3.15.1:1 3.15.2:3 4.1.0:2 4.2.0:1 4.3.1:1 4.3.2:5 4.3.3:13
        4.4.0:2 4.5.0:2 4.6.0:6 4.7.0:1 4.7.1:2 4.7.2:1 4.7.3:4 4.8.2:6 4.9.0:3 4.12.0:7 4.12.1:2
        4.13.1:1 4.13.2:1 6.0.0:4
    """,
    "MQTT3": """
        1.5.3:3 2.2.2:2 2.3.1:7 3.1.0:2 3.1.2:24 3.1.3:11 3.1.4:5 3.2.0:1 3.2.2:6 3.3.1:12 3.3.2:3
        3.3.4:1 3.3.5:2 3.6.1:1 3.8.1:1 3.8.3:4 3.8.4:6 3.9.3:2 3.10.1:1 3.10.3:2 3.10.4:6 3.12.4:1
        3.14.1:1 3.14.4:3 4.1.0:2 4.3.1:1 4.3.2:2 4.3.3:2 4.4.0:1 4.5.0:2 4.6.0:6 4.7.1:3 4.7.2:1
        4.7.3:4 4.8.0:2 6.0.0:4 7.0.0:2 7.1.1:1 7.1.2:1
    """,
}
SECTIONS = {
    prefix: {section: int(count) for section, count in (item.split(":") for item in counts.split())}
    for prefix, counts in _COUNTS.items()
}
# Numbers that the documents themselves leave out.
LEFT_OUT = {"MQTT-2.2.1-1"}


@for_each("document", DOCUMENTS, ids=lambda document: str(document.file))
def test_no_statement_is_left_out_or_doubled(document: Any) -> None:
    """Numbers against a count made section by section."""
    prefix = "MQTT3" if "311" in document.file else "MQTT"
    numbers: dict[str, list[int]] = {}
    for statement in document.statements:
        match = re.fullmatch(rf"{prefix}-(\d+\.\d+\.\d+)-(\d+)", statement.id)
        assert match is not None
        numbers.setdefault(match.group(1), []).append(int(match.group(2)))
    assert {section: len(found) for section, found in numbers.items()} == SECTIONS[prefix]
    for section, found in numbers.items():
        gaps = {f"{prefix}-{section}-{n}" for n in range(1, max(found) + 1) if n not in found}
        assert gaps <= LEFT_OUT
        assert found == sorted(found)


@for_each("document", DOCUMENTS, ids=lambda document: str(document.file))
def test_statements_say_what_they_ask(document: Any) -> None:
    """A short sentence each; only a statement for the client is excused as one for the client."""
    for statement in document.statements:
        assert statement.party in ("server", "client", "both"), statement.id
        assert statement.chapter in document.chapters, statement.id
        assert statement.asks.endswith("."), statement.id
        assert len(statement.asks) < 240, statement.id
        if statement.na == "binds the client only":
            assert statement.party == "client", statement.id


def test_shared_statements_agree_on_what_applies() -> None:
    """Where a 3.1.1 statement applies to a server, so do the 5.0 statements that it is the same as."""
    every = [statement for document in DOCUMENTS for statement in document.statements]
    by_id = {statement.id: statement for statement in every}
    assert len(by_id) == len(every)
    for statement in by_id.values():
        for name in statement.same:
            assert name.startswith("MQTT-")
            assert bool(statement.na) == bool(by_id[name].na), statement.id
