"""Brokers linked in circles: messages arrive, a bounded number of times, and come to rest.

Owns: what a mesh does with messages, retained ones and requests. In each mesh every link publishes everything and asks
for everything, which is the worst that can be configured.
"""

from __future__ import annotations

import pytest

from canopy_load.brokers.process import free_port
from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.links.status import status
from tests.e2e import wire
from tests.e2e.links.network import NOBODY, OFTEN, Net, Place, link, pairs, still, told, until
from tests.e2e.wire import Peer

TOPIC = "mesh/topic"
TROUBLE = "$SYS/broker/upstream/up/trouble"


async def mesh(net: Net, size: int, *arrows: tuple[int, int], middle: Place | None = None) -> list[Broker]:
    """Brokers 0 to size - 1, and a link for each arrow (from, to); `to` beyond them is the broker in the middle."""
    ports = [free_port() for _ in range(size)]
    brokers: list[Broker] = []
    for number in range(size):
        links = [
            link(ports[to] if to < size else middle.port, f"link{index}", publish=["#"])  # type: ignore[union-attr]
            for index, (source, to) in enumerate(arrows)
            if source == number
        ]
        brokers.append(await net.canopy(ports[number], upstream=links, federation={"broker_id": f"broker-{number}"}))
    for broker in brokers:
        await up(broker)
    return brokers


async def up(broker: Broker) -> None:
    """Wait until all links of a broker are connected."""
    names = [f"$upstream/{name}" for name in (broker.links.links if broker.links else ())]
    await until("the links are up", lambda: all(broker.router.sessions[name].send_buffer for name in names))


async def readers_of(net: Net, brokers: list[Broker]) -> list[Peer]:
    """A subscriber at each, whose filter has reached the others."""
    readers = [await net.join(broker, f"reader{number}", "mesh/#") for number, broker in enumerate(brokers)]
    await still(*brokers)
    await until("declared", lambda: all(_declared(broker) for broker in brokers))
    return readers


def _declared(broker: Broker) -> bool:
    """Return whether each of its links has its subscriptions upstream."""
    for one in broker.links.links.values() if broker.links else ():
        told = dict(status(one))
        if not int(str(told["filters/declared"])) == int(str(told["filters/held"])) > 0:
            return False
    return True


MESHES = {
    "mutual": (2, [(0, 1), (1, 0)]),
    "triangle": (3, [(0, 1), (1, 2), (2, 0)]),
    "double": (2, [(0, 1), (0, 1)]),
    "complete": (3, [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]),
}


def paths(size: int, arrows: list[tuple[int, int]], source: int, target: int) -> int:
    """Ways from one to another that visit nobody twice. A link carries messages in both directions."""

    def walk(here: int, seen: frozenset[int]) -> int:
        if here == target:
            return 1
        steps = [to for one, to in arrows if one == here] + [one for one, to in arrows if to == here]
        return sum(walk(there, seen | {there}) for there in steps if there not in seen)

    del size
    return walk(source, frozenset({source}))


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("name", MESHES)
async def test_messages_come_to_rest(net: Net, name: str, qos: int) -> None:
    """Once at the broker where it was published; elsewhere at least once, and no oftener than there are ways."""
    size, arrows = MESHES[name]
    brokers = await mesh(net, size, *arrows)
    readers = await readers_of(net, brokers)
    for source, broker in enumerate(brokers):
        writer = await net.join(broker, "writer")
        for number in range(3):
            await writer.publish(TOPIC, b"%d" % number, qos=qos)
        await still(*brokers)
        for target, reader in enumerate(readers):
            found = [packet.payload for packet in await everything(reader)]
            ways = 1 if source == target else paths(size, arrows, source, target)
            for number in range(3):
                copies = found.count(b"%d" % number)
                assert 1 <= copies <= ways, f"{copies} at {target} from {source}, {ways} ways"


async def everything(reader: Peer) -> list[wire.Packet]:
    """All messages that are there for a client."""
    found = []
    quiet = False
    while not quiet:
        packets = await reader.fence()
        quiet = not packets
        for packet in packets:
            assert packet.packet_id is not None or packet.qos == 0
            if packet.kind == wire.PUBLISH:
                found.append(packet)
                if packet.qos and packet.packet_id is not None:
                    await reader.send(wire.ack(wire.PUBACK if packet.qos == 1 else wire.PUBREC, packet.packet_id))
            elif packet.kind == wire.PUBREL and packet.packet_id is not None:
                await reader.send(wire.ack(wire.PUBCOMP, packet.packet_id))
    return found


@pytest.mark.parametrize("name", ["mutual", "triangle", "double"])
async def test_retained_messages_come_to_rest_and_can_be_cleared(net: Net, name: str) -> None:
    """A retained message is known everywhere, is cleared everywhere, and does not rise again from a neighbour."""
    size, arrows = MESHES[name]
    brokers = await mesh(net, size, *arrows)
    await readers_of(net, brokers)
    writer = await net.join(brokers[0], "writer")
    for payload in (b"old", b"new"):
        await writer.publish("mesh/state", payload, qos=1, retain=True)
        await still(*brokers)
        for number, broker in enumerate(brokers):
            late = await net.join(broker, f"late{number}-{payload.decode()}")
            await late.subscribe(("mesh/state", 1))
            assert [pair[1] for pair in pairs(await everything(late))] == [payload]
    await writer.publish("mesh/state", b"", qos=1, retain=True)
    await still(*brokers)
    for number, broker in enumerate(brokers):
        late = await net.join(broker, f"latest{number}")
        await late.subscribe(("mesh/state", 1))
        assert await everything(late) == []


