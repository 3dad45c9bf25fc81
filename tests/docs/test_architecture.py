"""docs/architecture.md says what is so; and the files have no circles and short headers."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Collection
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BROKER = ROOT / "broker/canopy_mqtt"
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
WAYS = PAGE[PAGE.index("## Four ways") : PAGE.index("## Who owns what")]


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
        elif re.fullmatch(r"[A-Z]\w+\.\w+|[a-z_0-9]+", name):
            found.append((file, name))
    return found


MAX_CALLS = {
    "QoS 0 PUBLISH to one subscriber": 18,
    "QoS 1 PUBLISH to an absent session": 28,
    "SUBSCRIBE that two retained messages match": 60,
    "lost connection with a will": 40,
}
"""Calls of the broker's functions for one packet of each way (`tests.support.called.counted`)."""


@pytest.fixture(scope="module")
def walked() -> dict[str, Any]:
    """The calls on the ways, from a broker that runs interpreted."""
    command = [sys.executable, "-P", "-m", "tests.support.called"]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": f"{BROKER.parent}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def called(walked: dict[str, Any]) -> list[list[tuple[str, str]]]:
    """Of each way, without a store and with one, the functions that are called, in the order of their first calls."""
    return [[(file, name) for file, name in way] for way in walked["ways"]]


def test_a_packet_passes_no_more_functions_than_its_way_needs(walked: dict[str, Any]) -> None:
    names = {way: [name for _, name in calls] for way, calls in walked["calls"].items()}
    assert {way: (len(calls), calls) for way, calls in names.items() if len(calls) > MAX_CALLS[way]} == {}
    assert set(names) == set(MAX_CALLS)


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
    """Also the rooms in a room; tests/project/test_layers.py has the layers."""
    rooms = PAGE[PAGE.index("## The map") : PAGE.index("## Where to add")]
    packages = [file.parent.relative_to(BROKER) for file in BROKER.rglob("*/__init__.py")]
    modules = [Path(file.stem) for file in BROKER.glob("*.py") if not file.name.startswith("__")]
    assert len(packages) > 20
    assert [str(each) for each in (*packages, *modules) if not re.search(rf"[`.]{each.name}`", rooms)] == []


def test_the_page_can_be_read_in_one_go() -> None:
    assert len(PAGE.splitlines()) <= 250


def test_every_path_and_every_class_of_the_page_is_there() -> None:
    """Also the methods and attributes that it names of a class."""
    names = set(re.findall(r"`([^`\s]+)`", PAGE))
    paths = {name.rstrip("/…") for name in names if re.fullmatch(r"[a-z_]+(/[a-z_]+)*(\.py|/)?", name) and "/" in name}
    homes = (ROOT, BROKER, BROKER / "core")
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
                    body = "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])
                    members.setdefault(node.name, set()).update(re.findall(r"\w+", body))
    assert len(paths) > 20
    assert len(classes) > 60
    found = {each for each in classes for owner, _, member in [each.partition(".")] if member in members.get(owner, ())}
    found |= classes & set(members)
    assert sorted(classes - found - {"Final"}) == []


def imported(file: Path, modules: Collection[str], typing: bool = True) -> set[str]:
    """Which of some modules a file imports, also in a function and, with `typing`, where only types need them."""
    pairs = [pair for for_types, *pair in imports(file) if typing or not for_types]
    names = {f"{module}.{name}" if f"{module}.{name}" in modules else module for module, name in pairs}
    return names & set(modules)


@cache
def imports(file: Path) -> list[tuple[bool, str, str]]:
    """Each import of a file: True if only types need it, the module, and the name in it (empty: the module itself)."""
    found = []
    waiting: list[tuple[bool, ast.AST]] = [(False, ast.parse(file.read_text(encoding="utf-8")))]
    while waiting:
        for_types, parent = waiting.pop()
        if isinstance(parent, ast.If) and ast.unparse(parent.test) == "TYPE_CHECKING":
            waiting += [(True, node) for node in parent.body]
            waiting += [(for_types, node) for node in parent.orelse]
        elif isinstance(parent, ast.ImportFrom) and parent.module is not None:
            found += [(for_types, parent.module, each.name) for each in parent.names]
        elif isinstance(parent, ast.Import):
            found += [(for_types, each.name, "") for each in parent.names]
        elif isinstance(parent, ast.stmt | ast.ExceptHandler | ast.match_case | ast.Module):
            # No expression holds an import.
            waiting += [(for_types, node) for node in ast.iter_child_nodes(parent) if not isinstance(node, ast.expr)]
    return found


FREE_OF_CIRCLES = [
    ("broker", "canopy_mqtt", 1000),
    (".", "benchmarks", 100),
    ("loadtest", "canopy_load", 100),
    ("pipeline", "canopy_pipeline", 100),
    (".", "tests", 500),
    ("tools", ".", 0),
]
"""Source roots, packages below them, and a number of imports that are surely found there."""


@pytest.mark.parametrize(("root", "package", "least"), FREE_OF_CIRCLES, ids=lambda value: str(value))
def test_there_are_no_circles(root: str, package: str, least: int) -> None:
    """No file imports another one that imports it, not even to say what type something has.

    The core and the connections of clients may, to say that: they are compiled in one unit, where a base class would
    only hide where a call goes.
    """
    unit = "canopy_mqtt.core.", "canopy_mqtt.net.connections."
    files = {}
    for file in (ROOT / root / package).rglob("*.py"):
        parts = file.relative_to(ROOT / root).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    needs = {name: imported(file, files, not name.startswith(unit)) - {name} for name, file in files.items()}
    assert sum(map(len, needs.values())) >= least
    TopologicalSorter(needs).prepare()


def test_the_modules_to_begin_with_need_none_that_comes_later() -> None:
    section = PAGE[PAGE.index("## Ten modules") : PAGE.index("## Four ways")]
    paths = re.findall(r"^\| \d+\. `(.+)\.py`", section, re.MULTILINE)
    names = [f"canopy_mqtt.core.{path.replace('/', '.')}" for path in paths]
    assert len(names) == 10
    for at, path in enumerate(paths):
        assert imported(BROKER / f"core/{path}.py", names[at + 1 :], typing=False) == set()


PACKAGES = [
    "benchmarks",
    "broker",
    "loadtest",
    "pipeline",
    "tools",
]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_module_begins_with_at_most_eight_lines(package: str) -> None:
    """What it owns and promises, without blank lines; more than that stands with the class that it is about."""
    headers = {}
    for file in (ROOT / package).rglob("*.py"):
        # Parsing all of it takes a hundred times as long.
        header = re.match(r'(?:#.*\n|\s)*"""(.*?)"""', file.read_text(encoding="utf-8"), re.DOTALL)
        headers[str(file)] = sum(bool(line.strip()) for line in header[1].splitlines()) if header else 0
    assert {file: lines for file, lines in headers.items() if lines > 8} == {}
    assert any(headers.values())
