"""Wills of clients whose node is killed, with daemons: on Zenoh, and with the clocks of the machine."""

from __future__ import annotations

import asyncio
import json
from typing import Final

import pytest

from tests.e2e.wire import Peer, Will
from tests.support.daemon import Daemon
from tests.support.ports import free_port

pytestmark = pytest.mark.long

CLIENTS: Final = 30
KEPT: Final = "$SYS/broker/mesh/wills/kept"


class Nodes:
    """Three daemons that are one broker."""

    def __init__(self, dead_after: float) -> None:
        self.daemons: dict[str, Daemon] = {}
        self._dead_after = dead_after
        self._places = {name: f"tcp/127.0.0.1:{free_port()}" for name in "abc"}

    async def __aenter__(self) -> Nodes:
        try:
            await asyncio.gather(*map(self.start, "abc"))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *args: object) -> None:
        for daemon in self.daemons.values():
            await asyncio.to_thread(daemon.close)

    async def start(self, name: str) -> None:
        """Start a node."""
        others = [place for other, place in self._places.items() if other != name]
        self.daemons[name] = await asyncio.to_thread(
            Daemon,
            *("--set", "mesh.name=wills", "--set", f"mesh.node={name}", "--set", f"mesh.dead_after={self._dead_after}"),
            *("--set", f"mesh.listen={json.dumps([self._places[name]])}"),
            *("--set", f"mesh.connect={json.dumps(others)}", "--set", "sys.interval=0.1"),
        )

    async def kill(self, name: str) -> None:
        """kill -9."""
        daemon = self.daemons.pop(name)
        daemon.process.kill()
        await asyncio.to_thread(daemon.close)
        for other in self.daemons.values():
            await asyncio.to_thread(other.until, "node left")

    async def join(self, name: str, client_id: str, *filters: tuple[str, int], will: Will | None = None) -> Peer:
        """A client of a node."""
        return await Peer.join(self.daemons[name].port, client_id, *filters, will=will)

    async def hold(self, name: str, count: int) -> None:
        """Wait until a node says that it holds so many wills of others."""
        peer = await self.join(name, "", (KEPT, 0))
        while int((await peer.message()).payload) != count:
            pass
        peer.abort()


async def test_each_subscriber_has_each_will_once() -> None:
    """[MQTT-3.1.2-8]; one of the clients says goodbye before."""
    async with Nodes(dead_after=1.0) as nodes:
        await _each_once(nodes)


async def _each_once(nodes: Nodes) -> None:
    wills = {f"c{number}": Will(f"wills/c{number}", b"gone", 1, retain=True) for number in range(CLIENTS)}
    clients = {name: await nodes.join("a", name, will=will) for name, will in wills.items()}
    for name in "bc":
        await nodes.hold(name, CLIENTS)
    await clients.pop("c0").disconnect()
    for name in "bc":
        await nodes.hold(name, CLIENTS - 1)
    listeners = [await nodes.join(name, f"listener-{name}", ("wills/#", 1)) for name in "bc"]
    await nodes.kill("a")
    expected = sorted(f"wills/{name}" for name in clients)
    for listener in listeners:
        assert sorted([(await listener.message()).topic for _ in expected]) == expected
    for name in "bc":
        await nodes.hold(name, 0)
    for listener in listeners:
        assert await listener.fence() == []
    late = await nodes.join("b", "late", ("wills/#", 1))
    assert sorted([(await late.message()).topic for _ in expected]) == expected
    for peer in (*clients.values(), *listeners, late):
        peer.abort()


async def test_a_client_that_comes_back_to_the_next_process_has_its_will_published_first() -> None:
    """Nobody hears of the end of its old connection after what it says on the new one."""
    async with Nodes(dead_after=600.0) as nodes:
        await _published_first(nodes)


async def _published_first(nodes: Nodes) -> None:
    old = await nodes.join("a", "x", will=Will("state/x", b"offline", 1, retain=True))
    for name in "bc":
        await nodes.hold(name, 1)
    listener = await nodes.join("b", "listener", ("state/x", 1))
    await nodes.kill("a")
    await nodes.start("a")
    new = await nodes.join("a", "x")
    await new.publish("state/x", b"online", qos=1, retain=True)
    assert (await listener.message()).payload == b"offline"
    assert (await listener.message()).payload == b"online"
    for name in "bc":
        await nodes.hold(name, 0)
    assert await listener.fence() == []
    for peer in (old, new, listener):
        peer.abort()
