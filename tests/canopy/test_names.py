"""The public names: docs/stability.md lists them, they are there, and asking for one loads no more than it needs."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import canopy

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "stability.md"
LISTED = {
    module: re.findall(r"`(\w+)`", names)
    for module, names in re.findall(r"^\| `(canopy[\w.]*)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
}


def docstring(value: Any) -> str | None:
    """That of the source: compiled, a class has none."""
    source = (ROOT / f"{value.__module__.replace('.', '/')}.py").with_suffix("")
    file = source / "__init__.py" if source.is_dir() else source.with_suffix(".py")
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == value.__name__:
            return ast.get_docstring(node)
    return None


def test_every_module_is_listed() -> None:
    modules = {"canopy", *(f"canopy.{found.name}" for found in pkgutil.iter_modules(canopy.__path__))}
    assert modules - {"canopy.__main__"} == set(LISTED)


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


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="'canopy' has no attribute 'Brocker'"):
        getattr(canopy, "Brocker")  # noqa: B009


def test_importing_it_loads_nothing() -> None:
    """A program that only asks for the version, or pytest which loads the fixtures' module, does not wait."""
    code = "import sys; before = set(sys.modules); import canopy; print(*sorted(set(sys.modules) - before))"
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert {name for name in found.stdout.split() if name.split(".")[0] in ("broker", "canopy", "pydantic")} == {
        "broker",
        "broker.version",
        "canopy",
    }


def test_python_dash_m() -> None:
    found = subprocess.run(
        [sys.executable, "-P", "-m", "canopy", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert canopy.__version__ in found.stdout
