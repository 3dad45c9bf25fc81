"""The public names: docs/embedding.md lists them, they are there, and asking for one loads no more than it needs."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

import canopy_mqtt

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "embedding.md"
SOURCES = {"canopy_mqtt": "broker", "canopy_pipeline": "pipeline"}
LISTED: dict[str, list[str]] = {}
for module, names in re.findall(r"^\| `(canopy[\w.]*)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE):
    # A module with many names has two rows.
    LISTED.setdefault(module, []).extend(re.findall(r"`(\w+)`", names))


def docstring(value: Any) -> str | None:
    """That of the source: compiled, a class has none."""
    source = ROOT / SOURCES[value.__module__.partition(".")[0]] / value.__module__.replace(".", "/")
    file = source / "__init__.py" if source.is_dir() else source.with_suffix(".py")
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == value.__name__:
            return ast.get_docstring(node)
    return None


@pytest.mark.parametrize("module", LISTED)
def test_what_a_module_gives_is_listed_and_documented(module: str) -> None:
    """`__all__` is the promise: nothing is missing, nothing came along unnoticed."""
    found = import_module(module)
    assert sorted(found.__all__) == sorted(LISTED[module])
    for name in found.__all__:
        value = getattr(found, name)
        if isinstance(value, type) or inspect.isfunction(value):
            assert docstring(value), name
    assert set(found.__all__) <= set(dir(found))


def test_names_that_the_pages_name_are_there() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    named = set(re.findall(r"\bcanopy_(?:mqtt|load|pipeline)(?:\.[A-Za-z]\w*)+", text))
    assert len(named) > 10
    for name in named:
        resolve_name(name)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="'canopy_mqtt' has no attribute 'Brocker'"):
        getattr(canopy_mqtt, "Brocker")  # noqa: B009


def test_importing_it_loads_nothing() -> None:
    """A program that only asks for the version, or pytest which loads the fixtures' module, does not wait."""
    code = "import sys; before = set(sys.modules); import canopy_mqtt; print(*sorted(set(sys.modules) - before))"
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert {name for name in found.stdout.split() if name.split(".")[0] in ("canopy_mqtt", "pydantic")} == {
        "canopy_mqtt",
        "canopy_mqtt.version",
    }


def test_python_dash_m() -> None:
    found = subprocess.run(
        [sys.executable, "-P", "-m", "canopy_mqtt", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert canopy_mqtt.__version__ in found.stdout
