"""Who is connected, as retained messages: who comes, goes, is taken over, and what is left of an earlier run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.peers import PeerConnected
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.links.manager import LinkManager
from canopy_mqtt.observe import presence as presence_module
from canopy_mqtt.observe.systopics import MAX_TOPIC_BYTES
from canopy_mqtt.settings import Limits, Presence, Retained, Shutdown, Sys, Upstream
from canopy_mqtt.store.memory import MemoryStore
from tests.e2e import wire
from tests.e2e.wire import Peer
from tests.support.waiting import until

TOPIC = "site/7/presence"


def settings(**sections: Any) -> Settings:
    return Settings(
        **{
            "listen": ("mqtt://127.0.0.1:0",),
            "presence": Presence(topic=TOPIC),
            "limits": Limits(max_client_id_length=0),
            "sys": Sys(interval=0.0),
            "shutdown": Shutdown(flush_timeout=1.0),
            **sections,
        }
    )


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(settings()) as running:
        yield running


async def join(broker: Broker, client_id: str, **keys: Any) -> Peer:
    return await Peer.join(broker.ports[0], client_id, **keys)


async def listener(broker: Broker, topic_filter: str = f"{TOPIC}/+") -> Peer:
    """Somebody who hears of the others; what is told of itself has come already."""
    peer = await join(broker, "listener")
    await peer.subscribe((topic_filter, 1))
    assert await heard(peer) == ("listener", b"online", True)
    return peer


async def heard(peer: Peer) -> tuple[str, bytes, bool]:
    """The next that a listener hears: client identifier as encoded, payload, retain flag."""
    publish = await peer.message()
    prefix, _, last = publish.topic.rpartition("/")
    assert prefix == TOPIC
    return last, publish.payload, publish.retain


def present(broker: Broker) -> dict[str, bytes]:
    """What is retained: encoded client identifier → payload."""
    found: dict[str, bytes] = {}
    for node in broker.router.retained.matching(f"{TOPIC}/#"):
        assert isinstance(node.value, Message)
        found[node.topic.removeprefix(f"{TOPIC}/")] = node.value.payload()
    return found


async def test_a_client_comes_and_goes(broker: Broker) -> None:
    listening = await listener(broker)
    client = await join(broker, "c-1")
    assert await heard(listening) == ("c-1", b"online", False)
    assert present(broker) == {"listener": b"online", "c-1": b"online"}
    await client.send(wire.disconnect())
    assert await heard(listening) == ("c-1", b"", False)
    assert present(broker) == {"listener": b"online"}
    client.abort()
    listening.abort()


async def test_a_kept_session_is_not_online(broker: Broker) -> None:
    client = await join(broker, "c-1", clean=False, props=((wire.SESSION_EXPIRY, 100),))
    assert present(broker) == {"c-1": b"online"}
    await client.send(wire.disconnect())
    await until(lambda: not present(broker))
    assert "c-1" in broker.router.sessions
    back = await join(broker, "c-1", clean=False, props=((wire.SESSION_EXPIRY, 100),))
    assert present(broker) == {"c-1": b"online"}
    client.abort()
    back.abort()


@pytest.mark.parametrize("clean", [True, False])
async def test_a_takeover_is_no_news(broker: Broker, clean: bool) -> None:
    listening = await listener(broker)
    first = await join(broker, "c-1")
    assert await heard(listening) == ("c-1", b"online", False)
    second = await join(broker, "c-1", clean=clean)
    await first.expect(wire.DISCONNECT)
    first.abort()
    await until(lambda: len(broker.connections) == 2)
    other = await join(broker, "c-2")
    # Had there been anything about the takeover, it would have come before.
    assert await heard(listening) == ("c-2", b"online", False)
    assert present(broker)["c-1"] == b"online"
    second.abort()
    assert await heard(listening) == ("c-1", b"", False)
    other.abort()
    listening.abort()


async def test_one_that_comes_and_goes_in_one_read_is_seen(broker: Broker) -> None:
    listening = await listener(broker)
    peer = await Peer.open("127.0.0.1", broker.ports[0])
    await peer.send(wire.connect("hasty") + wire.disconnect())
    assert await heard(listening) == ("hasty", b"online", False)
    assert await heard(listening) == ("hasty", b"", False)
    peer.abort()
    listening.abort()


async def test_with_a_delay_only_who_stays_is_told_of() -> None:
    async with Broker(settings(presence=Presence(topic=TOPIC, delay=1_000.0))) as broker:
        presence = broker.presence
        assert presence is not None
        timers = presence._not_yet

        async def stays(client_id: str) -> None:
            """Its seconds are over."""
            await until(lambda: client_id in timers)
            timers[client_id].cancel()
            presence._stayed(client_id, f"{TOPIC}/{client_id}")

        watching = await join(broker, "watching")
        await watching.subscribe((f"{TOPIC}/+", 1))
        await stays("watching")
        assert await heard(watching) == ("watching", b"online", False)
        hasty = await join(broker, "hasty")
        await until(lambda: "hasty" in timers)
        hasty.abort()
        await until(lambda: "hasty" not in timers)
        first = await join(broker, "stays")
        second = await join(broker, "stays")
        await stays("stays")
        # Of the hasty one there was nothing to hear, and the takeover neither hid the other nor told of it twice.
        assert await heard(watching) == ("stays", b"online", False)
        third = await join(broker, "stays")
        await second.expect(wire.DISCONNECT)
        for peer in (first, second, third):
            peer.abort()
        assert await heard(watching) == ("stays", b"", False)
        late = await join(broker, "late")
        assert present(broker) == {"watching": b"online"}
        watching.abort()
        late.abort()


async def test_a_client_that_is_refused_is_nobody(broker: Broker) -> None:
    peer = await Peer.open("127.0.0.1", broker.ports[0])
    await peer.send(wire.connect("c-1", props=((wire.AUTH_METHOD, "none"),)))
    assert (await peer.expect(wire.CONNACK)).code >= 0x80
    peer.abort()
    await until(lambda: not broker.connections)
    assert present(broker) == {}


@pytest.mark.parametrize(
    ("client_id", "encoded"), [("a/b", "a%2Fb"), ("+#", "%2B%23"), ("100%", "100%25"), ("é", "é"), ("$x", "$x")]
)
async def test_identifiers_that_are_more_than_a_level(broker: Broker, client_id: str, encoded: str) -> None:
    client = await join(broker, client_id)
    assert present(broker) == {encoded: b"online"}
    client.abort()
    await until(lambda: not present(broker))


async def test_an_identifier_too_long_for_a_topic_is_left_out(broker: Broker) -> None:
    longest = "x" * (MAX_TOPIC_BYTES - len(TOPIC) - 1)
    client = await join(broker, longest)
    assert list(present(broker)) == [longest]
    other = await join(broker, longest + "y")
    assert list(present(broker)) == [longest]
    other.abort()
    client.abort()
    await until(lambda: not present(broker))


async def test_links_to_upstream_brokers_are_no_clients() -> None:
    """Neither at the start nor at the stop."""
    running = Broker(settings())
    counters = Counters()
    link = Session("$upstream/cloud", 0, 0, counters)
    link.upstream = link.internal = True
    send_buffer = SendBuffer(running.router.peers.touched, counters, 0, 0)
    running.router.peers.events.append(PeerConnected(link, send_buffer))
    running.router.peers.drain(running.router, 0.0)
    async with running:
        assert present(running) == {}


async def test_who_is_there_at_the_start_is_told() -> None:
    """The broker listens before it tells."""
    running = Broker(settings())
    early = Session("early", 0, 0, Counters())
    running.router.sessions["early"] = early
    running.router.peers.events.append(PeerConnected(early, SendBuffer([], Counters(), 0, 0)))
    running.router.peers.drain(running.router, 0.0)
    await running.start()
    assert present(running) == {"early": b"online"}
    await running.stop()
    assert present(running) == {}


async def test_the_limits_of_retained_messages_hold() -> None:
    """Who does not fit is told of, and its end too; it is not found by those who come later."""
    async with Broker(settings(retained=Retained(max_messages=1))) as broker:
        listening = await listener(broker)
        client = await join(broker, "c-1")
        assert await heard(listening) == ("c-1", b"online", False)
        assert present(broker) == {"listener": b"online"}
        assert broker.router.counters.retained_refused == 1
        client.abort()
        assert await heard(listening) == ("c-1", b"", False)
        listening.abort()


async def test_what_an_earlier_run_left_is_cleared_and_nothing_else() -> None:
    store = MemoryStore()
    async with Broker(settings(), store=store) as broker:
        for name, publisher in (("gone/x", ""), ("gone", ""), ("theirs", "$upstream/cloud"), ("back", "")):
            broker.router.publish(Message(f"{TOPIC}/{name}".encode(), b"online", 1, True, b"", 0.0, publisher), None)
    async with Broker(settings(), store=store) as broker:
        # Two levels below the topic is nothing that the broker tells.
        assert present(broker) == {"theirs": b"online", "gone/x": b"online"}


async def test_an_orderly_stop_clears_all_while_there_are_links(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    broker = Broker(settings())

    class Recording(LinkManager):
        async def stop(self) -> None:
            seen.append(f"links stop with {len(present(broker))}, {len(broker.connections)} connections")
            await super().stop()

    monkeypatch.setattr("canopy_mqtt.assembly.app.LinkManager", Recording)
    monkeypatch.setattr(presence_module, "TURN", 2)
    await broker.start()
    listening = await listener(broker)
    clients = [await join(broker, f"c-{number}") for number in range(5)]
    for _ in range(5):
        await heard(listening)
    assert len(present(broker)) == 6

    async def to_the_end(peer: Peer) -> list[wire.Packet]:
        packets = await peer.closed()
        peer.abort()
        return packets

    ends = [asyncio.ensure_future(to_the_end(peer)) for peer in (listening, *clients)]
    await asyncio.gather(broker.stop(), broker.stop())
    assert present(broker) == {}
    assert seen == ["links stop with 0, 0 connections"]
    told, *_ = await asyncio.gather(*ends)
    cleared = {(packet.topic, packet.payload) for packet in told if packet.kind == wire.PUBLISH}
    assert cleared == {(f"{TOPIC}/{name}", b"") for name in ("listener", *(f"c-{number}" for number in range(5)))}


async def test_an_upstream_broker_sees_who_is_here_and_that_all_have_gone() -> None:
    """Through a real link: also of the stop it hears, since the links end last."""
    async with Broker(settings(presence=Presence())) as hub:
        link = Upstream(name="hub", url=f"mqtt://127.0.0.1:{hub.ports[0]}", publish=[f"{TOPIC}/#"])
        edge = Broker(settings(upstream=[link]))
        await edge.start()
        ends = [await join(edge, "c-1"), await join(edge, "c-2")]
        await until(lambda: present(hub) == {"c-1": b"online", "c-2": b"online"})
        ends[0].abort()
        await until(lambda: present(hub) == {"c-2": b"online"})
        stopping = asyncio.ensure_future(edge.stop())
        await ends[1].closed()
        ends[1].abort()
        await stopping
        assert present(hub) == {}


async def test_without_a_topic_nothing_is_told() -> None:
    async with Broker(settings(presence=Presence())) as broker:
        assert broker.presence is None
        client = await join(broker, "c-1")
        assert len(broker.router.retained) == 0
        client.abort()


async def test_nobody_else_says_who_is_here(broker: Broker) -> None:
    """Neither that somebody has gone nor that somebody has come, retained or not, message or will [MQTT3-3.3.5-2]."""
    listening = await listener(broker)
    victim = await join(broker, "victim")
    assert await heard(listening) == ("victim", b"online", False)
    forger = await join(broker, "forger")
    assert await heard(listening) == ("forger", b"online", False)
    for topic, payload in ((f"{TOPIC}/victim", b""), (f"{TOPIC}/ghost", b"online"), (TOPIC, b"x")):
        for retain in (True, False):
            assert await forger.publish(topic, payload, qos=1, retain=retain) == 0x87
            await forger.publish(topic, payload, qos=0, retain=retain)
    assert present(broker) == dict.fromkeys(("listener", "victim", "forger"), b"online")
    await victim.send(wire.disconnect())
    assert await heard(listening) == ("victim", b"", False)
    for peer in (victim, forger, listening):
        peer.abort()
