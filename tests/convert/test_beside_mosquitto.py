"""A bridge of mosquitto, converted, beside a mosquitto. The rest of a configuration: `test_beside_at_random`."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from canopy_load.brokers.process import free_port
from canopy_mqtt import Broker
from canopy_mqtt.convert import mosquitto
from canopy_mqtt.settings.loader import load_settings
from tests.e2e import wire
from tests.e2e.links.network import MOSQUITTO, Process
from tests.e2e.wire import Peer

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")


@pytest.fixture
def ports() -> list[int]:
    with ExitStack() as stack:
        found = []
        for _ in range(2):
            found.append(free_port())
            taken = stack.enter_context(socket.socket())
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", found[-1]))
        return found


async def test_a_bridge_loses_nothing_over_a_restart_and_tells_its_state(tmp_path: Path, ports: list[int]) -> None:
    """With mosquitto's defaults: what was published upstream meanwhile comes; the upstream knows the link's state."""
    assert MOSQUITTO is not None
    there, here = ports
    upstream, conf, settings = tmp_path / "upstream.conf", tmp_path / "mosquitto.conf", tmp_path / "canopy.toml"
    await asyncio.to_thread(upstream.write_text, f"user root\nlistener {there} 127.0.0.1\nallow_anonymous true\n")
    text = (
        f"listener {here} 127.0.0.1\nallow_anonymous true\npersistence true\npersistence_location {tmp_path}/\n"
        f"connection up\naddress 127.0.0.1:{there}\ntopic t/# in 1\n"
    )
    await asyncio.to_thread(conf.write_text, text)
    converted = await asyncio.to_thread(mosquitto.convert, conf)
    assert (converted.guards, converted.missing) == ((), ())
    await asyncio.to_thread(settings.write_text, converted.toml)
    ours = await asyncio.to_thread(load_settings, settings, (), (), {})
    kept: Any = {"clean": False, "props": [(wire.SESSION_EXPIRY, 1_000)]}
    theirs = Process([MOSQUITTO, "-c", str(upstream)], "running")
    await theirs.start()
    try:
        source = await Peer.join(there, "source", ("$SYS/broker/connection/+/state", 0))
        await source.publish("t/ready", b"x", qos=1, retain=True)
        async with Broker(ours):
            reader = await Peer.join(here, "reader", ("t/#", 1), **kept)
            assert (await reader.message()).topic == "t/ready"
            told = await source.message()
            assert (told.topic, told.payload) == (f"$SYS/broker/connection/{socket.gethostname()}.up/state", b"1")
            await reader.disconnect()
        for at in range(5):
            await source.publish("t/x", b"%d" % at, qos=1)
        async with Broker(ours):
            reader = await Peer.join(here, "reader", **kept)
            came = [(await reader.message()).payload]
            while came[-1] != b"4":
                came.append((await reader.message()).payload)
            # A new subscription upstream brings what is retained there, as mosquitto's bridge has it too.
            assert [payload for payload in came if payload != b"x"] == [b"%d" % at for at in range(5)]
            await reader.disconnect()
        source.abort()
    finally:
        await theirs.end()
