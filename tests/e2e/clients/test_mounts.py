"""Tenants: paho and mosquitto's clients on a listener with a mount, beside one without."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from canopy_mqtt import Broker, Settings
from tests.e2e.clients.python.drivers import within
from tests.support.waiting import until

PUB, SUB = shutil.which("mosquitto_pub"), shutil.which("mosquitto_sub")

pytestmark = pytest.mark.skipif(not PUB or not SUB, reason="mosquitto_pub and mosquitto_sub are not installed")


@pytest.fixture
async def ports() -> AsyncIterator[list[str]]:
    """Of the listener for tenants, and of the one without a mount."""
    tables = [{"url": "mqtt://127.0.0.1:0", "name": "tenants", "mount": "tenant/{user}/"}]
    settings = Settings.model_validate({"listen": ["mqtt://127.0.0.1:0"], "listener": tables})
    async with Broker(settings) as broker:
        yield [str(port) for port in reversed(broker.ports)]


async def run(program: str | None, port: str, *arguments: str) -> list[str]:
    """The lines that one of mosquitto's clients prints, which has to end well."""
    assert program is not None
    process = await asyncio.create_subprocess_exec(
        *(program, "-h", "127.0.0.1", "-p", port, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await within(program, process.communicate())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, err) == (0, b"")
    return sorted(out.decode().splitlines())


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
async def test_mosquittos_clients(ports: list[str], version: str) -> None:
    """Retained messages of two tenants, each with its own names, and with their whole names outside."""
    tenants, outside = ports
    for user in ("alice", "bob"):
        for topic in ("t", "t/u"):
            arguments = ("-V", version, "-u", user, "-t", topic, "-m", f"of {user}", "-q", "1", "-r")
            await run(PUB, tenants, *arguments)
    shown = ("-V", version, "-F", "%t %p", "-W", "20")
    for user in ("alice", "bob"):
        lines = await run(SUB, tenants, *shown, "-u", user, "-t", "#", "-q", "1", "-C", "2")
        assert lines == [f"t of {user}", f"t/u of {user}"]
    assert await run(SUB, outside, *shown, "-t", "tenant/#", "-C", "4") == [
        "tenant/alice/t of alice",
        "tenant/alice/t/u of alice",
        "tenant/bob/t of bob",
        "tenant/bob/t/u of bob",
    ]


async def test_paho_asks_and_is_answered_from_outside(ports: list[str]) -> None:
    """Two clients of paho, one on each listener: the Response Topic leads back through the mount."""
    heard: list[Any] = []
    granted: list[Any] = []
    clients = []

    def client(port: str, user: str | None, *filters: str) -> paho.Client:
        made = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        if user is not None:
            made.username_pw_set(user, "x")
        made.on_subscribe = lambda *each: granted.extend(code.value for code in each[3])

        def subscribe(*_: Any) -> None:
            made.subscribe([(each, 1) for each in filters])

        made.on_connect = subscribe
        made.connect_async("127.0.0.1", int(port))
        clients.append(made)
        return made

    def answer(served: paho.Client, _: Any, message: Any) -> None:
        heard.append(message.topic)
        if hasattr(message.properties, "ResponseTopic"):
            served.publish(message.properties.ResponseTopic, b"answer", 1)

    tenants, outside = ports
    service = client(outside, None, "tenant/+/ask")
    service.on_message = answer
    asker = client(tenants, "alice", "answers/#", "$SYS/#")
    asker.on_message = lambda *each: heard.append(each[-1].topic)
    for each in clients:
        each.loop_start()
    try:
        await until(lambda: len(granted) == 3, "SUBACK")
        assert sorted(granted) == [1, 1, 0x87]
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ResponseTopic = "answers/1"
        asker.publish("ask", b"?", 1, properties=properties)
        await until(lambda: len(heard) == 2, "the answer")
        assert heard == ["tenant/alice/ask", "answers/1"]
    finally:
        for each in clients:
            each.disconnect()
            each.loop_stop()
