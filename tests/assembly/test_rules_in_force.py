"""The rules in a whole broker: over TCP, and what a reload changes for clients, connected or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from canopy_mqtt import StartupError
from canopy_mqtt.settings.errors import SettingsError
from tests.assembly.test_securing import Brokers
from tests.e2e import wire
from tests.e2e.wire import Peer

EVERYTHING = {"filters": ["#", "$SYS/#"]}


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    made = Brokers()
    yield made
    made.hang_up()
    for broker in made.running:
        await broker.stop()


async def gone(peer: Peer) -> int:
    """The reason code of the DISCONNECT with which a client was told to go."""
    return (await peer.wait_for(wire.DISCONNECT)).code


async def test_who_may_do_what(brokers: Brokers) -> None:
    """A subscriber of `#` is sent what it may have, and no more."""
    broker = await brokers.start(
        rule=[
            {"user": "writer", "filters": "#"},
            {"action": "receive", "filters": "public/#"},
            {"action": "receive", "filters": "#", "effect": "deny"},
            {"user": "reader", "action": "subscribe", "filters": "#", "max_qos": 1},
        ]
    )
    writer = await brokers.connect(broker, "w", user="writer")
    reader = await brokers.connect(broker, "r", user="reader")
    assert await reader.subscribe(("#", 2)) == (1,)
    assert await (await brokers.connect(broker, "x")).subscribe("#") == (0x87,)
    for topic in ("public/1", "secret/1", "public/2"):
        await writer.publish(topic, b"x", qos=1)
    assert [(await reader.message()).topic for _ in range(2)] == ["public/1", "public/2"]
    assert await reader.publish("public/1", b"x", qos=1) == 0x87
    assert await reader.fence() == []


async def test_without_rules_nothing_is_asked(brokers: Brokers) -> None:
    broker = await brokers.start()
    assert broker.router.access_control is None


@pytest.mark.parametrize("version", [4, 5])
class TestReload:
    """Other rules."""

    async def test_who_lost_a_subscription_is_told_and_the_others_stay(self, brokers: Brokers, version: int) -> None:
        broker = await brokers.start(rule=[EVERYTHING])
        loses = await brokers.connect(broker, "loses", version, user="a")
        stays = await brokers.connect(broker, "stays", version, user="b")
        await loses.subscribe("t", "u")
        await stays.subscribe("u", ("t", 2))
        rules = [{"filters": "u"}, {"user": "b", "filters": "#", "max_qos": 1}]
        assert await broker.reload(brokers.settings(rule=rules)) == []
        if version == 5:
            assert await gone(loses) == 0x87
        await loses.closed()
        assert await stays.publish("t", b"x", qos=1) in (0, None)
        assert (await stays.message()).topic == "t"
        assert int(broker.router.sessions["stays"].subscriptions["t"].qos) == 1


async def test_many_sessions_are_looked_at_in_turns(brokers: Brokers) -> None:
    """A turn of that is bounded in work, and others are served in between."""
    broker = await brokers.start(rule=[EVERYTHING])
    peers = [await brokers.connect(broker, f"c{number}") for number in range(20)]
    for peer in peers:
        await peer.subscribe(*[f"t/{number}" for number in range(200)])
    worked: list[int] = []
    before = broker.router.budget.used

    async def watch() -> None:
        nonlocal before
        while True:
            worked.append(broker.router.budget.used - before)
            before = broker.router.budget.used
            await asyncio.sleep(0)

    watching = asyncio.ensure_future(watch())
    await broker.reload(brokers.settings(rule=[{"filters": "$SYS/#"}]))
    watching.cancel()
    for peer in peers:
        assert await gone(peer) == 0x87
    assert all(not session.subscriptions for session in broker.router.sessions.values())
    assert sum(worked) > 200_000
    assert max(worked) < 60_000


class TestFiles:
    """mosquitto's file."""

    async def test_it_is_read_again(self, brokers: Brokers, tmp_path: Path) -> None:
        """Whether the settings have changed or not."""
        acl = tmp_path / "acl"
        await asyncio.to_thread(acl.write_text, "topic t\n")
        broker = await brokers.start(access={"acl_file": str(acl)})
        assert broker.securing is not None
        assert acl in broker.securing.files()
        peer = await brokers.connect(broker)
        assert await peer.publish("t", b"x", qos=1) == 0x10
        assert await peer.publish("u", b"x", qos=1) == 0x87
        await asyncio.to_thread(acl.write_text, "topic u\n")
        await broker.reload(broker.settings)
        assert await peer.publish("t", b"x", qos=1) == 0x87
        assert await peer.publish("u", b"x", qos=1) == 0x10

    async def test_a_bad_one_changes_nothing(self, brokers: Brokers, tmp_path: Path) -> None:
        acl = tmp_path / "acl"
        await asyncio.to_thread(acl.write_text, "topic t\n")
        broker = await brokers.start(access={"acl_file": str(acl)})
        peer = await brokers.connect(broker)
        await asyncio.to_thread(acl.write_text, "topic u\ntpoic t\n")
        with pytest.raises(SettingsError, match=r"acl: line 2: "):
            await broker.reload(broker.settings)
        assert await peer.publish("t", b"x", qos=1) == 0x10
        with pytest.raises(StartupError, match=r"acl: line 2: "):
            await brokers.start(access={"acl_file": str(acl)})
