"""MQTT 5.0 properties: passed on, obeyed, limited, refused (chapters 2.2.2, 3.1.2.11, 3.2.2.3 and 3.3.2.3)."""

from __future__ import annotations

from tests.e2e import wire
from tests.e2e.conformance.conftest import Joined, Opened, Unique
from tests.e2e.conformance.outcomes import PROTOCOL_ERROR, UNREADABLE, alive, refused, thrown_out
from tests.e2e.conftest import StartBroker
from tests.e2e.wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, UNSUBACK, Packet, Peer, Properties, Will
from tests.support.runs import for_each

# Sections 3.3.2.3.2 to 3.3.2.3.9: what a PUBLISH may carry from end to end.
CARRIED: list[tuple[str, wire.Property]] = [
    ("[MQTT-3.3.2-4]", (wire.PAYLOAD_FORMAT, 0)),
    ("[MQTT-3.3.2-4]", (wire.PAYLOAD_FORMAT, 1)),
    ("[MQTT-3.3.2-20]", (wire.CONTENT_TYPE, "application/x; v=\u00e5")),
    ("[MQTT-3.3.2-20]", (wire.CONTENT_TYPE, "")),
    ("[MQTT-3.3.2-15]", (wire.RESPONSE_TOPIC, "answers/\ufeffhere")),
    ("[MQTT-3.3.2-16]", (wire.CORRELATION_DATA, bytes(range(256)) * 4)),
    ("[MQTT-3.3.2-16]", (wire.CORRELATION_DATA, b"")),
    ("[MQTT-3.3.2-17]", (wire.USER_PROPERTY, ("name", "value"))),
    ("[MQTT-3.3.2-17]", (wire.USER_PROPERTY, ("", ""))),
]


@for_each("item", [case[1] for case in CARRIED], ids=[f"0x{c[1][0]:02x} {c[0]}" for c in CARRIED])
@for_each("qos", [0, 1])
async def test_one_property_passed_on(joined: Joined, unique: Unique, item: wire.Property, qos: int) -> None:
    """Unchanged, live and retained; a 3.1.1 subscriber gets the message without it."""
    topic = unique("t")
    new, old, source = await joined(), await joined(version=4), await joined()
    for peer in (new, old):
        await peer.subscribe((topic, qos))
    await source.publish(topic, b"text", qos=qos, retain=True, props=[item])
    assert (await new.message()).properties == [item]
    assert (await old.message()).payload == b"text"
    late = await joined()
    await late.subscribe((topic, qos))
    assert (await late.message()).properties == [item]


async def test_all_properties_at_once(joined: Joined, unique: Unique) -> None:
    """User properties keep their order and their doubles. [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-1.5.7-1]"""
    topic = unique("t")
    target, source = await joined(), await joined()
    await target.subscribe((topic, 2))
    user: Properties = [
        (wire.USER_PROPERTY, pair)
        for pair in [("z", "1"), ("a", "2"), ("z", "1"), ("", "x"), ("m\u00e4", "\U0001f600")]
    ]
    single: Properties = [
        (wire.PAYLOAD_FORMAT, 1),
        (wire.CONTENT_TYPE, "text/plain"),
        (wire.RESPONSE_TOPIC, "a/b"),
        (wire.CORRELATION_DATA, b"\0\1"),
    ]
    for qos in (0, 1, 2):
        mixed = [user[0], *single[:2], *user[1:3], *single[2:], *user[3:]]
        await source.publish(topic, b"text", qos=qos, props=mixed)
        found = await target.message()
        assert [item for item in found.properties if item[0] == wire.USER_PROPERTY] == user
        assert sorted(item[0] for item in found.properties) == sorted(item[0] for item in mixed)
        for item in single:
            assert found.get(item[0]) == item[1]


