"""docs/architecture.md says what is so; and the files have no circles and short headers."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Collection
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
WAYS = PAGE[PAGE.index("## Four ways") : PAGE.index("## Rooms")]


Step = list[tuple[str, str]]
"""The functions that a step names, as (file, function). One without a file stands in the file before it."""


def ways() -> list[tuple[list[Step], Step]]:
    """Of each way its numbered steps, and the functions named behind them: those of a store, and what comes later."""
    found: list[tuple[list[Step], Step]] = []
    for way in re.split(r"^\*\*.*\*\*$", WAYS, flags=re.MULTILINE)[1:]:
        lists = re.findall(r"^\d+\. (.*(?:\n   .*)*)", way, re.MULTILINE)
        numbered = found[0][0][: int(lists[0].split()[1].rstrip("."))] if "as above" in lists[0] else []
        steps = [*numbered, *(functions_in(text) for text in lists if "as above" not in text)]
        found.append((steps, functions_in(re.sub(r"^\d+\. .*(\n   .*)*", "", way, flags=re.MULTILINE))))
    return found


def functions_in(text: str) -> Step:
    """The functions that a text names."""
    found, file = [], ""
    for name in re.findall(r"`([^`]+)`", text):
        if name.endswith(".py"):
            file = name
        elif re.fullmatch(r"[A-Z]\w+\.\w+|[a-z_]+", name):
            found.append((file, name))
    return found


@pytest.fixture(scope="module")
def called() -> list[list[tuple[str, str]]]:
    """Of each way, without a store and with one, the functions that are called, in the order of their first calls."""
    command = [sys.executable, "-P", "-m", "tests.support.called"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return [[(file, name) for file, name in way] for way in json.loads(done.stdout)]


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "store"])
@pytest.mark.parametrize("number", range(4))
def test_a_way_passes_the_functions_that_the_page_names_in_its_order(
    number: int, stored: bool, called: list[list[tuple[str, str]]]
) -> None:
    steps, others = ways()[number]
    order = {function: at for at, function in enumerate(called[2 * number + stored])}
    assert [step for step in (*steps, others if stored else []) if not set(step) <= set(order)] == []
    first = [min(order[function] for function in step) for step in steps]
    assert [steps[at] for at in range(1, len(first)) if first[at] < first[at - 1]] == []


def test_there_are_four_ways_of_some_ten_steps() -> None:
    assert [len(steps) >= 8 for steps, _ in ways()] == [True] * 4


def test_every_room_is_named() -> None:
    rooms = PAGE[PAGE.index("## Rooms") : PAGE.index("## Who owns what")]
    packages = [file.parent.relative_to(ROOT / "broker") for file in (ROOT / "broker").rglob("*/__init__.py")]
    modules = [file for file in (ROOT / "broker").glob("*.py") if not file.name.startswith("__")]
    assert len(packages) > 20
    assert [str(each) for each in packages if not re.search(rf"[`/]{each.name}[/`]", rooms)] == []
    assert [file.name for file in modules if f"`{file.name}`" not in rooms] == []


def test_every_path_and_every_class_of_the_page_is_there() -> None:
    """Also the methods and attributes that it names of a class."""
    names = set(re.findall(r"`([^`\s]+)`", PAGE))
    paths = {name.rstrip("/…") for name in names if re.fullmatch(r"[a-z_]+(/[a-z_]+)*(\.py|/)?", name) and "/" in name}
    homes = (ROOT, ROOT / "broker", ROOT / "broker/core")
    missing = [
        path for path in paths if not any((home / path).exists() or (home / f"{path}.py").exists() for home in homes)
    ]
    assert missing == []
    classes = {
        name.split("(")[0] for name in names if re.fullmatch(r"[A-Z][A-Za-z0-9]*[a-z]\w*(\.\w+(\(\w*\))?)?", name)
    }
    owners = {name.partition(".")[0] for name in classes}
    members: dict[str, set[str]] = {}
    for package in ("broker", "loadtest"):
        for file in (ROOT / package).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            if owners.isdisjoint(re.findall(r"^ *class (\w+)", text, re.MULTILINE)):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef) and node.name in owners:
                    members.setdefault(node.name, set()).update(re.findall(r"\w+", ast.unparse(node)))
    assert len(paths) > 20
    assert len(classes) > 60
    found = {each for each in classes for owner, _, member in [each.partition(".")] if member in members.get(owner, ())}
    found |= classes & set(members)
    assert sorted(classes - found - {"Final"}) == []


def imported(file: Path, modules: Collection[str], typing: bool = True) -> set[str]:
    """Which of some modules a file imports, also in a function and, with `typing`, where only types need them."""
    found = set()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if not typing and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
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
    """No file needs another one that needs it, not even to say what type something has.

    The core may, to say that: it is compiled in one unit, where a base class would only hide from whom a call goes.
    """
    files = {}
    for file in (ROOT / package).rglob("*.py"):
        parts = file.relative_to(ROOT).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    needs = {name: imported(file, files, not name.startswith("broker.core.")) - {name} for name, file in files.items()}
    assert sum(map(len, needs.values())) > least
    TopologicalSorter(needs).prepare()


def test_the_modules_to_begin_with_need_none_that_comes_later() -> None:
    section = PAGE[PAGE.index("## Ten modules") : PAGE.index("## Four ways")]
    paths = re.findall(r"^\| \d+\. `(.+)\.py`", section, re.MULTILINE)
    names = [f"broker.core.{path.replace('/', '.')}" for path in paths]
    assert len(names) == 10
    for at, path in enumerate(paths):
        assert imported(ROOT / f"broker/core/{path}.py", names[at + 1 :]) == set()


PACKAGES = [
    "benchmarks",
    "broker",
    "canopy",
    "canopy_delta",
    "canopy_pages",
    "canopy_spark",
    "loadtest",
    "pipeline",
    "tools",
]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_module_begins_with_at_most_eight_lines(package: str) -> None:
    """What it owns and promises, without blank lines; more than that stands with the class that it is about."""
    headers = {}
    for file in (ROOT / package).rglob("*.py"):
        header = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        headers[str(file)] = sum(bool(line) for line in header.splitlines())
    assert {file: lines for file, lines in headers.items() if lines > 8} == {}
    assert headers
