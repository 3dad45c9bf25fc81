"""Requests across links: Response Topic and Correlation Data both ways, and a requester who is always answered.

Owns: what the acknowledgement of a request says when responders, links and brokers lie in between: 0x00 when anybody
was reached, 0x10 when nobody was, and never nothing.
"""

from __future__ import annotations

import pytest

from canopy_mqtt.assembly.app import Broker
from tests.e2e import wire
from tests.e2e.links.network import NOBODY, V5, Net, Place, link, until
from tests.e2e.links.scripted_upstream import Caller, Heard, ScriptedUpstream
from tests.e2e.wire import Packet, Peer

UP = ["svc/#", "reply/#", "fence/#"]


def asking(reply: str, number: int = 1) -> wire.Properties:
    """The properties of a request."""
    return [(wire.RESPONSE_TOPIC, reply), (wire.CORRELATION_DATA, b"\0correlation %d" % number)]


async def serve(responder: Peer, count: int = 1) -> None:
    """Answer so many requests, each with its own payload turned round."""
    for _ in range(count):
        request = await responder.message()
        reply, correlation = request.get(wire.RESPONSE_TOPIC), request.get(wire.CORRELATION_DATA)
        assert isinstance(reply, str), request
        assert isinstance(correlation, bytes), request
        code = await responder.publish(
            reply, request.payload[::-1], qos=1, props=[(wire.CORRELATION_DATA, correlation)]
        )
        assert code == 0


async def answered(requester: Peer, number: int = 1) -> Packet:
    """The response, with what belongs to request `number`."""
    response = await requester.message()
    assert response.get(wire.CORRELATION_DATA) == b"\0correlation %d" % number
    return response


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("kind", V5)
async def test_nobody_serves_it_above(net: Net, kind: str, qos: int) -> None:
    """The edge's requester is told 0x10, though a link took the request."""
    upstream = await net.upstream(kind)
    edge = await net.edge(link(upstream, publish=UP))
    above = await net.join(upstream, "above")
    requester = await net.join(edge, "requester")
    await net.up(requester, above)
    # mosquitto says nothing in its PUBREC; then nothing is known here either.
    expected = await above.publish("svc/x", b"?", qos=qos)
    assert expected == (0 if (kind, qos) == ("mosquitto", 2) else NOBODY)
    for _ in range(3):
        assert await requester.publish("svc/x", b"?", qos=qos, props=asking("reply/edge")) == expected
    # Whoever is there afterwards is reached.
    await above.subscribe(("svc/#", 1))
    assert await requester.publish("svc/x", b"!", qos=qos, props=asking("reply/edge")) == 0
    assert (await above.message()).payload == b"!"


async def three_levels(net: Net) -> tuple[Broker, Broker, Broker]:
    root = await net.canopy()
    mid = await net.edge(link(root, publish=UP, aggregate=["svc/#", "reply/#"], client_id="mid"))
    leaf = await net.edge(link(mid, publish=UP, aggregate=["svc/#", "reply/#"], client_id="leaf"))
    return root, mid, leaf


@pytest.mark.parametrize("at", ["leaf", "root"])
async def test_three_levels(net: Net, at: str) -> None:
    """A requester at one end: served at the other one, at the one in the middle, at both, nowhere."""
    root, mid, leaf = await three_levels(net)
    here, there = (leaf, root) if at == "leaf" else (root, leaf)
    far = await net.join(there, "far", "svc/far", "svc/both")
    middle = await net.join(mid, "middle", "svc/mid", "svc/both")
    requester = await net.join(here, "requester", f"reply/{at}")
    if at == "leaf":
        await net.down(far, requester)
    else:
        await net.down(requester, far)
        await net.down(requester, middle)
    for topic, responders in (("far", [far]), ("mid", [middle]), ("both", [far, middle])):
        code = await requester.publish(f"svc/{topic}", topic.encode(), qos=1, props=asking(f"reply/{at}"))
        assert code == 0
        for responder in responders:
            await serve(responder)
            assert (await answered(requester)).payload == topic.encode()[::-1]
    for qos in (1, 2):
        assert await requester.publish("svc/none", b"?", qos=qos, props=asking(f"reply/{at}")) == NOBODY


