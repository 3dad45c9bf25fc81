"""CONNECT and CONNACK: who gets in, under which name, and with what answer (both versions, chapters 3.1 and 3.2)."""

from __future__ import annotations

import pytest

from tests.e2e import wire
from tests.e2e.conformance.conftest import Joined, Opened, Unique
from tests.e2e.conformance.outcomes import PROTOCOL_ERROR, UNREADABLE, alive, refused, thrown_out
from tests.e2e.conftest import StartBroker
from tests.e2e.wire import CONNACK, DISCONNECT, SUBACK, Will
from tests.support.runs import for_each


async def test_an_accepted_connect(opened: Opened, unique: Unique, version: int) -> None:
    """A good CONNECT gets CONNACK 0x00 over TCP, with Session Present 0 for a clean start.

    [MQTT-3.1.4-5] [MQTT-3.2.2-1] [MQTT-3.2.2-2] [MQTT3-3.2.2-1] [MQTT-3.2.2-8] [MQTT-4.2.0-1]
    """
    peer = await opened(version)
    await peer.send(wire.connect(unique("c"), version=version))
    answer = await peer.expect(CONNACK)
    assert (answer.code, answer.session_present) == (0, False)
    await alive(peer)


@for_each(
    "first",
    [
        pytest.param(wire.PING, id="PINGREQ"),
        pytest.param(wire.publish("t", b"x", version=4), id="PUBLISH"),
        pytest.param(wire.subscribe(1, [("t", 0)], version=4), id="SUBSCRIBE"),
        pytest.param(wire.disconnect(), id="DISCONNECT"),
        pytest.param(wire.auth(0x18, [(wire.AUTH_METHOD, "m")]), id="AUTH"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="HTTP"),
    ],
)
async def test_the_first_packet_is_connect(opened: Opened, first: bytes) -> None:
    """Anything else closes the connection, and no DISCONNECT comes before a CONNACK.

    [MQTT-3.1.0-1] [MQTT-3.14.0-1]
    """
    peer = await opened()
    await peer.send(first)
    assert await peer.closed() == []


async def test_a_second_connect(joined: Joined, version: int) -> None:
    """It is a protocol error, whatever it holds; there is no second CONNACK. [MQTT-3.1.0-2] [MQTT-3.2.0-2]"""
    for again in (
        wire.connect("again", version=version),
        wire.connect("x", version=9, props=()),
        wire.connect("x", version=version, name="nonsense"),
        wire.connect("x", version=version, flags=0xFF),
    ):
        peer = await joined(version=version)
        await peer.send(again)
        assert await thrown_out(peer, [PROTOCOL_ERROR]) == []


@for_each("name", ["MQTTX", "mqtt", "MQT", "", "AMQP"])
async def test_another_protocol_name(opened: Opened, version: int, name: str) -> None:
    """It is not served; a CONNACK that says so may come first. [MQTT-3.1.2-1]"""
    peer = await opened(version)
    await peer.send(wire.connect("c", version=version, name=name), wire.publish("t", b"x", version=version))
    await refused(peer, [0, 0x01, 0x84])


@for_each("level", [0, 1, 6, 0x7F])
async def test_another_protocol_level(opened: Opened, level: int) -> None:
    """CONNACK says "unacceptable protocol version" (0x01 in the old form, 0x84 in the new) and the connection closes.

    [MQTT-3.1.2-2] [MQTT3-3.1.2-2] [MQTT3-3.2.2-5]
    """
    peer = await opened(4 if level < 5 else 5)
    await peer.send(wire.connect("c", version=level))
    packets = await peer.closed()
    assert [packet.kind for packet in packets] == [CONNACK]
    assert packets[0].code in ([0x01] if level < 5 else [0x01, 0x84])
    assert not packets[0].session_present


_NAME = wire.string("cid")
_BAD_UTF8 = b"\xff\xfe"

# (what is wrong, connect flags, payload in 3.1.1, payload in 5.0)
BAD_CONNECTS = [
    ("reserved flag [MQTT-3.1.2-3]", 0x03, _NAME, _NAME),
    ("Will Flag without will fields [MQTT-3.1.2-9]", 0x06, _NAME, _NAME),
    (
        "password without Password Flag [MQTT-3.1.2-18]",
        0x82,
        _NAME + wire.string("u") + wire.binary(b"p"),
        _NAME + wire.string("u") + wire.binary(b"p"),
    ),
    ("client identifier not UTF-8 [MQTT-3.1.3-4] [MQTT-1.5.4-1]", 0x02, wire.string(_BAD_UTF8), wire.string(_BAD_UTF8)),
]


