"""The programs of docs/hooks.md run, and do what the page says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.hooks import Hooks
from canopy_mqtt.hooks.interface import NAMES
from tests.e2e.wire import Peer

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "hooks.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def plugin(number: int, name: str) -> Hooks:
    """The class of that name in a program of the page."""
    found: dict[str, type[Hooks]] = {}
    exec(PROGRAMS[number].replace("asyncio.run(main())", ""), found)
    return found[name]()


def serving(hook: Hooks) -> Broker:
    return Broker(Settings(listen=("mqtt://127.0.0.1:0",)), hooks=[hook])


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_they_run(number: int) -> None:
    subprocess.run([sys.executable, "-P", "-c", PROGRAMS[number]], check=True, timeout=60)


async def test_tenants() -> None:
    async with serving(plugin(0, "Tenants")) as broker:
        reader = await Peer.join(broker.ports[0], "reader", "#", user="reader")
        peer = await Peer.join(broker.ports[0], "client", user="alice")
        await peer.publish("t", b"x")
        assert (await reader.message()).topic == "alice/t"
        peer.abort()
        reader.abort()


async def test_json() -> None:
    async with serving(plugin(1, "Json")) as broker:
        peer = await Peer.join(broker.ports[0], "client", "#")
        assert await peer.publish("json/a", b"{", qos=1) == 0x99
        assert await peer.publish("json/a", json.dumps({"a": 1}).encode(), qos=1) == 0
        peer.abort()


async def test_losses() -> None:
    losses = plugin(2, "Losses")
    async with serving(losses) as broker:
        peer = await Peer.join(broker.ports[0], "away", "t", clean=False, props=[(0x11, 60)])
        await peer.disconnect()
        await peer.closed()
        await broker.publish("t", b"x")
    assert losses._lost == {("away", "disconnected"): 1}  # type: ignore[attr-defined]


def test_the_catalogue_has_every_hook() -> None:
    rows = "\n".join(line.partition(" | ")[0] for line in PAGE.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)", rows)) == set(NAMES)
