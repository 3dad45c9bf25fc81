"""Upstream brokers that misbehave: the edge goes on, says what is wrong, and tries again.

Owns: refusals, silence, garbage and nonsense from above, and what `$SYS/broker/upstream/<name>/trouble` says of it. In
each test clients of the edge talk to each other meanwhile.
"""

from __future__ import annotations

import pytest

from canopy_load.brokers.process import free_port
from tests.e2e import wire
from tests.e2e.links.network import OFTEN, Net, link, told
from tests.e2e.links.scripted_upstream import Caller, Heard, ScriptedUpstream
from tests.e2e.wire import Peer

TROUBLE = "$SYS/broker/upstream/up/trouble"
STATE = "$SYS/broker/upstream/up/state"


async def chat(one: Peer, other: Peer, count: int = 10) -> None:
    """Two clients of the edge notice nothing."""
    for number in range(count):
        assert await one.publish("local", b"%d" % number, qos=1) in (0, 16)
        assert (await other.message()).payload == b"%d" % number


class Ill(ScriptedUpstream):
    """Does something else in the first `times` connections, and until `healed`; then it is well."""

    healed = True

    times = 3

    @property
    def ill(self) -> bool:
        return len(self.callers) <= self.times or not self.healed

    def connack(self, caller: Caller) -> bytes:
        caller.well = not self.ill
        return super().connack(caller)


class Refuses(Ill):
    code = 0x86

    def connack(self, caller: Caller) -> bytes:
        if self.ill:
            caller.connect.code = self.code
            if caller.version == 5:
                return wire.packet(wire.CONNACK, 0, bytes([0, self.code, 0]))
            return wire.packet(wire.CONNACK, 0, bytes([0, 4]))
        return super().connack(caller)


class ServerMoved(Refuses):
    code = 0x9D


class Busy(Refuses):
    code = 0x89


class Closes(Ill):
    async def greet(self, caller: Caller) -> bool:
        del caller
        return not self.ill


class ClosesAfterConnect(Ill):
    def connack(self, caller: Caller) -> bytes:
        if self.ill:
            caller.connect.code = 0x80
            return b""
        return super().connack(caller)


class Sends(Ill):
    """Says something after CONNACK that nobody may."""

    what = b""

    def connack(self, caller: Caller) -> bytes:
        return super().connack(caller) + (self.what if self.ill else b"")


class SendsFirst(Ill):
    """The same in place of CONNACK."""

    what = b"HTTP/1.1 400 Bad Request\r\n\r\n"

    def connack(self, caller: Caller) -> bytes:
        return self.what if self.ill else super().connack(caller)


WHAT = {
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "type 0": b"\x00\x00",
    "qos 3": b"\x36\x05\x00\x01a\x00\x01",
    "no topic": b"\x30\x00",
    "wildcard topic": b"\x30\x05\x00\x01#\x00x",
    "not utf-8": b"\x30\x04\x00\x01\xff\x00",
    "flags": b"\x41\x02\x00\x01",
    "length": b"\x30\xff\xff\xff\xff\x01",
    "second connack": b"\x20\x03\x00\x00\x00",
    "connect": wire.connect("you"),
    "subscribe": wire.subscribe(1, [("a", 0)]),
    "pingreq": wire.PING,
    "properties": b"\x30\x07\x00\x01a\x02\x01\x07x",
    "unknown alias": b"\x30\x06\x00\x00\x03\x23\x00\x05",
    "disconnect": b"\xe0\x02\x8b\x00",
    "session taken over": b"\xe0\x02\x8e\x00",
}


async def suffer(net: Net, upstream: ScriptedUpstream, **keys: object) -> None:
    """The edge lives through it, says so, and is linked in the end."""
    if isinstance(upstream, Ill):
        # However long it takes until somebody has read of it.
        upstream.healed = False
    edge = await net.edge(
        {**link(upstream, publish=["up"]), "retry_min": 0.1, "retry_max": 0.2, **keys}, sys={"interval": 0.02}
    )
    one = await net.join(edge, "one")
    other = await net.join(edge, "other", "local", "down")
    operator = await net.join(edge, "operator")
    trouble = await told(operator, TROUBLE, lambda value: value)
    assert trouble.strip()
    if isinstance(upstream, Ill):
        upstream.healed = True
    await chat(one, other)
    await upstream.until(
        "it tries again and is let in", lambda: any("down" in it.filters and it.well for it in upstream.callers)
    )
    await told(await net.join(edge, "operator-2"), STATE, lambda value: value == "connected")
    await chat(one, other)
    caller = next(it for it in upstream.callers if it.well and "down" in it.filters)
    await caller.publish("down", b"fine", qos=1)
    assert (await other.message()).payload == b"fine"
    await one.publish("up", b"fine", qos=1)
    await upstream.until("it goes up", lambda: caller.published("up") == [b"fine"])


@pytest.mark.parametrize("script", [Refuses, ServerMoved, Busy, Closes, ClosesAfterConnect, SendsFirst])
async def test_no_connection(net: Net, script: type[ScriptedUpstream]) -> None:
    """Refused, closed, or answered by something that is no broker."""
    await suffer(net, await net.scripted(script()))


@pytest.mark.parametrize("name", WHAT)
async def test_nonsense(net: Net, name: str) -> None:
    """A connection that says what no server may: it is given up, and another one is made."""
    upstream = Sends()
    upstream.what = WHAT[name]
    upstream.times = 2
    await suffer(net, await net.scripted(upstream), version="5.0")


