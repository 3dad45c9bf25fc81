"""Where clients come in: silent and large connections take nothing from those that send a CONNECT."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import structlog

from canopy_mqtt.settings import Settings
from canopy_mqtt.workers.by_address import ByAddress
from canopy_mqtt.workers.entrance import Entrance
from canopy_mqtt.workers.lines import Newcomer
from tests.e2e import wire
from tests.e2e.wire import USER_PROPERTY, connect
from tests.support.waiting import until


class Clients:
    """An entrance, its clients, and those that have arrived."""

    def __init__(self, stack: AsyncExitStack, entrance: Entrance, arrived: list[Newcomer]) -> None:
        self.stack = stack
        self.entrance = entrance
        self.arrived = arrived

    async def come(self, data: bytes = b"", host: str = "127.0.0.1") -> wire.Peer:
        """A connection from one of this machine's addresses, of which the entrance knows."""
        before = set(self.entrance._unread)
        peer = wire.Peer(
            *await asyncio.open_connection("127.0.0.1", self.entrance.places[0].endpoint.port, local_addr=(host, 0)), 5
        )
        self.stack.callback(peer.abort)
        await peer.send(data)
        await until(lambda: any(len(each.opening.data) == len(data) for each in set(self.entrance._unread) - before))
        return peer


@pytest.fixture
async def entered(stack: AsyncExitStack) -> Callable[..., Any]:
    async def make(most: int, proxied: bool = False, **limits: int) -> Clients:
        table: dict[str, Any] = {"url": "mqtt://127.0.0.1:0"}
        if proxied:
            table |= {"proxy_protocol": "v1", "proxy_from": ["127.0.0.1/32"]}
        settings = Settings(listener=(table,), limits=limits, workers={"count": 4})
        arrived: list[Newcomer] = []
        entrance = Entrance(settings, structlog.get_logger(), most, arrived.append)
        await entrance.bind()
        stack.push_async_callback(entrance.close)
        entrance.open()
        return Clients(stack, entrance, arrived)

    return make


async def test_the_oldest_of_the_address_that_has_most_gives_way(entered: Callable[..., Any]) -> None:
    clients = await entered(4)
    other = await clients.come(host="127.0.0.2")
    silent = [await clients.come() for _ in range(5)]
    assert [await peer.closed() for peer in silent[:2]] == [[], []]
    await other.send(connect("a"))
    await until(lambda: clients.arrived)
    (newcomer,) = clients.arrived
    assert newcomer.sock.getpeername()[0] == "127.0.0.2"
    newcomer.sock.close()


def header(host: str) -> bytes:
    return f"PROXY TCP4 {host} 192.0.2.1 4000 1883\r\n".encode()


async def test_behind_a_proxy_the_addresses_of_its_clients_count(entered: Callable[..., Any]) -> None:
    clients = await entered(4, proxied=True)
    # One has it with the first bytes, and one later.
    honest = [await clients.come(header("192.0.2.7")), await clients.come()]
    await honest[1].send(header("192.0.2.8"))
    await until(lambda: sum(bool(each.opening.host) for each in clients.entrance._unread) == 2)
    silent = [await clients.come(header("192.0.2.9")) for _ in range(4)]
    assert [await peer.closed() for peer in silent[:2]] == [[], []]
    for peer in honest:
        await peer.send(connect("a"))
    await until(lambda: len(clients.arrived) == 2)
    for newcomer in clients.arrived:
        newcomer.sock.close()


async def test_whoever_is_no_proxy_takes_no_place_where_proxies_come(entered: Callable[..., Any]) -> None:
    clients = await entered(1, proxied=True)
    proxied = await clients.come()
    _, writer = await asyncio.open_connection(
        "127.0.0.1", clients.entrance.places[0].endpoint.port, local_addr=("127.0.0.2", 0)
    )
    await until(lambda: clients.arrived)
    assert len(clients.entrance._unread) == 1
    clients.arrived[0].sock.close()
    writer.close()
    proxied.abort()


def test_the_fullest_address_is_known_whatever_comes_and_goes() -> None:
    chance = random.Random(7)
    by_address, there = ByAddress[int](), list[tuple[int, int]]()
    for thing in range(3_000):
        if there and chance.random() < (0.3 if thing < 2_000 else 0.9):
            gone = there.pop(chance.randrange(len(there)))
            by_address.remove(*gone)
        there.append((thing, chance.randrange(9)))
        by_address.add(*there[-1])
        counts = Counter(address for _, address in there)
        found = by_address.oldest_of_fullest()
        (address,) = {address for each, address in there if each == found}
        assert counts[address] == max(counts.values())
        assert found == min(each for each, other in there if other == address)


async def test_where_all_hold_too_much_a_small_connect_stays(entered: Callable[..., Any]) -> None:
    clients = await entered(100, max_partial_bytes=30_000, max_connect_size=20_000)
    packet = connect("a", props=[(USER_PROPERTY, ("k", "v" * 12_000))])
    small = await clients.come(packet[:20])
    large = [await clients.come(packet[:9_000]) for _ in range(4)]
    assert await large[0].closed() == []
    await small.send(packet[20:])
    await until(lambda: clients.arrived)
    clients.arrived[0].sock.close()


async def test_who_sends_too_little_has_until_its_time_is_over(entered: Callable[..., Any]) -> None:
    clients = await entered(10, connect_timeout=1_000)
    slow = await clients.come(connect("slow")[:9])
    (unread,) = clients.entrance._unread
    unread.until = 0.0
    clients.entrance._look()
    assert await slow.closed() == []
    assert not clients.entrance._unread
