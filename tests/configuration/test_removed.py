"""Settings of earlier versions are refused in one line each: where they stand, and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from broker.configuration.reading import load_settings
from broker.settings import defaults, section_models
from broker.settings.errors import SettingsError
from broker.settings.removed import REMOVED


@pytest.mark.parametrize(
    ("text", "where", "advice"),
    [
        ('[mesh]\nname = "one"\nnode = "a"\n', "line 2: mesh.name", "join two brokers by links (docs/cluster.md)"),
        ("[mesh]\n", "line 1: mesh", "remove the section [mesh]"),
        ('[workers]\ncount = "auto"\n', "line 2: workers.count", "join them by links (docs/cluster.md)"),
        ("[alarms]\nnode_down = 30.0\n", "line 2: alarms.node_down", "remove the setting"),
    ],
)
def test_in_a_file(tmp_path: Path, text: str, where: str, advice: str) -> None:
    file = tmp_path / "canopy.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as raised:
        load_settings(file, environ={})
    (line,) = raised.value.problems
    assert line.startswith(f"{file}: {where}: ")
    assert advice in line


def test_elsewhere() -> None:
    with pytest.raises(SettingsError) as raised:
        load_settings(sets=["workers.count=2"], environ={"CANOPY_MESH__NAME": "one"})
    first, second = raised.value.problems
    assert first.startswith("environment variable CANOPY_MESH__NAME: mesh.name: Canopy has no clusters")
    assert second.startswith("--set workers.count=2: workers.count: Canopy runs as one process")


def test_what_is_gone_is_gone_and_what_takes_its_place_is_there() -> None:
    known = defaults()
    for name, advice in REMOVED.items():
        assert name not in known
        named = set(re.findall(r"\b([a-z]+\.[a-z_]+)\b", advice)) - {"docs/cluster.md", "cluster.md"}
        assert {each for each in named if each.partition(".")[0] in section_models()} <= known.keys(), name


def test_one_that_has_become_another_names_it(tmp_path: Path) -> None:
    file = tmp_path / "canopy.toml"
    file.write_text("[retained]\nmax_bytes_per_client = 1000\n\n[runtime]\nuvloop = false\n")
    with pytest.raises(SettingsError) as raised:
        load_settings(file, environ={})
    first, second = raised.value.problems
    assert first.startswith(f"{file}: line 2: retained.max_bytes_per_client: now limits.max_client_bytes, which ")
    assert second == f"{file}: line 5: runtime.uvloop: uvloop is used where it is installed; remove the setting"
