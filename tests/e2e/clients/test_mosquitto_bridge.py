"""A bridge of mosquitto to Canopy, with mosquitto's default settings: it connects, and operators see how it is."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from canopy_load.brokers.process import free_port
from tests.e2e.clients.conftest import Served, Unique
from tests.e2e.clients.test_mosquitto_clients import SUB, publish, run, subscriber
from tests.e2e.links.network import Process, mosquitto_command

pytestmark = pytest.mark.skipif(not SUB or not shutil.which("mosquitto_pub"), reason="mosquitto's clients are missing")


def bridge(folder: Path, daemon: Served, name: str, version: str, more: str = "") -> tuple[Process, int]:
    """A mosquitto with a bridge to Canopy, and the port of mosquitto's own."""
    port = free_port()
    command = mosquitto_command(folder, port)
    config = Path(command[-1])
    lines = f"connection {name}\naddress 127.0.0.1:{daemon.port}\ntopic {name}/# both 1\nrestart_timeout 1\n"
    config.write_text(config.read_text() + lines + f"bridge_protocol_version {version}\n{more}", encoding="utf-8")
    return Process(command, " running"), port


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv50"])
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
async def test_with_its_defaults(
    tmp_path: Path, daemon: Served, unique: Unique, version: str, ending: signal.Signals
) -> None:
    """Messages cross both ways. Its state is 1, retained; 0 when it is gone, however it goes; and 1 when it is back."""
    name = unique("site")
    state = f"$SYS/broker/connection/{name}.central/state"
    mosquitto, port = bridge(tmp_path, daemon, name, version, f"remote_clientid {name}.central\n")
    try:
        async with subscriber(daemon, "-q", "1", "-t", state, "-F", "%r|%p") as watcher:
            await mosquitto.start()
            assert await watcher.line() == "0|1"
            assert json.loads(await run(SUB, daemon, "-t", state, "-C", "1", "-F", '[%r,"%p"]')) == [1, "1"]
            async with subscriber(daemon, "-q", "1", "-t", f"{name}/#", "-F", "%t|%p") as reader:
                here = ("-p", str(port), "-q", "1", "-t", f"{name}/up", "-m", "from the edge")
                await publish(daemon, *here)
                assert await reader.line() == f"{name}/up|from the edge"
            await mosquitto.end(ending)
            assert await watcher.line() == "0|0"
            assert await run(SUB, daemon, "-t", state, "-C", "1", "-F", "%r|%p") == b"1|0\n"
            await mosquitto.start()
            assert await watcher.line() == "0|1"
    finally:
        await mosquitto.end()
