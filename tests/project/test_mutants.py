"""The tool that puts small faults into the source: on a small tree made here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.tools import load

tool = load("mutants")

SOURCE = """
def least(a: int, b: int = 1) -> int:
    log.debug(f"{a < b}")
    if a < b and not b < 0:
        return a
    seen.add(b)
    return b
"""
CHANGES = [
    ("a < b and not b < 0", "(a < b or not b < 0)"),
    ("a < b", "a <= b"),
    ("not b < 0", "(b < 0)"),
    ("b < 0", "b <= 0"),
    ("0", "1"),
    ("seen.add(b)", "pass"),
]


def test_what_is_changed() -> None:
    """Neither annotations and defaults nor what is logged."""
    assert [(place["old"], place["new"]) for place in tool.places(SOURCE)] == CHANGES


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package with one module, and a test that sees some of it."""
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "tests" / "pipeline").mkdir(parents=True)
    (tmp_path / "pipeline" / "__init__.py").touch()
    (tmp_path / "pipeline" / "least.py").write_text(
        "def least(a, b):\n    if a < b:\n        return a\n    return b\n\n\ndef most(a):\n    return a == 0\n"
    )
    (tmp_path / "tests" / "pipeline" / "test_least.py").write_text(
        "from pipeline.least import least, most\n\n\ndef test_most():\n    assert most(0)\n    assert not most(2)\n"
    )
    return tmp_path


def test_the_same_are_picked_again_and_one_of_a_function(tree: Path) -> None:
    found = tool.pick(tree, 5, 10, [])
    assert found == tool.pick(tree, 5, 10, [])
    assert sorted(each["function"] for each in found) == ["least", "most"]
    assert tool.pick(tree, 5, 10, ["pipeline/"]) == []


def test_a_mutant_is_found_in_a_later_tree_and_gone_with_its_text(tree: Path) -> None:
    file = tree / "pipeline" / "least.py"
    mutant = {"file": "pipeline/least.py", "function": "most", "old": "a == 0", "nth": 0, "new": "a != 0"}
    file.write_text("# first\n" + file.read_text())
    assert tool.apply(tree, mutant)
    assert "return a != 0" in file.read_text()
    assert not tool.apply(tree, mutant)


@pytest.mark.long
def test_who_sees_it(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The test that fails is named, and tried first in the next tree; nothing of the tree itself is changed."""
    before = (tree / "pipeline" / "least.py").read_text()
    notes = tmp_path_factory.mktemp("notes")
    mutants, results, after = (notes / name for name in ("mutants", "results", "after"))
    picked = [place for place in tool.pick(tree, 5, 10, []) if place["function"] == "least"]
    picked.append({"file": "pipeline/least.py", "line": 8, "function": "most", "old": "0", "nth": 0, "new": "1"})
    mutants.write_text("".join(json.dumps(line) + "\n" for line in picked))
    tool.run(tree, mutants, results, None, 60.0)
    assert [(line["result"], line.get("by")) for line in tool.read(results)] == [
        ("survived", None),
        ("killed", "tests/pipeline/test_least.py::test_most"),
    ]
    (tree / "tests" / "pipeline" / "test_least.py").unlink()
    tool.run(tree, mutants, after, results, 60.0)
    assert [line["result"] for line in tool.read(after)] == ["survived", "survived"]
    assert (tree / "pipeline" / "least.py").read_text() == before
