"""SUBSCRIBE and UNSUBSCRIBE: answers, filters, options, identifiers (chapters 3.8 to 3.11 and 4.7)."""

from __future__ import annotations

from tests.e2e import wire
from tests.e2e.conformance.conftest import Joined, Unique
from tests.e2e.conformance.outcomes import BAD_TOPIC_FILTER, UNREADABLE, alive
from tests.e2e.wire import DISCONNECT, PUBLISH, SUBACK, UNSUBACK, Closed, Peer
from tests.support.runs import for_each


async def topics_seen(peer: Peer) -> list[str]:
    """The topics of the QoS 0 messages that are on their way to the peer."""
    found = await peer.fence()
    assert all(one.kind == PUBLISH for one in found)
    return [one.topic for one in found]


# -------------------------------------------------------------------------------------------------------------- answers


@for_each("packet_id", [1, 2, 255, 256, 65_535])
async def test_the_answers_carry_the_packet_identifier(joined: Joined, version: int, packet_id: int) -> None:
    """[MQTT-3.8.4-1] [MQTT-3.8.4-2] [MQTT-2.2.1-6] [MQTT-3.10.4-4] [MQTT-3.10.4-5]"""
    peer = await joined(version=version)
    await peer.send(wire.subscribe(packet_id, [("t", 0)], version=version))
    assert (await peer.expect(SUBACK)).packet_id == packet_id
    await peer.send(wire.unsubscribe(packet_id, ["t"], version=version))
    assert (await peer.expect(UNSUBACK)).packet_id == packet_id


async def test_a_code_for_each_filter_in_order(joined: Joined, unique: Unique, version: int) -> None:
    """One SUBACK for many filters, the QoS granted for each, where the filter stood.

    [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.8.4-7] [MQTT-3.9.3-1] [MQTT-3.9.3-2] [MQTT3-3.9.3-2]
    """
    stem = unique("t")
    peer = await joined(version=version)
    asked = [number * 7 % 3 for number in range(300)]
    await peer.send(wire.subscribe(1, [(f"{stem}/{number}", qos) for number, qos in enumerate(asked)], version=version))
    assert list((await peer.expect(SUBACK)).codes) == asked
    await alive(peer)
    for number in (0, 150, 299):
        await peer.publish(f"{stem}/{number}", b"x", qos=2)
        assert (await peer.message()).qos == asked[number]


async def test_the_same_filter_twice_in_one_packet(joined: Joined, unique: Unique, version: int) -> None:
    """As if two packets had come: the second replaces the first. [MQTT-3.8.4-5] [MQTT-3.8.4-3]"""
    topic = unique("t")
    peer = await joined(version=version)
    assert await peer.subscribe((topic, 2), (topic, 0)) == (2, 0)
    await peer.send(wire.publish(topic, b"x", version=version))
    assert await topics_seen(peer) == [topic]


# -------------------------------------------------------------------------------------------------------------- filters

# (filter, what is wrong with it)
BAD_FILTERS = [
    ("a#", "[MQTT-4.7.1-1]"),
    ("a/#/b", "[MQTT-4.7.1-1]"),
    ("a+", "[MQTT-4.7.1-2]"),
    ("a/+b/c", "[MQTT-4.7.1-2]"),
    ("", "[MQTT-4.7.3-1]"),
    ("$share//t", "[MQTT-4.8.2-1]"),
    ("$share/g", "[MQTT-4.8.2-2]"),
    ("$share/a+/t", "[MQTT-4.8.2-2]"),
]


@for_each("topic_filter", [case[0] for case in BAD_FILTERS], ids=[" ".join(case) for case in BAD_FILTERS])
async def test_bad_filters_are_refused(joined: Joined, version: int, topic_filter: str) -> None:
    """By a failure code in SUBACK or by closing; a subscription does not come of it."""
    peer = await joined(version=version)
    await peer.send(wire.subscribe(1, [(topic_filter, 0)], version=version))
    try:
        answer = await peer.recv()
    except Closed:
        assert version == 4
        return
    if answer.kind == SUBACK:
        assert answer.codes in ([(0x80,)] if version == 4 else [(0x80,), (BAD_TOPIC_FILTER,)])
    else:
        assert answer.kind == DISCONNECT
        assert answer.code in (*UNREADABLE, BAD_TOPIC_FILTER)


