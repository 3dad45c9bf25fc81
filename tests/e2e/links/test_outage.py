"""A link that breaks, and an upstream broker that dies: what was acknowledged to a publisher arrives, in order.

Owns: QoS 1 and 2 across outages of every kind, the bound of the queue and its account, and how few packets a
re-declaration takes.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e import wire
from tests.e2e.faults import FaultProxy, ProxiedConnection
from tests.e2e.links.network import KINDS, OFTEN, V5, Net, link, told, until
from tests.e2e.links.scripted_upstream import Caller, Heard, ScriptedUpstream
from tests.e2e.wire import Peer


class Valve:
    """Lets the connections of a proxy pass, or holds them back: for clients that must be back before the link is."""

    def __init__(self) -> None:
        self.open = True
        self.links: list[ProxiedConnection] = []

    def greet(self, connection: ProxiedConnection) -> None:
        self.links.append(connection)
        if not self.open:
            connection.freeze()

    def shut(self) -> None:
        """Nothing passes any more, on new connections neither."""
        self.open = False
        for connection in self.links:
            connection.freeze()

    def heal(self) -> None:
        """Everything passes again."""
        self.open = True
        for connection in self.links:
            connection.heal()


async def burst(peer: Peer, topic: str, numbers: range, qos: int) -> None:
    """Publish so many, all in one, and see all of them through."""
    ids = [peer.next_id() for _ in numbers]
    packets = [
        wire.publish(topic, b"%d" % number, version=peer.version, qos=qos, packet_id=packet_id)
        for number, packet_id in zip(numbers, ids, strict=True)
    ]
    await peer.send(*packets)
    for packet_id in ids:
        ack = await peer.wait_for(wire.PUBACK if qos == 1 else wire.PUBREC)
        assert (ack.packet_id, ack.code & 0x80) == (packet_id, 0)
    if qos == 2:
        await peer.send(*(wire.ack(wire.PUBREL, packet_id) for packet_id in ids))
        for _ in ids:
            await peer.wait_for(wire.PUBCOMP)


async def numbers_until(peer: Peer, last: int) -> list[int]:
    """The payloads of all messages up to the one that says `last`. A fence of before the outage may come again."""
    found: list[int] = []
    while not found or found[-1] != last:
        message = await peer.message()
        if not message.topic.startswith("fence/"):
            found.append(int(message.payload))
    return found


def firsts(numbers: list[int]) -> list[int]:
    """Without what comes again."""
    return list(dict.fromkeys(numbers))


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
async def test_cuts_lose_and_reorder_nothing(net: Net, kind: str, qos: int) -> None:
    """The connection is reset five times while messages go up: all arrive, in order; at QoS 2, each once."""
    upstream = await net.upstream(kind)
    proxy = await net.proxy(upstream.port)
    edge = await net.edge(link(proxy, publish=["load"]))
    reader = await net.join(upstream, "reader", ("load", qos))
    writer = await net.join(edge, "writer")
    for number in range(5):
        publishing = asyncio.create_task(burst(writer, "load", range(number * 60, number * 60 + 60), qos))
        # Connections on which little passes are those that try a version, or clear a session of 3.1.1.
        await until("the middle", lambda: any(it.up.passed > 300 for it in proxy.links))
        proxy.cut()
        await publishing
    found = await numbers_until(reader, 299)
    assert firsts(found) == list(range(300))
    if qos == 2:
        assert len(found) == 300


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_is_on_the_way_up_is_sent_again(net: Net, qos: int) -> None:
    """An upstream that keeps the session gets the same messages with DUP; each is heard, and in order."""
    upstream = await net.scripted(Silent())
    edge = await net.edge(link(upstream, publish=["load"]))
    writer = await net.join(edge, "writer")
    await burst(writer, "load", range(20), qos)
    first = await upstream.caller(0)
    await upstream.until("all", lambda: len(first.published()) == 20)
    upstream.session_present = True
    upstream.mute = False
    first.abort()
    second = await upstream.caller(1)
    assert not second.connect.clean
    await upstream.until("all again", lambda: len(second.published()) == 20)
    assert second.published() == [b"%d" % number for number in range(20)]
    assert all(heard.dup for heard in second.said(wire.PUBLISH))
    assert [h.packet_id for h in second.said(wire.PUBLISH)] == [h.packet_id for h in first.said(wire.PUBLISH)]


class Silent(ScriptedUpstream):
    """Acknowledges no PUBLISH while it is mute."""

    mute = True

    async def answer(self, caller: Caller, heard: Heard) -> None:
        """Leave messages without an answer."""
        if not (self.mute and heard.kind == wire.PUBLISH):
            await super().answer(caller, heard)


async def test_a_half_open_connection_is_noticed_by_the_keep_alive(net: Net) -> None:
    """Nothing passes and nothing is told: the link notices by itself, and what was sent into the void goes again."""
    upstream = await net.upstream("canopy")
    proxy = await net.proxy(upstream.port)
    edge = await net.edge(link(proxy, publish=["#"], keep_alive=1, client_id="edge"))
    reader = await net.join(upstream, "reader", "load")
    writer = await net.join(edge, "writer", "down")
    await net.up(writer, reader)
    (await proxy.link(0)).freeze()
    await burst(writer, "load", range(50), 1)
    await proxy.link(1)
    assert firsts(await numbers_until(reader, 49)) == list(range(50))
    await net.down(reader, writer)
    await reader.publish("down", b"back", qos=1)
    ((message,),) = await net.down(reader, writer)
    assert message.payload == b"back"


@pytest.mark.parametrize("kind", KINDS)
async def test_upstream_killed_and_started_again_under_load(net: Net, kind: str) -> None:
    """kill -9 with messages under way in both directions; all that the edge had acknowledged arrives, in order."""
    upstream = await net.process(kind)
    assert upstream.process is not None
    valve = Valve()
    proxy = await net.proxy(upstream.port, valve.greet)
    edge = await net.edge(link(proxy, publish=["load/#", "fence/#"]))
    reader = await net.join(upstream, "reader", "load/#")
    writer = await net.join(edge, "writer")
    listener = await net.join(edge, "listener", "down")
    await net.down(reader, listener)
    await burst(writer, "load/1", range(100), 1)
    found = await numbers_until(reader, 99)
    # From above too: nobody upstream was told that these arrived.
    await reader.send(*(wire.publish("down", b"%d" % number, version=reader.version) for number in range(300)))
    # What is under way from here on is lost with upstream, in both directions.
    valve.shut()
    publishing = asyncio.create_task(burst(writer, "load/1", range(100, 400), 1))
    await upstream.process.end()
    await publishing
    await upstream.process.start()
    back = await net.join(upstream, "reader", "load/#")
    valve.heal()
    found += await numbers_until(back, 399)
    assert sorted(firsts(found)) == list(range(400))
    assert firsts(found) == list(range(400))
    # Down as well, as before: in order, nothing twice.
    ((*got,),) = await net.down(back, listener)
    received = [int(message.payload) for message in got]
    assert received == sorted(set(received))
    await back.publish("down", b"1000", qos=1)
    ((message,),) = await net.down(back, listener)
    assert message.payload == b"1000"


@pytest.mark.parametrize(
    ("policy", "kept"), [("drop-newest", range(100)), ("drop-oldest", range(900, 1000))], ids=["newest", "oldest"]
)
async def test_the_queue_of_an_outage_is_bounded_and_counted(net: Net, policy: str, kept: range) -> None:
    """1,000 messages into a queue of 100 while upstream is away: 900 are dropped and counted, 100 arrive."""
    upstream = await net.scripted(ScriptedUpstream())
    edge = await net.edge(
        link(upstream, publish=["load", "up"], queue_messages=100, policy=policy), sys={"interval": OFTEN}
    )
    writer = await net.join(edge, "writer")
    await writer.publish("up", b"x", qos=1)
    caller = await upstream.caller()
    await upstream.until("it is up", lambda: caller.published("up"))
    await upstream.shut()
    operator = await net.join(edge, "operator")
    await until("the link knows", lambda: edge.router.sessions["$upstream/up"].send_buffer is None)
    await burst(writer, "load", range(1000), 1)
    await told(operator, "$SYS/broker/clients/$upstream%2Fup/dropped", lambda value: value == "900")
    await upstream.listen()
    second = await upstream.caller(1)
    await upstream.until("all that are left", lambda: len(second.published("load")) >= 100)
    await writer.publish("up", b"y", qos=1)
    await upstream.until("the fence", lambda: second.published("up"))
    assert second.published("load") == [b"%d" % number for number in kept]


async def test_qos_0_waits_only_where_it_is_asked_to(net: Net) -> None:
    """`queue_qos0`."""
    upstream = await net.scripted(ScriptedUpstream())
    port = upstream.port
    await upstream.shut()
    patient = await net.edge(link(port, publish=["load"], queue_qos0=True, client_id="patient"))
    other = await net.edge(link(port, publish=["load"], client_id="other"))
    for edge in (patient, other):
        writer = await net.join(edge, "writer")
        await writer.publish("load", b"0", qos=0)
        await writer.publish("load", b"1", qos=1)
    await upstream.listen()
    await upstream.until(
        "both have sent theirs", lambda: sum(b"1" in caller.published() for caller in upstream.callers) == 2
    )
    sent = {caller.connect.client_id: caller.published() for caller in upstream.callers}
    assert sent == {"patient": [b"0", b"1"], "other": [b"1"]}


async def test_a_re_declaration_takes_few_packets(net: Net) -> None:
    """300 filters after a reconnect without session: no SUBSCRIBE for each; with a session, none at all."""
    upstream = await net.scripted(ScriptedUpstream())
    edge = await net.edge(link(upstream))
    await net.join(edge, "many", *(f"topic/{number}" for number in range(300)))
    first = await upstream.caller(0)
    await upstream.until("all", lambda: len(first.filters) == 300)
    assert len(first.said(wire.SUBSCRIBE)) <= 30
    first.abort()
    second = await upstream.caller(1)
    await upstream.until("all again", lambda: len(second.filters) == 300)
    assert len(second.said(wire.SUBSCRIBE)) <= 30
    assert len(second.asked()) == 300
    upstream.session_present = True
    second.abort()
    third = await upstream.caller(2)
    await net.join(edge, "fence", "fence")
    await upstream.until("the fence", lambda: "fence" in third.filters)
    assert third.asked() == ["fence"]


async def test_what_changed_during_the_outage_is_put_right(net: Net) -> None:
    """With the session kept upstream: what nobody wants any more is taken back, what is new is asked for."""
    upstream = await net.scripted(ScriptedUpstream())
    edge = await net.edge(link(upstream))
    stays = await net.join(edge, "stays", "stays")
    goes = await net.join(edge, "goes", "goes")
    first = await upstream.caller(0)
    await upstream.until("both", lambda: set(first.filters) == {"stays", "goes"})
    upstream.session_present = True
    await upstream.shut()
    await goes.disconnect()
    await stays.subscribe("new")
    await upstream.listen()
    second = await upstream.caller(1)
    await upstream.until("put right", lambda: "new" in second.asked() and "goes" in second.took_back())
    assert "stays" not in second.took_back()


@pytest.mark.parametrize("kind", V5)
async def test_what_waits_upstream_for_the_link_comes_after_a_cut(net: Net, kind: str) -> None:
    """QoS 1 from above while the link is away: upstream keeps the session, nothing is lost."""
    upstream = await net.upstream(kind)
    valve = Valve()
    proxy: FaultProxy = await net.proxy(upstream.port, valve.greet)
    edge = await net.edge(link(proxy, publish=["fence/#"]))
    above = await net.join(upstream, "above")
    listener = await net.join(edge, "listener", "down")
    await net.down(above, listener)
    valve.open = False
    proxy.cut()
    await burst(above, "down", range(100), 1)
    valve.heal()
    assert firsts(await numbers_until(listener, 99)) == list(range(100))