@for_each(("flags", "old", "new"), [case[1:] for case in BAD_CONNECTS], ids=[case[0] for case in BAD_CONNECTS])
async def test_a_malformed_connect(opened: Opened, version: int, flags: int, old: bytes, new: bytes) -> None:
    """It closes the connection: in 3.1.1 without a CONNACK, in 5.0 with one that says why.

    [MQTT-3.1.4-1] [MQTT3-3.1.4-1] [MQTT-3.2.2-6] [MQTT-3.2.2-7]
    """
    peer = await opened(version)
    await peer.send(wire.connect(version=version, flags=flags, payload=old if version == 4 else new))
    await refused(peer, UNREADABLE if version == 5 else [0])


async def test_every_field_in_its_order(opened: Opened, joined: Joined, unique: Unique, version: int) -> None:
    """Client identifier, will, user name and password are read in that order: the will comes out as it went in.

    [MQTT-3.1.3-1] [MQTT-3.1.2-9] [MQTT-3.1.2-17] [MQTT-3.1.2-19]
    """
    topic = unique("w")
    watcher = await joined(version=version)
    await watcher.subscribe(topic)
    peer = await opened(version)
    will = Will(topic, b"the payload", properties=[(wire.CONTENT_TYPE, "text/plain")])
    await peer.send(wire.connect(unique("c"), version=version, will=will, user="the user", password=b"\0\xff"))
    assert (await peer.expect(CONNACK)).code == 0
    peer.abort()
    found = await watcher.message()
    assert (found.topic, found.payload) == (topic, b"the payload")
    assert found.get(wire.CONTENT_TYPE) == ("text/plain" if version == 5 else None)


@for_each(
    "client_id",
    ["0123456789abcdefghijklm", "nopqrstuvwxyzABCDEFGHIJ", "KLMNOPQRSTUVWXYZ", "x"],
)
async def test_plain_client_identifiers(joined: Joined, version: int, client_id: str) -> None:
    """1 to 23 letters and digits are always accepted. [MQTT-3.1.3-5]"""
    peer = await joined(client_id, version=version)
    await alive(peer)


async def test_no_client_identifier_in_5(joined: Joined) -> None:
    """Each client without one gets one that nobody else has, is told, and can come back with it.

    [MQTT-3.1.3-6] [MQTT-3.1.3-7] [MQTT-3.2.2-16]
    """
    peers = [await joined("", props=[(wire.SESSION_EXPIRY, 60)]) for _ in range(3)]
    names = {peer.client_id for peer in peers}
    assert len(names) == 3
    assert "" not in names
    first = peers[0]
    await first.subscribe("kept")
    await first.disconnect()
    again = await joined(first.client_id, clean=False)
    assert again.connack.session_present
    assert again.connack.get(wire.ASSIGNED_CLIENT_ID) is None


async def test_no_client_identifier_in_311(joined: Joined, unique: Unique) -> None:
    """Two clients without one are two clients. [MQTT-3.1.3-6]"""
    topic = unique("t")
    first, second = await joined("", version=4), await joined("", version=4)
    for peer in (first, second):
        await peer.subscribe(topic)
    await first.publish(topic, b"to both")
    assert [(await peer.message()).payload for peer in (first, second)] == [b"to both"] * 2


async def test_no_client_identifier_needs_a_clean_session_in_311(opened: Opened) -> None:
    """CONNACK 0x02, and closed. [MQTT3-3.1.3-7] [MQTT3-3.1.3-8] [MQTT-3.2.2-6] [MQTT3-3.2.2-5]"""
    peer = await opened(4)
    await peer.send(wire.connect("", version=4, clean=False))
    await refused(peer, [0x02])


async def test_a_client_identifier_that_is_too_long(opened: Opened, start_broker: StartBroker, version: int) -> None:
    """CONNACK 0x85, in 3.1.1 0x02, and closed; what is exactly as long as allowed passes.

    [MQTT-3.1.3-8] [MQTT3-3.1.3-9] [MQTT-3.1.4-2]
    """
    at = await start_broker(limits={"max_client_id_length": 30})
    peer = await opened(version, at=at)
    await peer.send(wire.connect("x" * 31, version=version))
    await refused(peer, [0x85 if version == 5 else 0x02])
    peer = await opened(version, at=at)
    await peer.send(wire.connect("x" * 30, version=version))
    assert (await peer.expect(CONNACK)).code == 0


async def test_empty_client_identifiers_can_be_refused(opened: Opened, start_broker: StartBroker, version: int) -> None:
    """[MQTT-3.1.3-8] [MQTT3-3.1.3-9]"""
    at = await start_broker(mqtt={"allow_empty_client_id": False})
    peer = await opened(version, at=at)
    await peer.send(wire.connect("", version=version))
    await refused(peer, [0x85 if version == 5 else 0x02])