async def test_a_broker_of_another_kind_in_the_middle(net: Net) -> None:
    """Two Canopys linked to each other and both to a mosquitto, which knows nothing of paths but passes them on."""
    middle = await net.upstream("mosquitto")
    brokers = await mesh(net, 2, (0, 1), (0, 2), (1, 2), middle=middle)
    readers = await readers_of(net, brokers)
    outside = await net.join(middle, "outside", "mesh/#")
    for source, broker in enumerate(brokers):
        writer = await net.join(broker, "writer")
        await writer.publish(TOPIC, b"x", qos=1)
        await still(*brokers)
        counts = [len(await everything(reader)) for reader in (*readers, outside)]
        assert counts[source] == 1
        assert 1 <= counts[1 - source] <= 2
        assert 1 <= counts[2] <= 2
    await outside.publish(TOPIC, b"y", qos=1)
    await still(*brokers)
    for reader in readers:
        assert 1 <= len(await everything(reader)) <= 2
    assert len(await everything(outside)) <= 3


@pytest.mark.parametrize("kind", ["mosquitto", "aedes"])
async def test_two_links_to_a_broker_of_another_kind(net: Net, kind: str) -> None:
    """Both publish everything and ask for everything: what one sends up comes down the other, and goes no further."""
    middle = await net.upstream(kind)
    edge = await net.canopy(
        upstream=[link(middle, "one", publish=["#"]), link(middle, "two", publish=["#"])],
        federation={"broker_id": "edge"},
    )
    reader = await net.join(edge, "reader", "mesh/#")
    outside = await net.join(middle, "outside", "mesh/#")
    await until("declared", lambda: _declared(edge))
    writer = await net.join(edge, "writer")
    await writer.publish(TOPIC, b"x", qos=1)
    await still(edge)
    copies = len(await everything(reader))
    # 3.1.1 has no room for a path: what comes down the other link looks new, and goes up once more by the first.
    assert 1 <= copies <= (1 if kind == "mosquitto" else 3)
    assert len(await everything(outside)) <= (2 if kind == "mosquitto" else 4)


async def test_hops_are_limited(net: Net) -> None:
    """A chain of four with a limit of two: the far end does not get it, and somebody has counted it."""
    root = await net.canopy(federation={"broker_id": "b0", "hop_limit": 2})
    chain = [root]
    for number in range(1, 4):
        chain.append(
            await net.canopy(
                upstream=[link(chain[-1], publish=["#"])], federation={"broker_id": f"b{number}", "hop_limit": 2}
            )
        )
    writer = await net.join(chain[3], "writer")
    readers = [await net.join(broker, "reader", "mesh/#") for broker in chain]
    await until("linked", lambda: all(_declared(broker) for broker in chain[1:]))
    await writer.publish(TOPIC, b"x", qos=1)
    await still(*chain)
    counts = [len(await everything(reader)) for reader in readers]
    assert counts[2] == counts[3] == 1
    assert counts[0] == 0
    assert sum(broker.router.counters.looped for broker in chain) + _kept_back(chain) >= 1


def _kept_back(chain: list[Broker]) -> int:
    told = [dict(status(one)) for broker in chain if broker.links for one in broker.links.links.values()]
    return sum(int(str(status["messages/kept back"])) for status in told)


@pytest.mark.parametrize("name", ["mutual", "triangle", "complete"])
async def test_requests_in_a_circle_are_answered(net: Net, name: str) -> None:
    """Nobody serves it: 0x10, and no waiting for oneself. Somebody does: 0x00."""
    size, arrows = MESHES[name]
    brokers = await mesh(net, size, *arrows)
    requester = await net.join(brokers[0], "requester")
    props: wire.Properties = [(wire.RESPONSE_TOPIC, "reply")]
    for _ in range(2):
        assert await requester.publish("svc/x", b"?", qos=1, props=props) == NOBODY
    responder = await net.join(brokers[-1], "responder", "svc/x")
    await until("declared", lambda: all(_declared(broker) for broker in brokers))
    assert await requester.publish("svc/x", b"!", qos=1, props=props) == 0
    assert (await responder.message()).payload == b"!"
    await still(*brokers)


async def test_linked_to_itself(net: Net) -> None:
    """Somebody will do it: the broker starts, serves, says what is wrong, and each message is there once."""
    port = free_port()
    broker = await net.canopy(port, upstream=[link(port, publish=["#"])], sys={"interval": OFTEN})
    operator = await net.join(broker, "operator")
    assert "this broker itself" in await told(operator, TROUBLE, lambda value: value)
    reader = await net.join(broker, "reader", "mesh/#")
    await reader.publish(TOPIC, b"x", qos=1)
    await still(broker)
    assert len(await everything(reader)) == 1