# (filter, topics that match, topics that do not): [MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-3.3.2-3]
MATCHES = [
    ("/s/a", ["/s/a"], ["/s/a/", "/s", "/s/b", "s/a", "/s/A"]),
    ("/s/#", ["/s", "/s/", "/s/a", "/s/a/b/c", "/s//"], ["/S/a", "/sa", "s/a"]),
    ("/s/+", ["/s/a", "/s/"], ["/s", "/s/a/", "/s/a/b"]),
    ("/s/+/b", ["/s/a/b", "/s//b"], ["/s/b", "/s/a/a/b", "/s/a/b/"]),
    ("/s/+/+", ["/s/a/b", "/s//"], ["/s/a", "/s/a/b/c"]),
    ("/s/+/#", ["/s/a", "/s/a/b", "/s/", "/s/a/b/c"], ["/s"]),
    ("/s/a/", ["/s/a/"], ["/s/a", "/s/a//"]),
    ("/s//b", ["/s//b"], ["/s/b", "/s/a/b"]),
    ("/s/$a/+", ["/s/$a/b"], ["/s/a/b"]),
    ("/s/a b", ["/s/a b"], ["/s/ab", "/s/a"]),
]


@for_each(("topic_filter", "yes", "no"), MATCHES, ids=[case[0] for case in MATCHES])
async def test_matching(
    joined: Joined, unique: Unique, version: int, topic_filter: str, yes: list[str], no: list[str]
) -> None:
    """A filter gets the topics that match, and no others."""
    stem = unique("t")
    peer = await joined(version=version)
    await peer.subscribe(stem + topic_filter)
    for topic in no + yes + no:
        await peer.send(wire.publish(stem + topic, b"x", version=version))
    assert await topics_seen(peer) == [stem + topic for topic in yes]


# ----------------------------------------------------------------------------------------------- overlapping, replacing