async def test_anonymous_clients_can_be_refused(opened: Opened, start_broker: StartBroker, version: int) -> None:
    """A failed check closes the connection, with a CONNACK that says so.

    [MQTT-3.1.4-2] [MQTT-3.2.2-7] [MQTT-4.13.2-1] [MQTT3-3.2.2-5]
    """
    at = await start_broker(mqtt={"allow_anonymous": False})
    peer = await opened(version, at=at)
    await peer.send(wire.connect("c", version=version))
    await refused(peer, [0x86, 0x87] if version == 5 else [0x04, 0x05])


@for_each("newer", [4, 5], ids=["by 3.1.1", "by 5.0"])
async def test_session_taken_over(joined: Joined, unique: Unique, version: int, newer: int) -> None:
    """A client that is connected already is put out: in 5.0 with DISCONNECT 0x8E. The new one works.

    [MQTT-3.1.4-3] [MQTT3-3.1.4-2] [MQTT-3.1.3-2]
    """
    name = unique("c")
    old = await joined(name, version=version)
    new = await joined(name, version=newer)
    assert await thrown_out(old, [0x8E]) == []
    await alive(new)


async def test_other_names_are_other_clients(joined: Joined, unique: Unique, version: int) -> None:
    """Client identifiers are compared exactly. [MQTT-3.1.3-2]"""
    name = unique("c")
    first, second = await joined(name, version=version), await joined(name.upper(), version=version)
    await alive(first)
    await alive(second)


async def test_packets_may_follow_connect_at_once(opened: Opened, unique: Unique, version: int) -> None:
    """CONNACK comes first; what was sent behind CONNECT is then answered in order. [MQTT-3.2.0-1]"""
    topic = unique("t")
    peer = await opened(version)
    await peer.send(
        wire.connect(unique("c"), version=version),
        wire.subscribe(1, [(topic, 0)], version=version),
        wire.publish(topic, b"early", version=version),
        wire.PING,
    )
    assert (await peer.expect(CONNACK)).code == 0
    assert (await peer.expect(SUBACK)).packet_id == 1
    assert (await peer.message()).payload == b"early"
    await peer.expect(wire.PINGRESP)


async def test_nothing_is_done_after_a_refusal(opened: Opened, joined: Joined, unique: Unique, version: int) -> None:
    """Packets behind a refused CONNECT have no effect. [MQTT-3.1.4-6]"""
    topic = unique("t")
    watcher = await joined()
    await watcher.subscribe(topic)
    peer = await opened(version)
    bad = wire.connect("", version=4, clean=False) if version == 4 else wire.connect("c", flags=0x03)
    await peer.send(bad, wire.publish(topic, b"x", version=version, retain=True), wire.PING)
    await refused(peer, [0x02] if version == 4 else UNREADABLE)
    await alive(watcher)
    late = await joined()
    await late.subscribe(topic)
    await alive(late)


async def test_an_unknown_authentication_method(opened: Opened, joined: Joined, unique: Unique) -> None:
    """CONNACK 0x8C, Session Present 0 although there is a session, and closed. [MQTT-4.12.0-1] [MQTT-3.2.2-6]"""
    name = unique("c")
    await (await joined(name, props=[(wire.SESSION_EXPIRY, 60)])).disconnect()
    peer = await opened()
    method: wire.Properties = [(wire.AUTH_METHOD, "no such method"), (wire.AUTH_DATA, b"\x01")]
    await peer.send(wire.connect(name, clean=False, props=method), wire.publish("t", b"x"))
    await refused(peer, [0x8C])


async def test_no_authentication_method(joined: Joined) -> None:
    """No method asked for: none named in CONNACK, and an AUTH is a protocol error. [MQTT-4.12.0-6] [MQTT-4.12.0-7]"""
    peer = await joined()
    assert peer.connack.get(wire.AUTH_METHOD) is None
    await peer.send(wire.auth(0x19, [(wire.AUTH_METHOD, "m")]))
    assert await thrown_out(peer, [PROTOCOL_ERROR]) == []


async def test_response_information_only_when_asked_for(joined: Joined) -> None:
    """[MQTT-3.1.2-28]"""
    for asked in (None, 0):
        props: wire.Properties = [] if asked is None else [(wire.REQUEST_RESPONSE, asked)]
        peer = await joined(props=props)
        assert peer.connack.get(wire.RESPONSE_INFORMATION) is None


