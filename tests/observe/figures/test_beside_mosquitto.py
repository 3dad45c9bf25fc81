"""The same clients at a mosquitto and at a Canopy: the topics that mosquitto has are there, with the same values."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from canopy_load.brokers.process import free_port
from canopy_mqtt import Broker, Settings
from canopy_mqtt.settings import Sys
from tests.e2e import wire
from tests.e2e.wire import Peer

MOSQUITTO: Final = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")

pytestmark = [pytest.mark.long, pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")]

PREFIX: Final = "$SYS/broker/"

SAME: Final = (
    "bytes/received",
    "clients/active",
    "clients/connected",
    "clients/disconnected",
    "clients/expired",
    "clients/inactive",
    "clients/total",
    "messages/received",
    "publish/messages/dropped",
    "publish/messages/received",
    "shared_subscriptions/count",
    "subscriptions/count",
)
"""Topics that the broker's own messages do not change, nor when the broker looks, as `clients/maximum`."""


@asynccontextmanager
async def mosquitto(folder: Path) -> AsyncIterator[int]:
    assert MOSQUITTO is not None
    port = free_port()
    config = folder / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nsys_interval 1\n", "utf-8")
    null = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(MOSQUITTO, "-c", str(config), stdout=null, stderr=null)
    try:
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                await asyncio.sleep(0.01)
        yield port
    finally:
        process.terminate()
        await process.wait()


async def told(port: int) -> dict[str, str]:
    """What a broker says when clients came, subscribed, published and went, and it says it twice the same."""
    watcher = await Peer.join(port, "watcher")
    await watcher.subscribe("$SYS/#")
    one, other = await Peer.join(port, "one"), await Peer.join(port, "other")
    away = await Peer.join(port, "away", clean=False, props=((wire.SESSION_EXPIRY, 1_000),))
    await away.subscribe("x/#", "y")
    await away.disconnect()
    await one.subscribe("$share/g/t/+", "u/#", ("v", 1))
    for qos in (0, 1, 1, 0):
        await other.publish("nobody/listens", b"payload", qos=qos)
    await one.disconnect()
    values: dict[str, str] = {}
    try:
        async with asyncio.timeout(20):
            while not (values.get("publish/messages/received") == "4" and values.get("clients/disconnected") == "1"):
                message = await watcher.message()
                values[message.topic.removeprefix(PREFIX)] = message.payload.decode()
            # All of that interval, which began with these.
            for _ in range(2):
                uptime = values.get("uptime")
                while values.get("uptime") == uptime:
                    message = await watcher.message()
                    values[message.topic.removeprefix(PREFIX)] = message.payload.decode()
    finally:
        watcher.abort()
        other.abort()
    return values


async def test_the_same_topics_and_values(tmp_path: Path) -> None:
    async with mosquitto(tmp_path) as port:
        expected = await told(port)
    settings = Settings(listen=("mqtt://127.0.0.1:0",), sys=Sys(interval=1.0))
    async with Broker(settings) as broker:
        found = await told(broker.ports[0])
    assert expected.keys() - found.keys() == set()
    assert {name: found[name] for name in SAME} == {name: expected[name] for name in SAME}
    for span in ("1min", "5min", "15min"):
        for name in ("sockets", "connections", "publish/received"):
            text = found[f"load/{name}/{span}"]
            # Two digits behind the point, as there, and something that was counted.
            assert len(text.partition(".")[2]) == 2
            assert float(text) > 0.0