@for_each("granted", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
async def test_overlapping_subscriptions(
    joined: Joined, unique: Unique, version: int, granted: tuple[int, int, int]
) -> None:
    """The message comes with the highest QoS of all that match, whichever filter has it. [MQTT-3.3.4-2]"""
    stem = unique("t")
    peer, source = await joined(version=version), await joined()
    await peer.subscribe(*zip((f"{stem}/#", f"{stem}/+", f"{stem}/a"), granted, strict=True))
    await source.publish(f"{stem}/a", b"x", qos=2)
    found = await peer.fence()  # a server may send a copy for each further subscription
    assert 2 in [one.qos for one in found]


async def test_subscription_identifiers(joined: Joined, unique: Unique) -> None:
    """A message carries the identifiers of the subscriptions that brought it, each of them, and no others.

    [MQTT-3.3.4-3] [MQTT-3.3.4-4]
    """
    stem = unique("t")
    peer = await joined()
    largest = 268_435_455
    await peer.subscribe(f"{stem}/#", props=[(wire.SUBSCRIPTION_ID, 1)])
    await peer.subscribe(f"{stem}/+", props=[(wire.SUBSCRIPTION_ID, largest)])
    await peer.subscribe(f"{stem}/a")
    await peer.subscribe(f"{stem}/b", props=[(wire.SUBSCRIPTION_ID, 128)])

    async def identifiers(topic: str) -> list[int]:
        await peer.send(wire.publish(topic, b"x"))
        copies = await peer.fence()
        return sorted(value for one in copies for value in one.all(wire.SUBSCRIPTION_ID) if isinstance(value, int))

    assert await identifiers(f"{stem}/a") == [1, largest]
    assert await identifiers(f"{stem}/b") == [1, 128, largest]
    assert await identifiers(f"{stem}/a/b") == [1]
    await peer.unsubscribe(f"{stem}/+", f"{stem}/#")
    assert await identifiers(f"{stem}/a") == []


async def test_retained_messages_carry_the_identifier(joined: Joined, unique: Unique) -> None:
    """Of the subscription that asked for them, the latest one. [MQTT-3.3.4-3]"""
    topic = unique("t")
    await (await joined()).publish(topic, b"kept", qos=1, retain=True)
    peer = await joined()
    for identifier in (5, 70_000):
        await peer.subscribe((topic, 1), props=[(wire.SUBSCRIPTION_ID, identifier)])
        found = await peer.message()
        assert (found.retain, found.all(wire.SUBSCRIPTION_ID)) == (True, [identifier])


async def test_subscribing_again_replaces(joined: Joined, unique: Unique, version: int) -> None:
    """QoS, options and identifier are those of the last SUBSCRIBE, and there is one subscription, not two.

    [MQTT-3.8.4-3]
    """
    topic = unique("t")
    peer = await joined(version=version)
    for qos in (0, 2, 1):
        props = [(wire.SUBSCRIPTION_ID, qos + 1)] if version == 5 else []
        assert await peer.subscribe((topic, qos), props=props) == (qos,)
        await peer.publish(topic, b"x", qos=2)
        found = await peer.message()
        assert found.qos == qos
        assert found.all(wire.SUBSCRIPTION_ID) == ([qos + 1] if version == 5 else [])
        await alive(peer)
    await peer.unsubscribe(topic)
    await peer.publish(topic, b"x", qos=1)
    await alive(peer)


async def test_replacing_loses_nothing(joined: Joined, unique: Unique, version: int) -> None:
    """Retained messages come again, and messages published meanwhile come once each. [MQTT-3.8.4-4]

    Each SUBSCRIBE waits for the retained message of the one before, since one that comes while retained messages are
    being sent begins them anew.
    """
    topic = unique("t")
    peer, source = await joined(version=version), await joined()
    await source.publish(topic, b"kept", retain=True)
    await peer.subscribe((topic, 1))
    assert (await peer.message()).payload == b"kept"
    live: list[int] = []

    async def receive() -> bool:
        """Take one packet: True if it was the retained message."""
        found = await peer.recv()
        if found.kind == SUBACK:
            return False
        assert found.kind == PUBLISH
        if found.payload == b"kept":
            assert found.retain
            return True
        assert found.packet_id is not None
        await peer.send(wire.ack(wire.PUBACK, found.packet_id, version=version))
        live.append(int(found.payload))
        return False

    for number in range(20):
        await source.send(wire.publish(topic, str(number).encode(), qos=1, packet_id=number + 1))
        await peer.send(wire.subscribe(number + 1, [(topic, 1)], version=version))
        while not await receive():
            pass
    while len(live) < 20:
        assert not await receive()
    assert live == list(range(20))


# -------------------------------------------------------------------------------------------------------------- options


async def test_no_local(joined: Joined, unique: Unique) -> None:
    """One's own messages do not come back, others' do; and only for the filter that asks for it. [MQTT-3.8.3-3]"""
    stem = unique("t")
    peer, other = await joined(), await joined()
    await peer.subscribe((f"{stem}/quiet", wire.NO_LOCAL), (f"{stem}/loud", 0))
    for source in (peer, other):
        await source.publish(f"{stem}/quiet", source.connack.code.to_bytes(1, "big"), qos=1)
        await source.publish(f"{stem}/loud", b"x", qos=1)
    assert sorted(await topics_seen(peer)) == [f"{stem}/loud", f"{stem}/loud", f"{stem}/quiet"]


# ---------------------------------------------------------------------------------------------------------- unsubscribe


async def test_unsubscribing(joined: Joined, unique: Unique, version: int) -> None:
    """Filters go by their exact text, each with a code (in 5.0), and nothing more comes for them.

    [MQTT-3.10.4-1] [MQTT-3.10.4-2] [MQTT-3.10.4-6] [MQTT-3.11.3-1] [MQTT-3.11.3-2] [MQTT-3.10.4-5]
    """
    stem = unique("t")
    peer = await joined(version=version)
    await peer.subscribe(f"{stem}/a", f"{stem}/+", f"{stem}/b")
    assert await peer.unsubscribe(f"{stem}/#", f"{stem}/A", stem) == ((0x11,) * 3 if version == 5 else ())
    await peer.send(wire.publish(f"{stem}/c", b"x", version=version))
    assert await topics_seen(peer) == [f"{stem}/c"]
    codes = await peer.unsubscribe(f"{stem}/x", f"{stem}/+", f"{stem}/b", f"{stem}/+")
    assert codes == ((0x11, 0, 0, 0x11) if version == 5 else ())
    for end in "abc":
        await peer.send(wire.publish(f"{stem}/{end}", b"x", version=version))
    assert await topics_seen(peer) == [f"{stem}/a"]


@for_each("qos", [1, 2])
async def test_what_was_begun_is_finished(joined: Joined, unique: Unique, version: int, qos: int) -> None:
    """A message that was sent before UNSUBSCRIBE is seen through after it, across a reconnection too.

    [MQTT-3.10.4-3]
    """
    topic, name = unique("t"), unique("c")
    props = [(wire.SESSION_EXPIRY, 60)] if version == 5 else []
    peer = await joined(name, version=version, clean=False, props=props)
    await peer.subscribe((topic, qos))
    await (await joined()).publish(topic, b"x", qos=qos)
    first = await peer.expect(PUBLISH)
    await peer.unsubscribe(topic)
    peer.abort()
    again = await joined(name, version=version, clean=False, props=props)
    second = await again.message()
    assert (second.packet_id, second.payload, second.dup) == (first.packet_id, b"x", True)
    await alive(again)