@for_each("qos", [0, 1, 2])
async def test_message_expiry_live(joined: Joined, unique: Unique, qos: int) -> None:
    """A message that does not wait is told all its time; one without an expiry is told none. [MQTT-3.3.2-6]"""
    topic = unique("t")
    peer, old, source = await joined(), await joined(version=4), await joined()
    for one in (peer, old):
        await one.subscribe((topic, qos))
    for expiry in (600, 0xFFFF_FFFF):
        await source.publish(topic, b"x", qos=qos, props=[(wire.MESSAGE_EXPIRY, expiry)])
        assert expiry - 20 <= (await peer.message()).number(wire.MESSAGE_EXPIRY) <= expiry
        assert (await old.message()).payload == b"x"
    await source.publish(topic, b"x", qos=qos)
    assert (await peer.message()).properties == []


# ---------------------------------------------------------------------------------------------------------- topic alias


async def test_topic_aliases_from_the_client(joined: Joined, unique: Unique) -> None:
    """Every alias from 1 to the maximum works, may be given a new topic, and is the client's own; subscribers see none.

    [MQTT-3.3.2-12]
    """
    stem = unique("t")
    watcher, peer, other = await joined(), await joined(), await joined()
    await watcher.subscribe(f"{stem}/#")
    largest = peer.connack.number(wire.TOPIC_ALIAS_MAXIMUM)
    for alias in (1, 2, largest):
        for sender, end in ((peer, "a"), (other, "b"), (peer, "c")):
            name = f"{stem}/{end}/{alias}"
            await sender.send(wire.publish(name, b"1", props=[(wire.TOPIC_ALIAS, alias)]))
            await sender.send(wire.publish("", b"2", props=[(wire.TOPIC_ALIAS, alias)]))
            for payload in (b"1", b"2"):
                found = await watcher.message()
                assert (found.topic, found.payload, found.properties) == (name, payload, [])
    for number in range(1, largest + 1):
        await peer.send(wire.publish(f"{stem}/{number}", props=[(wire.TOPIC_ALIAS, number)]))
        assert (await watcher.message()).topic == f"{stem}/{number}"
    for number in range(1, largest + 1):
        await peer.send(wire.publish("", props=[(wire.TOPIC_ALIAS, number)]))
        assert (await watcher.message()).topic == f"{stem}/{number}"


async def test_topic_aliases_end_with_the_connection(joined: Joined, unique: Unique) -> None:
    """A resumed session has none. [MQTT-3.3.2-7]"""
    topic, name = unique("t"), unique("c")
    watcher = await joined()
    await watcher.subscribe(topic)
    keep: Properties = [(wire.SESSION_EXPIRY, 60)]
    peer = await joined(name, props=keep)
    await peer.send(wire.publish(topic, b"x", props=[(wire.TOPIC_ALIAS, 1)]))
    await watcher.message()
    peer.abort()
    peer = await joined(name, clean=False, props=keep)
    assert peer.connack.session_present
    await peer.send(wire.publish("", b"y", props=[(wire.TOPIC_ALIAS, 1)]))
    assert await thrown_out(peer, [PROTOCOL_ERROR, 0x94]) == []
    await alive(watcher)


async def test_a_topic_alias_out_of_bounds(joined: Joined, start_broker: StartBroker) -> None:
    """0, or above the maximum: DISCONNECT 0x94. [MQTT-3.3.2-8] [MQTT-3.3.2-9] [MQTT-3.2.2-17]"""
    at = await start_broker(mqtt={"topic_alias_maximum": 5})
    for alias in (0, 6, 65_535):
        peer = await joined(at=at)
        assert peer.connack.number(wire.TOPIC_ALIAS_MAXIMUM) == 5
        await peer.send(wire.publish("t", b"x", props=[(wire.TOPIC_ALIAS, alias)]))
        assert await thrown_out(peer, [0x94]) == []


async def test_a_server_without_topic_aliases(joined: Joined, start_broker: StartBroker) -> None:
    """[MQTT-3.2.2-18]"""
    at = await start_broker(mqtt={"topic_alias_maximum": 0})
    peer = await joined(at=at)
    assert peer.connack.get(wire.TOPIC_ALIAS_MAXIMUM) in (None, 0)
    await peer.send(wire.publish("t", b"x", props=[(wire.TOPIC_ALIAS, 1)]))
    assert await thrown_out(peer, [0x94]) == []


