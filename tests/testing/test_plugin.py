"""The plug-in as pytest finds it: announced, light, and with the fixtures that docs/testing.md names."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

from canopy_mqtt.testing import RunningBroker

ROOT = Path(__file__).resolve().parents[2]


def test_it_is_announced() -> None:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert (
        import_module(found["project"]["entry-points"]["pytest11"]["canopy"]).__name__ == "canopy_mqtt.testing.plugin"
    )


def test_loading_it_loads_no_broker() -> None:
    """Every run of pytest on this machine loads it."""
    code = "import sys, pytest; import canopy_mqtt.testing.plugin; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert {name for name in found.stdout.split() if name.split(".")[0] in ("canopy_mqtt", "pydantic")} == {
        "canopy_mqtt.version",
        "canopy_mqtt",
        "canopy_mqtt.testing",
        "canopy_mqtt.testing.plugin",
    }


class TestOneForAll:
    """`canopy_session_broker` is one broker; `reset` makes it as new."""

    def test_one(self, canopy_session_broker: RunningBroker) -> None:
        canopy_session_broker.publish("a", "1", retain=True)
        assert [each.text for each in canopy_session_broker.retained()] == ["1"]

    def test_another(self, canopy_session_broker: RunningBroker) -> None:
        canopy_session_broker.reset()
        assert canopy_session_broker.retained() == []
