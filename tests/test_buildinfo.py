"""What is installed, told from the files that are really there."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import pytest

import canopy_mqtt
from canopy_mqtt import __version__, buildinfo


@pytest.mark.parametrize(
    ("suffixes", "state"),
    [
        ([EXTENSION_SUFFIXES[0], EXTENSION_SUFFIXES[0]], buildinfo.COMPILED),
        ([".py", ".py"], buildinfo.INTERPRETED),
        ([], buildinfo.INTERPRETED),
        ([EXTENSION_SUFFIXES[0], ".py"], buildinfo.MIXED),
    ],
)
def test_the_state_is_that_of_all_modules(suffixes: list[str], state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {f"m{number}": f"/x/m{number}{suffix}" for number, suffix in enumerate(suffixes)}

    def find_spec(name: str) -> ModuleSpec:
        if name == "canopy_mqtt.core":
            return ModuleSpec(name, None, origin="/x/__init__.py", is_package=True)
        return ModuleSpec(name, None, origin=modules[name.rpartition(".")[2]])

    monkeypatch.setattr(buildinfo, "find_spec", find_spec)
    monkeypatch.setattr(
        buildinfo,
        "walk_packages",
        lambda *_: [SimpleNamespace(name=f"canopy_mqtt.core.{name}", ispkg=False) for name in modules],
    )
    assert buildinfo.core_state() == state


def test_it_tells_what_is_imported() -> None:
    found = buildinfo.build_info()
    assert found.version == __version__
    assert found.location == Path(canopy_mqtt.__file__).parent
    assert found.core in (buildinfo.COMPILED, buildinfo.INTERPRETED)
    from canopy_mqtt.core.codec import reason_codes

    assert (found.core == buildinfo.COMPILED) == (not str(reason_codes.__file__).endswith(".py"))
    assert found.python.endswith(".".join(map(str, sys.version_info[:3])))


def test_in_one_line() -> None:
    info = buildinfo.BuildInfo("1.2.3", "compiled", "CPython 3.11.7", "0.21.0", Path("/x"))
    assert str(info) == "canopy 1.2.3 (compiled, CPython 3.11.7, uvloop 0.21.0)"
    info = buildinfo.BuildInfo("1.2.3", "interpreted", "PyPy 3.11.1", None, Path("/x"))
    assert str(info) == "canopy 1.2.3 (interpreted, PyPy 3.11.1, asyncio's own loop)"