async def test_nobody_listens(net: Net) -> None:
    """The port is closed, and then it is not."""
    port = free_port()
    edge = await net.edge(link(port), sys={"interval": OFTEN})
    one = await net.join(edge, "one")
    other = await net.join(edge, "other", "local")
    operator = await net.join(edge, "operator")
    await told(operator, TROUBLE, lambda value: value)
    await chat(one, other)
    upstream = await net.scripted(ScriptedUpstream(port=port))
    caller = await upstream.caller()
    await upstream.until("subscribed", lambda: "local" in caller.filters)


async def test_no_such_host(net: Net) -> None:
    """A name that nobody has."""
    edge = await net.edge({**link(1), "url": "mqtt://nowhere.invalid"}, sys={"interval": OFTEN})
    one = await net.join(edge, "one")
    other = await net.join(edge, "other", "local")
    operator = await net.join(edge, "operator")
    trouble = await told(operator, TROUBLE, lambda value: value)
    assert "nowhere.invalid" in trouble
    await chat(one, other)


async def test_never_a_connack(net: Net) -> None:
    """Upstream takes the connection and says nothing: the link does not wait for ever."""

    class Mute(Ill):
        times = 1

        def connack(self, caller: Caller) -> bytes:
            return b"" if self.ill else super().connack(caller)

    upstream = await net.scripted(Mute())
    edge = await net.edge(link(upstream), limits={"max_loop_lag": 0})
    one = await net.join(edge, "one")
    other = await net.join(edge, "other", "local")
    await upstream.until("it is spoken to", lambda: upstream.accepted())
    await chat(one, other)
    net.later(61)
    await upstream.until("another attempt", lambda: len(upstream.callers) > 1)
    await upstream.until("it is linked", lambda: "local" in upstream.callers[-1].filters)
    await chat(one, other)


async def test_a_filter_that_is_refused(net: Net) -> None:
    """0x87 for one filter: the others work, nobody is cut off, and it is counted; nor is it asked for in a storm."""

    class Strict(ScriptedUpstream):
        def granted(self, topic_filter: str, options: int) -> int:
            return 0x87 if topic_filter.startswith("secret") else super().granted(topic_filter, options)

    upstream = await net.scripted(Strict())
    edge = await net.edge(link(upstream), sys={"interval": OFTEN})
    await net.join(edge, "curious", "secret/#")
    other = await net.join(edge, "other", "local", "down")
    caller = await upstream.caller()
    await upstream.until("the other ones", lambda: "down" in caller.filters)
    operator = await net.join(edge, "operator")
    await told(operator, "$SYS/broker/upstream/up/filters/refused", lambda value: value == "1")
    await told(await net.join(edge, "operator-2"), STATE, lambda value: value == "connected")
    await caller.publish("down", b"1", qos=1)
    assert (await other.message()).payload == b"1"
    await chat(other, other)
    assert caller.asked().count("secret/#") <= 2
    assert len(upstream.callers) == 1


async def test_a_publish_that_is_refused(net: Net) -> None:
    """PUBACK 0x87 for a message: it is done with, and the next one goes."""

    class Strict(ScriptedUpstream):
        async def answer(self, caller: Caller, heard: Heard) -> None:
            if heard.kind == wire.PUBLISH and heard.topic == "up/secret":
                kind = wire.PUBACK if heard.qos == 1 else wire.PUBREC
                await caller.send(wire.ack(kind, heard.packet_id, 0x87))
            else:
                await super().answer(caller, heard)

    upstream = await net.scripted(Strict())
    edge = await net.edge(link(upstream, publish=["up/#"]))
    writer = await net.join(edge, "writer")
    for qos in (1, 2):
        await writer.publish("up/secret", b"%d" % qos, qos=qos)
        await writer.publish("up/open", b"%d" % qos, qos=qos)
    caller = await upstream.caller()
    await upstream.until("the open ones", lambda: caller.published("up/open") == [b"1", b"2"])
    caller.abort()
    second = await upstream.caller(1)
    await writer.publish("up/open", b"3", qos=1)
    await upstream.until("the last one", lambda: b"3" in second.published("up/open"))
    assert second.published("up/secret") == []


async def test_limits_of_the_upstream_are_kept_to(net: Net) -> None:
    """Receive Maximum, Maximum QoS, Maximum Packet Size, no retained messages, no wildcards: in its CONNACK."""

    class Small(ScriptedUpstream):
        def connack(self, caller: Caller) -> bytes:
            del caller
            props: wire.Properties = [
                (wire.RECEIVE_MAXIMUM, 3),
                (wire.MAXIMUM_QOS, 1),
                (wire.MAXIMUM_PACKET_SIZE, 200),
                (wire.RETAIN_AVAILABLE, 0),
            ]
            return wire.packet(wire.CONNACK, 0, b"\0\0" + wire.properties(props))

    upstream = await net.scripted(Small((5,)))
    edge = await net.edge(link(upstream, publish=["up/#"]))
    writer = await net.join(edge, "writer")
    caller = await upstream.caller()
    for number in range(20):
        await writer.publish("up/x", b"%d" % number, qos=2, retain=True)
    await writer.publish("up/x", b"x" * 1000, qos=1)
    await writer.publish("up/last", b"", qos=1)
    await upstream.until("the last one", lambda: caller.published("up/last"))
    sent = caller.said(wire.PUBLISH)
    assert [heard.payload for heard in sent if heard.topic == "up/x"] == [b"%d" % number for number in range(20)]
    assert {(heard.qos, heard.retain) for heard in sent} == {(1, False)}
