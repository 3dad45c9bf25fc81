"""docs/architecture.md: the functions that it names stand where it says."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
WAYS = PAGE[PAGE.index("## Four ways") : PAGE.index("## Rooms")]


def steps() -> list[tuple[str, str]]:
    """(file, function) of each step; a function without a file of its own stands in the one before it."""
    found, file = [], ""
    for name in re.findall(r"`([^`]+)`", WAYS.partition("**")[2]):
        if name.endswith(".py"):
            file = name
        elif "." in name or name.islower():
            found.append((file, name))
    return found


def functions(file: Path) -> set[str]:
    """The functions of a module, those of classes as `Class.function`."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            members = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{member.name}" for member in members}
    return found


@pytest.mark.parametrize(("file", "name"), steps())
def test_a_step_stands_where_the_page_says(file: str, name: str) -> None:
    elsewhere = {"SubscriptionTable.work_off": "core/routing/subscription_table.py"}
    assert name in functions(ROOT / "broker" / elsewhere.get(name, file))


def test_there_are_four_ways_of_some_ten_steps() -> None:
    assert len(re.findall(r"^\*\*", WAYS, re.MULTILINE)) == 4
    assert len(steps()) >= 32


def test_every_room_is_named() -> None:
    rooms = [path.parent.name for path in (ROOT / "broker/core").glob("*/__init__.py")]
    assert [room for room in rooms if f"`{room}`" not in PAGE] == []


def imported(file: Path, modules: Collection[str]) -> set[str]:
    """Which of some modules a file imports, also where only types need them, or a function."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for each in node.names:
                name = f"{node.module}.{each.name}"
                found.add(name if name in modules else node.module)
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found & set(modules)


FREE_OF_CIRCLES = [("broker", 1000), ("benchmarks", 100), ("loadtest", 100), ("pipeline", 100)]
"""Packages, and a number of needs that are surely found there."""


@pytest.mark.parametrize(("package", "least"), FREE_OF_CIRCLES)
def test_there_are_no_circles(package: str, least: int) -> None:
    """No file needs another one that needs it, not even to say what type something has."""
    files = {}
    for file in (ROOT / package).rglob("*.py"):
        parts = file.relative_to(ROOT).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    needs = {name: imported(file, files) - {name} for name, file in files.items()}
    assert sum(map(len, needs.values())) > least
    TopologicalSorter(needs).prepare()


@pytest.mark.parametrize("package", ["broker"])
def test_a_module_begins_with_at_most_eight_lines(package: str) -> None:
    """What it owns and promises, without blank lines; more than that stands with the class that it is about."""
    headers = {}
    for file in (ROOT / package).rglob("*.py"):
        header = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        headers[str(file)] = sum(bool(line) for line in header.splitlines())
    assert {file: lines for file, lines in headers.items() if lines > 8} == {}
    assert len(headers) > 200
