"""QoS 1 and 2 in bursts between nodes: what goes to another node in one go comes to the same as message by message."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from broker.core.connection.publish.publishing import PUBLISH_RUN
from tests.e2e import wire
from tests.e2e.wire import PUBACK, PUBCOMP, PUBREC, PUBREL, Peer
from tests.mesh.brokers import Nodes, Start
from tests.support.waiting import until

NO_MATCHING_SUBSCRIBERS = 0x10
COUNT = 40
"""Messages in a burst: enough for one piece of all of their frames."""


def burst(version: int, qos: int, count: int = COUNT, first: int = 1) -> bytes:
    """So many PUBLISH that are alike but for payload and identifier, as one write."""
    return b"".join(
        wire.publish("x", b"%03d" % number, version=version, qos=qos, packet_id=number)
        for number in range(first, first + count)
    )


async def routed(hears: Peer, says: Peer) -> None:
    """The topic has been routed, so that what follows takes the hot path."""
    await says.publish("x", b"000")
    assert (await hears.message()).payload == b"000"


async def two_nodes(start: Start, **settings: Any) -> tuple[Nodes, Peer, Peer]:
    """The nodes a and b; a client of b that hears what one of a says."""
    nodes = await start("a", "b", **settings)
    hears = await nodes.join("b", "hears", ("x", 2))
    says = await nodes.join("a", "says")
    await routed(hears, says)
    return nodes, hears, says


async def answers(says: Peer, qos: int, count: int = COUNT) -> list[tuple[int, int]]:
    """The identifiers that are acknowledged, in order, and how; QoS 2 is seen through."""
    found = []
    for _ in range(count):
        packet = await says.expect(PUBACK if qos == 1 else PUBREC)
        found.append((packet.packet_id, packet.code))
    if qos == 2:
        await says.send(b"".join(wire.ack(PUBREL, each or 0, version=says.version) for each, _ in found))
        for each, _ in found:
            assert (await says.expect(PUBCOMP)).packet_id == each
    return [(each or 0, code) for each, code in found]


def expected(count: int = COUNT) -> list[tuple[int, int]]:
    return [(number, 0) for number in range(1, count + 1)]


@pytest.mark.parametrize(("said", "heard", "qos"), [*product((4, 5), (4, 5), (1, 2))])
async def test_a_burst_arrives_in_order_and_is_acknowledged_in_order(
    start: Start, said: int, heard: int, qos: int
) -> None:
    """Whatever the versions of both clients are; nodes speak 5.0. Also when its identifiers are used again."""
    nodes = await start("a", "b")
    hears = await nodes.join("b", "hears", ("x", 2), version=heard)
    says = await nodes.join("a", "says", version=said)
    await routed(hears, says)
    for _ in range(2):
        await says.send(burst(said, qos, 2 * PUBLISH_RUN + 1))
        assert await answers(says, qos, 2 * PUBLISH_RUN + 1) == expected(2 * PUBLISH_RUN + 1)
        for number in range(1, 2 * PUBLISH_RUN + 2):
            message = await hears.message()
            assert (message.payload, message.qos, message.dup) == (b"%03d" % number, qos, False)
    assert await hears.fence() == []
    for node in "ab":
        assert nodes.brokers[node].router.counters.load.messages == 0
        assert nodes.brokers[node].router.counters.load.inflight == 0
    link = nodes.meshes["a"].links["b"]
    assert (link.session.inflight.count, link.session.window.bytes) == (0, 0)


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_burst_waits_for_the_other_node_and_no_longer_than_set(start: Start, qos: int) -> None:
    """What comes again while it waits is not published again, and acknowledged once."""
    nodes, hears, says = await two_nodes(start, mesh={"confirm_timeout": 1.5})
    nodes.mesh.hold("a", "b")
    await says.send(burst(5, qos))
    assert await says.fence() == []
    await says.send(burst(5, qos))
    assert await says.fence() == []
    # Nobody releases it: they leave when the time is over.
    assert await answers(says, qos) == expected()
    nodes.mesh.release("a", "b")
    assert [(await hears.message()).payload for _ in range(COUNT)] == [b"%03d" % each for each in range(1, COUNT + 1)]
    assert await hears.fence() == []
    link = nodes.meshes["a"].links["b"]
    await until(lambda: link.session.inflight.count == 0)
    assert len(nodes.brokers["a"].router.deadlines) == 0
    # The node has answered since: it is waited for again.
    await says.send(burst(5, qos))
    assert await answers(says, qos) == expected()


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_burst_that_reached_nobody_says_so(start: Start, qos: int) -> None:
    """The client that wanted it has gone by the time that it comes to the node."""
    nodes, hears, says = await two_nodes(start)
    nodes.mesh.hold("b", "a")
    await hears.send(wire.unsubscribe(1, ["x"]))
    await until(lambda: not nodes.brokers["b"].router.sessions["hears"].subscriptions)
    await says.send(burst(5, qos))
    assert await says.fence() == []
    nodes.mesh.release("b", "a")
    assert await answers(says, qos) == [(number, NO_MATCHING_SUBSCRIBERS) for number in range(1, COUNT + 1)]


async def test_of_a_burst_each_is_told_whether_it_reached_anybody(start: Start) -> None:
    """Those that came to the node before the client that wants them has gone, and those that came after."""
    nodes, _, says = await two_nodes(start)
    window = nodes.meshes["a"].links["b"].session.window
    nodes.mesh.hold("a", "b")
    await says.send(burst(5, 1, 4))
    await says.fence()
    await until(lambda: window.inflight.count == 4)
    assert len({delivery.asked for delivery in window.inflight.values()}) == 1
    # As if the node had acknowledged them so.
    for delivery, code in zip(window.inflight.values(), (0, NO_MATCHING_SUBSCRIBERS, 0, 0), strict=True):
        window.on_puback(delivery.packet_id, code)
    nodes.brokers["a"].after_batch()
    assert await answers(says, 1, 4) == [(1, 0), (2, NO_MATCHING_SUBSCRIBERS), (3, 0), (4, 0)]


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_burst_goes_on_when_the_nodes_have_lost_each_other(start: Start, qos: int) -> None:
    """It is sent again on the next connection; QoS 2 arrives once."""
    nodes, hears, says = await two_nodes(start)
    nodes.mesh.hold("a", "b")
    await says.send(burst(5, qos))
    assert await says.fence() == []
    nodes.mesh.lose("a", "b")
    nodes.mesh.release("a", "b")
    assert await answers(says, qos) == expected()
    got = [(await hears.message()).payload for _ in range(COUNT)]
    assert got == [b"%03d" % each for each in range(1, COUNT + 1)]
    assert await hears.fence() == []


async def test_who_goes_while_its_burst_waits_leaves_nothing(start: Start) -> None:
    nodes, hears, says = await two_nodes(start)
    nodes.mesh.hold("a", "b")
    await says.send(burst(5, 1))
    await says.fence()
    assert len(nodes.brokers["a"].router.deadlines) == 1
    says.abort()
    await until(lambda: len(nodes.brokers["a"].router.deadlines) == 0)
    nodes.mesh.release("a", "b")
    for number in range(1, COUNT + 1):
        assert (await hears.message()).payload == b"%03d" % number


async def test_a_node_is_told_no_receive_maximum(start: Start) -> None:
    """It publishes for all of its clients; each of those keeps to its own."""
    nodes = await start("a", "b", mqtt={"receive_maximum": 5})
    hears = await nodes.join("b", "hears", ("x", 1))
    assert nodes.meshes["a"].links["b"].session.window.limit == 65_535
    saying = [await nodes.join("a", f"says{number}", version=4) for number in range(3)]
    nodes.mesh.hold("b", "a")
    for says in saying:
        await says.send(burst(4, 1, 5))
    for _ in range(15):
        await hears.message()
    nodes.mesh.release("b", "a")
    for says in saying:
        assert await answers(says, 1, 5) == expected(5)
