"""One user, or one address, takes all room and leaves: others subscribe, retain and connect all the same.

With and without a store, and after a restart on it: who holds how much is known again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.security.passwords.hashes import make
from canopy_mqtt.security.passwords.password_file import edit
from tests.core.recount import check_accounts
from tests.e2e import wire
from tests.e2e.wire import PING, SESSION_EXPIRY, WILL_DELAY, Peer, Will, connect, publish
from tests.support.waiting import until

NEVER = 0xFFFFFFFF

SMALL = {
    "limits": {"max_filter_bytes": 1_000_000},
    "retained": {"max_bytes": 300_000},
    "session": {"max_bytes": 300_000},
}
"""Bounds that are soon reached."""


@dataclass
class House:
    """A broker, perhaps with a store, and who comes to it: users with passwords, or addresses."""

    broker: Broker
    settings: Settings
    users: bool
    stack: AsyncExitStack

    async def restart(self) -> None:
        """Stop the broker, and start another on its store."""
        await self.broker.stop()
        self.broker = await self.stack.enter_async_context(Broker(self.settings))

    async def left(self, peer: Peer) -> None:
        """A client loses its connection, and the broker has seen it."""
        peer.abort()
        await until(lambda: not self.broker.router.peers.send_buffers)

    async def come(self, who: str, name: str, will: bytes = b"") -> Peer:
        """A client of somebody whose session stays; the CONNACK is read."""
        local = None if self.users else ({"alice": "127.0.0.66", "bob": "127.0.0.1"}[who], 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.broker.ports[0], local_addr=local)
        peer = Peer(reader, writer, 5)
        self.stack.callback(peer.abort)
        user, password = (who, b"hunter2") if self.users else (None, None)
        last = Will(f"users/{who}/will", will, properties=((WILL_DELAY, NEVER),)) if will else None
        props = ((SESSION_EXPIRY, NEVER),)
        await peer.send(connect(f"{who}-{name}", clean=False, props=props, will=last, user=user, password=password))
        peer.connack = await peer.expect(wire.CONNACK)
        return peer


@pytest.fixture(params=[False, True], ids=["addresses", "users"])
def users(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=["memory", "store", "restarted"])
async def house(request: pytest.FixtureRequest, users: bool, tmp_path: Path) -> AsyncIterator[House]:
    tables: dict[str, object] = {"listen": ("mqtt://127.0.0.1:0",), **SMALL}
    if users:
        file = tmp_path / "passwd"
        for user in ("alice", "bob"):
            await asyncio.to_thread(edit, file, user, make(b"hunter2", "pbkdf2-sha512", 10), create=True)
        tables["authenticator"] = [{"name": "users", "type": "password-file", "path": str(file)}]
        tables["security"] = {"client_ids": ["{user}", "{user}-*"]}
        tables["rule"] = [{"action": "all", "filters": ["users/{user}/#"], "effect": "allow"}]
    if request.param != "memory":
        tables["store"] = {"path": str(tmp_path / "store")}
    settings = Settings.model_validate(tables)
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(Broker(settings))
        yield House(broker, settings, users, stack)


async def filters(house: House, who: str, count: int) -> int:
    """Subscribe with one session after the other, each of which leaves, until one is refused. How many were granted."""
    granted = 0
    for session in range(count):
        peer = await house.come(who, f"f{session}")
        assert peer.connack is not None
        if peer.connack.code != 0:
            break
        name = f"users/{who}/{session}"
        codes = await peer.subscribe(*[(f"{name}.{each}" + "/x" * 5 + "/+", 1) for each in range(20)])
        granted += sum(code < 0x80 for code in codes)
        await house.left(peer)
        if codes[-1] >= 0x80:
            break
    return granted


async def retained(house: House, who: str, count: int) -> int:
    """Retain messages; how many were retained."""
    peer = await house.come(who, "r")
    for number in range(count):
        await peer.send(publish(f"users/{who}/{number}", b"x" * 500, retain=True))
    await peer.send(PING)
    await peer.expect(wire.PINGRESP)
    await house.left(peer)
    return len(house.broker.router.retained.matching(f"users/{who}/+"))


async def sessions(house: House, who: str, count: int) -> int:
    """Connect with a will under one identifier after the other, and leave, until one is refused; how many came in."""
    for number in range(count):
        peer = await house.come(who, f"s{number}", b"x" * 2_000)
        assert peer.connack is not None
        if peer.connack.code != 0:
            return number
        await house.left(peer)
    return count


@pytest.mark.parametrize(("take", "most", "some"), [(filters, 100, 6), (retained, 1_000, 100), (sessions, 200, 30)])
async def test_what_one_leaves_behind_is_no_room_lost(
    house: House,
    take: Callable[[House, str, int], Awaitable[int]],
    most: int,
    some: int,
    request: pytest.FixtureRequest,
) -> None:
    """The other gets more than what was still free: what has been there for longest makes room, and no more of it."""
    hogged = await take(house, "alice", most)
    assert 0 < hogged < most * (20 if take is filters else 1), "there is a bound"
    if "restarted" in request.node.callspec.id:
        await house.restart()
    taken = await take(house, "bob", some)
    assert taken == some * (20 if take is filters else 1)
    router = house.broker.router
    assert sum(int(room.gave_way) for room in router.accounts.rooms) > 0
    names = {f"user {who}" for who in ("alice", "bob")} if house.users else {"address 127.0.0.66", "address 127.0.0.1"}
    assert set(router.accounts.by_name) == names
    check_accounts(router)