async def test_a_topic_alias_that_stands_for_nothing(joined: Joined) -> None:
    """An empty topic name with an alias never set, or with none at all (section 3.3.2.3.4). [MQTT-4.13.1-1]"""
    for props in ([(wire.TOPIC_ALIAS, 3)], []):
        peer = await joined()
        await peer.send(wire.publish("", b"x", props=props))
        assert await thrown_out(peer, [PROTOCOL_ERROR, 0x94]) == []


@for_each("allowed", [0, 2])
async def test_topic_aliases_to_the_client(
    joined: Joined, start_broker: StartBroker, unique: Unique, allowed: int
) -> None:
    """No alias above what the client takes, none where it takes none; with them, every topic still comes out right.

    [MQTT-3.1.2-26] [MQTT-3.1.2-27] [MQTT-3.3.2-11] [MQTT-3.3.2-8]
    """
    at = await start_broker(mqtt={"topic_alias_outbound": 10})
    stem = unique("t")
    peer = await joined(props=[(wire.TOPIC_ALIAS_MAXIMUM, allowed)] if allowed else [], at=at)
    await peer.subscribe((f"{stem}/#", 1))
    source = await joined(version=4, at=at)
    aliases: dict[int, str] = {}
    names = [f"{stem}/{number % 4}" for number in range(40)]
    for index, name in enumerate(names):
        await source.publish(name, str(index).encode(), qos=index % 2)
    for index, name in enumerate(names):
        found = await peer.message()
        alias = found.get(wire.TOPIC_ALIAS)
        if alias is not None:
            assert isinstance(alias, int)
            assert 1 <= alias <= allowed
            aliases[alias] = found.topic or aliases[alias]
            found.topic = aliases[alias]
        assert (found.topic, found.payload) == (name, str(index).encode())
    if not allowed:
        assert not aliases


# -------------------------------------------------------------------------------------------------- maximum packet size


async def test_the_clients_maximum_packet_size(joined: Joined, unique: Unique) -> None:
    """A message that is too large is not sent, does not wait, and takes no place; one that fits exactly comes.

    [MQTT-3.1.2-24] [MQTT-3.1.2-25]
    """
    topic = unique("t")
    size = 200
    peer = await joined(props=[(wire.MAXIMUM_PACKET_SIZE, size), (wire.RECEIVE_MAXIMUM, 1)])
    await peer.subscribe((topic, 2))
    source = await joined()
    for qos in (0, 1, 2):
        overhead = len(wire.publish(topic, b"x" * 150, qos=qos, packet_id=1 if qos else None)) - 150
        for length in (size - overhead + 1, 10_000, size - overhead):
            assert await source.publish(topic, b"x" * length, qos=qos) in (0, 0x10)
        found = await peer.message()
        assert (found.size, found.qos) == (size, qos)
    await alive(peer)


async def test_too_large_for_one_of_two(joined: Joined, unique: Unique) -> None:
    """The other subscriber gets it. [MQTT-3.1.2-24] [MQTT-3.1.2-25]"""
    topic, name = unique("t"), unique("c")
    keep: Properties = [(wire.SESSION_EXPIRY, 60)]
    small, large = await joined(name, props=[*keep, (wire.MAXIMUM_PACKET_SIZE, 100)]), await joined()
    for peer in (small, large):
        await peer.subscribe((topic, 1))
    await large.publish(topic, b"x" * 500, qos=1)
    assert len((await large.message()).payload) == 500
    await alive(small)
    small.abort()
    await alive(await joined(name, clean=False, props=[*keep, (wire.MAXIMUM_PACKET_SIZE, 100)]))


