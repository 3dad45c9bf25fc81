"""Brokers for the client's shells: Canopy in a thread of its own, and mosquitto where it is installed."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client.address import BrokerAddress
from canopy.testing import RunningBroker
from tests.support.ports import free_port

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.fixture(params=["canopy", pytest.param("mosquitto", marks=pytest.mark.skipif(not MOSQUITTO, reason="absent"))])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerAddress]:
    """Where a broker with its usual limits listens."""
    if request.param == "canopy":
        with RunningBroker() as broker:
            yield BrokerAddress(port=broker.port)
        return
    port = free_port()
    settings = tmp_path / "mosquitto.conf"
    settings.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
    process = subprocess.Popen([str(MOSQUITTO), "-c", str(settings)], stderr=subprocess.DEVNULL)
    try:
        while not _listens(port):
            assert process.poll() is None
        yield BrokerAddress(port=port)
    finally:
        process.terminate()
        process.wait(30)
