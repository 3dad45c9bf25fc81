"""The sample projects' tests pass, in a process that knows nothing of this repository but the installed package."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.conftest import no_skips

SAMPLES = Path(__file__).resolve().parent
SCRIPTS = SAMPLES.parent / "e2e" / "js" / "node_modules"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_sensor_app() -> None:
    """Programs of paho, aiomqtt, gmqtt and mqtt.js under the fixtures. mqtt.js is that of our own tests.

    One that hangs ends by the time-out of its own test, which tells where.
    """
    announced = any(each.module == "canopy_mqtt.testing.plugin" for each in entry_points(group="pytest11"))
    plugin = [] if announced else ["-p", "canopy_mqtt.testing.plugin"]
    project = SAMPLES / "sensor_app"
    options = ["-q", "-rs", "-p", "no:cacheprovider", "--timeout=60", "-c", str(project / "pyproject.toml"), *plugin]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *options, str(project / "tests")],
        env={**os.environ, "NODE_PATH": str(SCRIPTS), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    if no_skips():
        assert "skipped" not in done.stdout, done.stdout