async def test_one_of_several_branches_serves_it(net: Net) -> None:
    """Three edges with the same aggregate: 0x00 while one of them has a responder, and 0x10 afterwards."""
    root = await net.canopy()
    requester = await net.join(root, "requester", "reply/root")
    edges = [
        await net.edge(link(root, publish=UP, aggregate=["svc/#"], client_id=f"edge{number}")) for number in range(3)
    ]
    peers = [await net.join(edge, f"peer{number}", "svc/other") for number, edge in enumerate(edges)]
    await peers[1].subscribe(("svc/x", 1))
    await net.down(requester, *peers)
    assert await requester.publish("svc/x", b"ab", qos=1, props=asking("reply/root")) == 0
    await serve(peers[1])
    assert (await answered(requester)).payload == b"ba"
    await peers[1].unsubscribe("svc/x")
    assert await requester.publish("svc/x", b"?", qos=1, props=asking("reply/root")) == NOBODY
    # From one branch to the responder in another.
    await peers[0].subscribe(("svc/y", 1), ("reply/branch", 1))
    await net.down(requester, *peers)
    assert await peers[2].publish("svc/y", b"xy", qos=1, props=asking("reply/root")) == 0
    await serve(peers[0])
    assert (await requester.message()).payload == b"yx"
    assert await peers[2].publish("svc/z", b"?", qos=1, props=asking("reply/root")) == NOBODY


@pytest.mark.parametrize("end", ["cut", "half-open", "stopped"])
async def test_a_link_that_is_cut_with_the_request_on_it(net: Net, end: str) -> None:
    """The requester is answered all the same, with success: what is in the queue of the link is not lost."""
    upstream = await net.upstream("canopy")
    proxy = await net.proxy(upstream.port)
    edge = await net.edge(link(proxy, publish=UP, keep_alive=1, retry_min=30, retry_max=60))
    above = await net.join(upstream, "above")
    requester = await net.join(edge, "requester")
    await net.up(requester, above)
    connection = await proxy.link(0)
    connection.freeze()
    packet_id = requester.next_id()
    await requester.send(wire.publish("svc/x", b"?", qos=1, packet_id=packet_id, props=asking("reply/edge")))
    assert await requester.fence() == []
    if end == "cut":
        connection.cut()
    elif end == "stopped":
        await upstream.broker.stop()  # type: ignore[union-attr]
        connection.heal()
    ack = await requester.expect(wire.PUBACK)
    assert (ack.packet_id, ack.code) == (packet_id, 0)


async def test_a_link_that_is_away(net: Net) -> None:
    """It queues the request: that counts as reached, at once."""
    upstream = await net.scripted(ScriptedUpstream())
    edge = await net.edge(link(upstream, publish=UP))
    await upstream.caller()
    await upstream.shut()
    await until("the link knows", lambda: edge.router.sessions["$upstream/up"].send_buffer is None)
    requester = await net.join(edge, "requester")
    assert await requester.publish("svc/x", b"?", qos=1, props=asking("reply/edge")) == 0
    await upstream.listen()
    second = await upstream.caller(1)
    await upstream.until("it arrives", lambda: second.published("svc/x") == [b"?"])


async def test_an_upstream_that_never_acknowledges(net: Net) -> None:
    """It hears the request and says nothing; then the requester goes, and its next connection is not confused."""

    class Mute(ScriptedUpstream):
        async def answer(self, caller: Caller, heard: Heard) -> None:
            if heard.kind != wire.PUBLISH:
                await super().answer(caller, heard)

    upstream = await net.scripted(Mute())
    edge = await net.edge(link(upstream, publish=["svc/#"]))
    caller = await upstream.caller()
    requester = await net.join(edge, "requester")
    await requester.send(wire.publish("svc/x", b"?", qos=1, packet_id=7, props=asking("reply/edge")))
    await upstream.until("heard", lambda: caller.published("svc/x"))
    requester.abort()
    again = await net.join(edge, "requester")
    (heard,) = caller.said(wire.PUBLISH)
    await caller.send(wire.ack(wire.PUBACK, heard.packet_id, NOBODY))
    assert await again.fence() == []
    # What is no request is acknowledged at once, whatever upstream does.
    assert await again.publish("svc/x", b"!", qos=1) == 0


async def test_without_a_response_topic_it_is_no_request(net: Net) -> None:
    """An ordinary message that only a link took is acknowledged with success: the link did take it."""
    place: Place = await net.upstream("canopy")
    edge = await net.edge(link(place, publish=UP))
    writer = await net.join(edge, "writer")
    above = await net.join(place, "above")
    await net.up(writer, above)
    assert await writer.publish("svc/x", b"x", qos=1) == 0
    assert await writer.publish("other/x", b"x", qos=1, props=asking("reply/edge")) == NOBODY