async def test_silence(joined: Joined, unique: Unique, version: int) -> None:
    """One and a half keep alives of silence end the connection as a lost one: the will is published.

    No Server Keep Alive was sent, so that the client's own is the one that counts.

    [MQTT-3.1.2-22] [MQTT-3.2.2-22]
    """
    topic = unique("w")
    watcher = await joined()
    await watcher.subscribe(topic)
    peer = await joined(version=version, keep_alive=1, will=Will(topic))
    assert peer.connack.get(wire.SERVER_KEEP_ALIVE) is None
    packets = await peer.closed()
    assert [(packet.kind, packet.code) for packet in packets] in ([], [(DISCONNECT, 0x8D)])
    assert (await watcher.message()).payload == b"gone"


@pytest.mark.parametrize("asked", [0, 3600])
async def test_server_keep_alive(joined: Joined, start_broker: StartBroker, asked: int) -> None:
    """A server that wants another keep alive says so, and goes by it. [MQTT-3.1.2-22]"""
    at = await start_broker(mqtt={"max_keep_alive": 1})
    peer = await joined(keep_alive=asked, at=at)
    assert peer.connack.number(wire.SERVER_KEEP_ALIVE) == 1
    packets = await peer.closed()
    assert [(packet.kind, packet.code) for packet in packets] in ([], [(DISCONNECT, 0x8D)])


async def test_a_connect_that_never_comes(opened: Opened, start_broker: StartBroker) -> None:
    """A connection on which no CONNECT is completed is closed, silent or not."""
    at = await start_broker(limits={"connect_timeout": 0.3})
    silent, slow = await opened(at=at), await opened(at=at)
    await slow.send(wire.connect("c")[:-1])
    assert await silent.closed() == []
    assert await slow.closed() == []


@for_each("highest", [0, 1])
async def test_maximum_qos(opened: Opened, joined: Joined, start_broker: StartBroker, highest: int) -> None:
    """A lower maximum QoS is announced; subscribing above it still works; publishing or a will above it does not.

    [MQTT-3.2.2-9] [MQTT-3.2.2-10] [MQTT-3.2.2-11] [MQTT-3.2.2-12]
    """
    at = await start_broker(mqtt={"max_qos": highest})
    peer = await joined(at=at)
    assert peer.connack.number(wire.MAXIMUM_QOS) == highest
    codes = await peer.subscribe(("a", 0), ("b", 1), ("c", 2))
    assert codes == tuple(min(asked, highest) for asked in (0, 1, 2))
    await peer.send(wire.publish("t", b"x", qos=2, packet_id=1))
    assert await thrown_out(peer, [0x9B]) == []
    peer = await opened(at=at)
    await peer.send(wire.connect("w", will=Will("w", qos=2)))
    await refused(peer, [0x9B])


async def test_a_refusal_without_a_return_code_in_311(opened: Opened, start_broker: StartBroker) -> None:
    """The table has none for a will above the server's QoS: closed without a CONNACK. [MQTT3-3.2.2-6]"""
    at = await start_broker(mqtt={"max_qos": 0})
    peer = await opened(4, at=at)
    await peer.send(wire.connect("w", version=4, will=Will("w", qos=1)))
    assert await peer.closed() == []


async def test_retained_messages_switched_off(opened: Opened, joined: Joined, start_broker: StartBroker) -> None:
    """It is announced; a retained PUBLISH or will is refused. [MQTT-3.2.2-13] [MQTT-3.2.2-14]"""
    at = await start_broker(mqtt={"retain_available": False})
    peer = await joined(at=at)
    assert peer.connack.number(wire.RETAIN_AVAILABLE) == 0
    await peer.send(wire.publish("t", b"x", retain=True))
    assert await thrown_out(peer, [0x9A]) == []
    peer = await opened(at=at)
    await peer.send(wire.connect("w", will=Will("w", retain=True)))
    await refused(peer, [0x9A])


async def test_the_servers_maximum_packet_size(joined: Joined, start_broker: StartBroker, version: int) -> None:
    """A packet of that size passes, one more byte does not; a huge declared length is refused at once.

    [MQTT-3.2.2-15] [MQTT3-4.8.0-2]
    """
    at = await start_broker(limits={"max_packet_size": 1000})
    peer = await joined(version=version, at=at)
    if version == 5:
        assert peer.connack.number(wire.MAXIMUM_PACKET_SIZE) == 1000
    empty = len(wire.publish("t", b"x" * 200, version=version)) - 200
    await peer.send(wire.publish("t", b"x" * (1000 - empty), version=version))
    await alive(peer)
    await peer.send(wire.publish("t", b"x" * (1001 - empty), version=version))
    assert await thrown_out(peer, [0x95]) == []
    peer = await joined(version=version, at=at)
    await peer.send(bytes([0x30]) + wire.varint(268_435_455))
    assert await thrown_out(peer, [0x95]) == []
