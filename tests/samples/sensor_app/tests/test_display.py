"""The display, a process of its own, in which mqtt.js runs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from canopy_mqtt.testing import RunningBroker

NODE = shutil.which("node")
PROGRAM = Path(__file__).resolve().parents[1] / "sensor_app" / "display.cjs"
READINGS = "sensors/+/temperature"


def has_mqtt_js() -> bool:
    """Whether node finds the library: `npm install`, or NODE_PATH."""
    return NODE is not None and not subprocess.run([NODE, "-e", 'require("mqtt")'], capture_output=True).returncode


pytestmark = pytest.mark.skipif(not has_mqtt_js(), reason="node or mqtt.js is not installed")


@pytest.fixture
def display(canopy_broker: RunningBroker) -> Iterator[subprocess.Popen[str]]:
    assert NODE is not None
    with subprocess.Popen([NODE, str(PROGRAM), str(canopy_broker.port)], stdout=subprocess.PIPE, text=True) as process:
        canopy_broker.assert_subscribed("display", READINGS, within=20)
        yield process
        process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_a_reading(canopy_broker: RunningBroker, display: subprocess.Popen[str]) -> None:
    canopy_broker.publish("sensors/cellar/temperature", "21.5")
    assert line(display) == "cellar: 21.5 °C\n"


def test_it_comes_back(canopy_broker: RunningBroker, display: subprocess.Popen[str]) -> None:
    """After a subscription that was refused, too: mqtt.js subscribes when it connects."""
    refused = canopy_broker.refuse_subscribe(0x97, "display")
    canopy_broker.cut("display")
    refused.wait(within=10)
    canopy_broker.cut("display")
    canopy_broker.assert_subscribed("display", READINGS, within=10)
    canopy_broker.publish("sensors/cellar/temperature", "22.0")
    assert line(display) == "cellar: 22.0 °C\n"
