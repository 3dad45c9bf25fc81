"""What setup.py makes of a tree: compiled units that do not depend on each other, and wheels that need no compiler.

The tree is a small one, with this project's setup.py and pyproject.toml: mypyc and gcc take seconds for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = "broker/canopy_mqtt/core/limits.py"
LOAD = "loadtest/canopy_load/ledger/mark.py"
REFUSED = "class Mark:\n    def read(self) -> int:\n        return 'no int'\n"

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


class Built(NamedTuple):
    """What came of a build."""

    names: list[str]
    """What is in the wheel."""
    compiled: set[str]
    """The units that are."""
    said: str
    wheel: str


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """One compiled module in each unit."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "broker/canopy_mqtt/version.py", CORE, LOAD):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
        for package in (tree / name).relative_to(tree).parents:
            if len(package.parts) > 1:
                (tree / package / "__init__.py").touch()
    shutil.copytree(ROOT / "config", tree / "config")
    return tree


def run(tree: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    shutil.rmtree(tree / "dist", ignore_errors=True)
    code = "import setuptools.build_meta as b; b.build_wheel('dist')"
    # What is built is looked at and not run: it need not be fast.
    quick = tree / "quick-cc"
    quick.write_text('#!/bin/bash\nexec cc "${@/#-O3/-O0}"\n')
    quick.chmod(0o755)
    # Whatever this run demands of its own build.
    clean = {**os.environ, "CANOPY_PURE": "", "CANOPY_REQUIRE_COMPILED": "", "CC": str(quick), **environment}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=tree, env=clean, capture_output=True, text=True, check=False)


def build(tree: Path, **environment: str) -> Built:
    done = run(tree, **environment)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tree / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    compiled = {name.partition("__mypyc")[0] for name in names if "__mypyc" in name}
    return Built(names, compiled, done.stdout + done.stderr, wheel.name)


def module(file: str) -> str:
    """Where the wheel has it."""
    return file.partition("/")[2].removesuffix(".py")


def extensions(built: Built) -> set[str]:
    """The modules that are compiled."""
    return {name.partition(".")[0] for name in built.names if name.endswith(".so") and "__mypyc" not in name}


def test_a_change_in_one_unit_leaves_the_other_as_it_was_built(tree: Path) -> None:
    first = build(tree)
    assert first.compiled == {"canopy_core", "canopy_load"}
    assert extensions(first) == {module(CORE), module(LOAD)}

    def stamps() -> dict[str, int]:
        return {path.name.partition("__")[0]: path.stat().st_mtime_ns for path in tree.glob("build/lib*/*__mypyc*")}

    before = stamps()
    with (tree / LOAD).open("a") as opened:
        opened.write("\n\ndef added(number: int) -> int:\n    return number + 1\n")
    assert build(tree).compiled == {"canopy_core", "canopy_load"}
    after = stamps()
    assert after["canopy_core"] == before["canopy_core"]
    assert after["canopy_load"] > before["canopy_load"]


def test_a_load_tester_that_mypyc_refuses_costs_the_broker_nothing(tree: Path) -> None:
    (tree / LOAD).write_text(REFUSED)
    built = build(tree)
    assert built.compiled == {"canopy_core"}
    assert extensions(built) == {module(CORE)}
    assert "canopy: canopy_load is installed interpreted (it works, slower): mypyc refused it" in built.said
    assert f"{module(LOAD)}.py" in built.names
    assert "canopy_load" in (tree / "build" / "interpreted").read_text()


def test_a_load_tester_that_the_c_compiler_refuses_costs_the_broker_nothing(tree: Path) -> None:
    compiler = tree / "cc"
    compiler.write_text('#!/bin/sh\ncase "$*" in *canopy_load*) exit 1 ;; esac\nexec cc "$@" -O0\n')
    compiler.chmod(0o755)
    built = build(tree, CC=str(compiler))
    assert built.compiled == {"canopy_core"}
    assert extensions(built) == {module(CORE)}
    assert "canopy: canopy_load is installed interpreted (it works, slower): the C compiler failed" in built.said


def test_what_is_demanded_to_be_compiled_and_cannot_be_fails_the_build(tree: Path) -> None:
    (tree / LOAD).write_text(REFUSED)
    done = run(tree, CANOPY_REQUIRE_COMPILED="1")
    assert done.returncode != 0
    assert "canopy: CANOPY_REQUIRE_COMPILED is set, but canopy_load cannot be compiled: mypyc refused it" in done.stderr


def test_without_a_compiler_the_wheel_is_for_every_machine(tree: Path) -> None:
    built = build(tree, CC="/bin/false")
    assert built.wheel.endswith("-py3-none-any.whl")
    assert (built.compiled, extensions(built)) == (set(), set())
    assert "no working C compiler with Python's headers (Debian: apt install gcc python3-dev)" in built.said


def test_what_left_the_tree_is_not_in_the_next_wheel(tree: Path) -> None:
    (tree / "broker/canopy_mqtt/left.py").touch()
    assert "canopy_mqtt/left.py" in build(tree, CANOPY_PURE="1").names
    (tree / "broker/canopy_mqtt/left.py").unlink()
    built = build(tree, CANOPY_PURE="1")
    assert "canopy_mqtt/left.py" not in built.names
    assert {
        "canopy_mqtt/settings/files/default.toml",
        "canopy_load/scenario/scenarios/fanin.toml",
    } <= set(built.names)
    assert not [name for name in built.names if "kubernetes" in name or "grafana" in name]
