"""Settings of earlier versions are refused in one line each: where they stand, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.loader import load_settings
from tests.support.runs import for_each


@for_each(
    ("text", "where", "advice"),
    [
        (
            '[mesh]\nname = "one"\nnode = "a"\n',
            "line 2: mesh.name",
            "stand in [cluster] (docs/cluster.md)",
        ),
        ("[mesh]\n", "line 1: mesh", "remove the section [mesh]"),
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
        load_settings(environ={"CANOPY_MESH__NAME": "one"})
    (first,) = raised.value.problems
    assert first.startswith("environment variable CANOPY_MESH__NAME: mesh.name: nodes of a cluster stand in [cluster]")
