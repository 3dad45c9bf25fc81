"""A message on its way over a link: what of it arrives, and with which quality of service.

Owns: properties, payloads and topics both ways; the caps on QoS; the status topic; the identifiers that are reserved.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import pytest

from canopy_load.brokers.process import free_port
from tests.e2e import wire
from tests.e2e.links.network import V5, Net, Process, link, pairs
from tests.e2e.wire import Packet, Peer

PROPS: wire.Properties = [
    (wire.PAYLOAD_FORMAT, 1),
    (wire.MESSAGE_EXPIRY, 1000),
    (wire.CONTENT_TYPE, "text/plain"),
    (wire.RESPONSE_TOPIC, "reply/to"),
    (wire.CORRELATION_DATA, b"\0\xff"),
    (wire.USER_PROPERTY, ("b", "1")),
    (wire.USER_PROPERTY, ("a", "2")),
    (wire.USER_PROPERTY, ("b", "3")),
]


def held_against(message: Packet) -> None:
    """All of `PROPS` is there, in order, whatever a link adds of its own."""
    own = [pair for pair in message.all(wire.USER_PROPERTY) if isinstance(pair, tuple) and pair[0] != "canopy-via"]
    assert own == [("b", "1"), ("a", "2"), ("b", "3")]
    for ident, value in PROPS:
        if ident == wire.MESSAGE_EXPIRY:
            assert 990 <= message.number(ident) <= 1000
        elif ident != wire.USER_PROPERTY:
            assert message.get(ident) == value


@pytest.mark.parametrize("kind", V5)
async def test_properties_arrive(net: Net, kind: str) -> None:
    """Both ways, over a link of 5.0."""
    upstream = await net.upstream(kind)
    edge = await net.edge(link(upstream, publish=["#"]))
    above = await net.join(upstream, "above", "up")
    below = await net.join(edge, "below", "down")
    await net.down(above, below)
    await above.publish("down", b"x", qos=1, props=PROPS)
    held_against(await below.message())
    await below.publish("up", b"x", qos=1, props=PROPS)
    held_against(await above.message())


@pytest.mark.parametrize("kind", ["canopy", "mosquitto", "aedes"])
async def test_payloads_and_topics_arrive_as_they_are(net: Net, kind: str) -> None:
    """Nothing, every byte, much; names in many scripts, and names that look odd."""
    upstream = await net.upstream(kind)
    edge = await net.edge(link(upstream, publish=["#"]))
    topics = ["x", "/x", "x/", "x//y", "größe/温度/🌡", "with space/and %2F"]
    payloads = [b"", bytes(range(256)), b"z" * 200_000]
    everything = [(topic, payload) for topic in topics for payload in payloads]
    above = await net.join(upstream, "above")
    below = await net.join(edge, "below", *topics)
    await net.down(above, below)
    for topic, payload in everything:
        await above.publish(topic, payload, qos=1)
    (found,) = await net.down(above, below)
    assert pairs(found) == everything
    await above.subscribe(*((topic, 1) for topic in topics))
    writer = await net.join(edge, "writer")
    for topic, payload in everything:
        await writer.publish(topic, payload, qos=1)
    (found,) = await net.up(writer, above)
    assert pairs(found) == everything


@pytest.mark.parametrize("cap", [0, 1, 2])
async def test_caps_on_qos(net: Net, cap: int) -> None:
    """`subscribe_qos` and `publish_qos`: the lower of what was published and what is allowed."""
    upstream = await net.upstream("mosquitto")
    edge = await net.edge(link(upstream, publish=["#"], subscribe_qos=cap, publish_qos=cap))
    above = await net.join(upstream, "above", ("up", 2))
    below = await net.join(edge, "below", ("down", 2))
    await net.down(above, below, qos=cap)
    await net.up(below, above, qos=cap)
    for qos in (0, 1, 2):
        await above.publish("down", b"%d" % qos, qos=qos)
        message = await below.message()
        assert (message.payload, message.qos) == (b"%d" % qos, min(qos, cap))
        await below.publish("up", b"%d" % qos, qos=qos)
        message = await above.message()
        assert (message.payload, message.qos) == (b"%d" % qos, min(qos, cap))


@pytest.mark.parametrize("how", ["killed", pytest.param("stopped", marks=pytest.mark.long)])
async def test_the_status_topic(net: Net, tmp_path: Path, how: str) -> None:
    """1 while the edge is linked, and 0 when it was stopped or has died."""
    upstream = await net.upstream("mosquitto")
    above = await net.join(upstream, "above", "sites/7/up")
    port = free_port()
    config = tmp_path / "edge.toml"
    config.write_text(
        f'listen = ["mqtt://127.0.0.1:{port}"]\n[[upstream]]\nname = "cloud"\n'
        f'url = "mqtt://127.0.0.1:{upstream.port}"\nstatus_topic = "sites/7/up"\n',
        encoding="utf-8",
    )
    serve = [sys.executable, "-P", "-m", "canopy_mqtt", "serve", "--config", str(config), "--log-level", "error"]
    process = Process(serve, '"started"')
    net.cleanup(process.end)
    await process.start()
    assert (await above.message()).payload == b"1"
    late = await net.join(upstream, "late", "sites/7/up")
    message = await late.message()
    assert (message.payload, message.retain) == (b"1", True)
    if how == "killed":
        await process.end()
    else:
        await process.end(process.TERM)
    assert (await above.message()).payload == b"0"
    later = await net.join(upstream, "later", "sites/7/up")
    message = await later.message()
    assert (message.payload, message.retain) == (b"0", True)


async def test_nobody_may_take_the_session_of_a_link(net: Net) -> None:
    """A client with the identifier of a link's session is refused, whether there is such a link or not."""
    upstream = await net.upstream("canopy")
    edge = await net.edge(link(upstream, publish=["#"]))
    for name in ("$upstream/up", "$upstream/other"):
        for version in (5, 4):
            peer = await Peer.open("127.0.0.1", edge.ports[0], version)
            await peer.send(wire.connect(name, version=version))
            refusal = await peer.expect(wire.CONNACK)
            assert refusal.code == (0x85 if version == 5 else 2)
            await peer.closed()
            peer.abort()
            with contextlib.suppress(ConnectionError):
                await peer.writer.wait_closed()
    above = await net.join(upstream, "above", "up")
    below = await net.join(edge, "below")
    await below.publish("up", b"x", qos=1)
    assert (await above.message()).payload == b"x"


async def test_a_slow_reader_of_the_edge_does_not_hold_up_the_link(net: Net) -> None:
    """A client that does not read loses its own messages; another one gets all that come from above."""
    upstream = await net.upstream("canopy")
    edge = await net.edge(link(upstream), queue={"live_messages": 50, "live_bytes": 65_536, "session_messages": 50})
    above = await net.join(upstream, "above")
    good = await net.join(edge, "good", "down")
    slow = await net.join(edge, "slow", "down")
    await net.down(above, good)
    slow.reader._transport.pause_reading()  # type: ignore[attr-defined]
    payload = os.urandom(20_000)
    total = 300
    reading = asyncio.create_task(_count(good, total))
    for number in range(total):
        await above.publish("down", b"%6d" % number + payload, qos=1)
    assert await reading == [b"%6d" % number for number in range(total)]


async def _count(peer: Peer, total: int) -> list[bytes]:
    return [(await peer.message()).payload[:6] for _ in range(total)]