async def answers(peer: Peer, topic: str) -> list[Packet]:
    """One of each packet that a broker answers with, for good requests and for bad ones."""
    found = [peer.connack]
    await peer.send(
        wire.subscribe(1, [(topic, 2), ("$share/group/" + topic, 0)]),
        wire.unsubscribe(2, ["never/had", topic]),
        wire.publish(topic, b"x", qos=1, packet_id=3),
        wire.publish(topic, b"x", qos=2, packet_id=4),
        wire.ack(PUBREL, 4),
        wire.ack(PUBREL, 5),
        wire.ack(PUBREC, 6),
        wire.PING,
    )
    while (one := await peer.recv()).kind != wire.PINGRESP:
        found.append(one)
    assert {SUBACK, UNSUBACK, PUBACK, PUBREC, PUBCOMP, PUBREL} <= {one.kind for one in found}
    await peer.send(wire.packet(wire.SUBSCRIBE, 2, b"\0\7\0"))
    found += await peer.closed()
    return found


async def test_answers_fit_the_clients_maximum(opened: Opened, unique: Unique) -> None:
    """Reason strings and user properties are left out where they would make an answer too large for the client.

    [MQTT-3.2.2-19] [MQTT-3.2.2-20] [MQTT-3.4.2-2] [MQTT-3.4.2-3] [MQTT-3.5.2-2] [MQTT-3.5.2-3] [MQTT-3.6.2-2]
    [MQTT-3.6.2-3] [MQTT-3.7.2-2] [MQTT-3.7.2-3] [MQTT-3.9.2-1] [MQTT-3.9.2-2] [MQTT-3.11.2-1] [MQTT-3.11.2-2]
    [MQTT-3.14.2-3] [MQTT-3.14.2-4] [MQTT-3.1.2-24]
    """
    first = await opened()
    await first.send(wire.connect(unique("c")))
    needed = (await first.expect(wire.CONNACK)).size  # what this broker has to announce, with nothing to explain
    for size in (needed, needed + 7):
        peer = await opened()
        await peer.send(wire.connect(unique("c"), props=[(wire.MAXIMUM_PACKET_SIZE, size)]))
        peer.connack = await peer.expect(wire.CONNACK)
        for one in await answers(peer, "t"):
            assert one.size <= size, one
        refused_one = await opened()
        await refused_one.send(wire.connect("c", props=[(wire.MAXIMUM_PACKET_SIZE, size), (wire.AUTH_METHOD, "none")]))
        assert [one.size <= size for one in await refused_one.closed()] == [True]


@for_each("size", [2, 4, 8])
async def test_no_room_for_connack(opened: Opened, joined: Joined, unique: Unique, size: int) -> None:
    """A client that takes not even the CONNACK gets nothing larger, above all no DISCONNECT in its place; it is closed.

    [MQTT-3.1.2-24] [MQTT-3.14.0-1] [MQTT-3.2.0-1]
    """
    peer = await opened()
    await peer.send(wire.connect(unique("c"), props=[(wire.MAXIMUM_PACKET_SIZE, size)]))
    for one in await peer.closed():
        assert one.kind == wire.CONNACK, one
        assert one.size <= size, one
    await alive(await joined())


async def test_no_problem_information(joined: Joined, unique: Unique) -> None:
    """Request Problem Information 0: a reason string or user property is on CONNACK and DISCONNECT at most.

    On a PUBLISH the user properties are the publisher's, and stay. [MQTT-3.1.2-29]
    """
    topic = unique("t")
    peer = await joined(props=[(wire.REQUEST_PROBLEM, 0)])
    await peer.subscribe(topic)
    await (await joined()).publish(topic, b"x", props=[(wire.USER_PROPERTY, ("k", "v"))])
    assert (await peer.message()).all(wire.USER_PROPERTY) == [("k", "v")]
    for one in await answers(peer, topic):
        if one.kind not in (wire.CONNACK, wire.DISCONNECT, PUBLISH):
            assert one.properties == [], one


# -------------------------------------------------------------------------------------------------------------- refused

_LONG = b"\0\0\0\1"
_SHORT = b"\0\1"
_STR = wire.string("s")
_BAD = wire.string(b"\xff")

# (what is wrong, the properties as bytes, the codes): CONNECT
BAD_ON_CONNECT = [
    ("unknown property", b"\x7f\0", UNREADABLE),
    ("Receive Maximum 0", b"\x21\0\0", [PROTOCOL_ERROR]),
    ("Authentication Data without method", b"\x16" + _STR, [PROTOCOL_ERROR]),
    ("a property of PUBLISH", b"\x23" + _SHORT, UNREADABLE),
    ("a user property whose name is no UTF-8 [MQTT-1.5.7-1]", b"\x26" + _BAD + _STR, UNREADABLE),
]


@for_each(("raw", "codes"), [case[1:] for case in BAD_ON_CONNECT], ids=[case[0] for case in BAD_ON_CONNECT])
async def test_bad_properties_on_connect(opened: Opened, raw: bytes, codes: list[int]) -> None:
    """They refuse the CONNECT. [MQTT-3.1.4-1] [MQTT-4.13.1-1]"""
    peer = await opened()
    head = wire.string("MQTT") + b"\x05\x02\0\0" + wire.varint(len(raw)) + raw + wire.string("c")
    await peer.send(wire.packet(wire.CONNECT, 0, head))
    await refused(peer, codes)


# The same for PUBLISH.
BAD_ON_PUBLISH = [
    ("Payload Format Indicator 2", b"\1\2", UNREADABLE),
    ("Topic Alias twice", (b"\x23" + _SHORT) * 2, [PROTOCOL_ERROR]),
    ("Response Topic # [MQTT-3.3.2-14]", b"\x08" + wire.string("a/#"), [*UNREADABLE, 0x90]),
    ("Will Delay Interval", b"\x18" + _LONG, UNREADABLE),
]


@for_each(("raw", "codes"), [case[1:] for case in BAD_ON_PUBLISH], ids=[case[0] for case in BAD_ON_PUBLISH])
@for_each("qos", [0, 1])
async def test_bad_properties_on_publish(
    joined: Joined, unique: Unique, raw: bytes, codes: list[int], qos: int
) -> None:
    """They end the connection, and nobody gets the message. [MQTT-4.13.1-1]"""
    topic = unique("t")
    watcher, peer = await joined(), await joined()
    await watcher.subscribe(topic)
    head = wire.string(topic) + (b"\0\1" if qos else b"") + wire.varint(len(raw)) + raw
    await peer.send(wire.packet(PUBLISH, qos << 1, head + b"x"))
    assert await thrown_out(peer, codes) == []
    await alive(watcher)


async def test_good_properties_everywhere(joined: Joined, unique: Unique) -> None:
    """Everything that may be there, at once, and user properties many times. [MQTT-1.5.7-1] [MQTT-2.2.2-1]"""
    pair = [(wire.USER_PROPERTY, ("k", "v"))] * 3
    topic = unique("t")
    everything: Properties = [
        (wire.SESSION_EXPIRY, 60),
        (wire.RECEIVE_MAXIMUM, 65_535),
        (wire.MAXIMUM_PACKET_SIZE, 0xFFFF_FFFF),
        (wire.TOPIC_ALIAS_MAXIMUM, 65_535),
        (wire.REQUEST_RESPONSE, 1),
        (wire.REQUEST_PROBLEM, 1),
        *pair,
    ]
    peer = await joined(props=everything, will=Will(topic, properties=[(wire.WILL_DELAY, 0xFFFF_FFFF), *pair]))
    await peer.send(wire.subscribe(1, [(topic, 1)], [(wire.SUBSCRIPTION_ID, 5), *pair]))
    assert (await peer.expect(SUBACK)).codes == (1,)
    await peer.send(wire.publish(topic, b"x", qos=1, packet_id=2, props=pair))
    found = {one.kind: one for one in [await peer.recv(), await peer.recv()]}
    assert found.keys() == {PUBACK, PUBLISH}
    assert found[PUBLISH].all(wire.USER_PROPERTY) == [("k", "v")] * 3
    packet_id = found[PUBLISH].packet_id
    assert packet_id is not None
    await peer.send(wire.ack(PUBACK, packet_id, 0, pair))
    await peer.send(wire.unsubscribe(3, [topic], pair))
    assert (await peer.expect(UNSUBACK)).codes == (0,)
    await peer.disconnect(0, [(wire.SESSION_EXPIRY, 0), (wire.REASON_STRING, "done"), *pair])
