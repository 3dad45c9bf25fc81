"""Sessions: begun, resumed, kept, expired; what waits in them; what is sent again (chapters 3.1.2, 4.1, 4.4, 4.5)."""

from __future__ import annotations

import pytest

from tests.e2e import wire
from tests.e2e.conformance.conftest import Elapse, Joined, Unique
from tests.e2e.conformance.outcomes import PROTOCOL_ERROR, alive, thrown_out
from tests.e2e.conftest import StartBroker
from tests.e2e.wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Peer, Properties
from tests.support.runs import for_each

CROSSINGS = pytest.mark.parametrize(
    ("before", "after"), [(4, 4), (4, 5), (5, 4), (5, 5)], ids=["3 to 3", "3 to 5", "5 to 3", "5 to 5"]
)


def kept(version: int, seconds: int = 600) -> Properties:
    """Return the properties by which a session outlives its connection: none in 3.1.1, where Clean Session 0 is
    enough."""
    return [(wire.SESSION_EXPIRY, seconds)] if version == 5 else []


async def resume(joined: Joined, name: str, version: int) -> Peer:
    """Go on with a session that is there."""
    peer = await joined(name, version=version, clean=False, props=kept(version))
    assert peer.connack.session_present
    return peer


async def test_a_session_that_was_not_there(joined: Joined, unique: Unique, version: int) -> None:
    """Clean Start 0 makes one, with Session Present 0. [MQTT-3.1.2-6] [MQTT-3.2.2-3] [MQTT3-3.1.2-4]"""
    topic = unique("t")
    peer = await joined(unique("c"), version=version, clean=False, props=kept(version))
    assert not peer.connack.session_present
    await peer.subscribe(topic)
    await peer.publish(topic, b"x", qos=1)
    assert (await peer.message()).payload == b"x"


@CROSSINGS
@pytest.mark.parametrize("ending", ["disconnect", "abort"])
async def test_resuming(joined: Joined, unique: Unique, before: int, after: int, ending: str) -> None:
    """Subscriptions are there still, with their QoS, whatever version comes back and however it went.

    [MQTT-3.1.2-5] [MQTT-3.2.2-3] [MQTT-3.1.2-23] [MQTT3-3.1.2-4] [MQTT-3.1.3-2]
    """
    topic, name = unique("t"), unique("c")
    first = await joined(name, version=before, clean=False, props=kept(before))
    await first.subscribe((topic, 1))
    await first.disconnect() if ending == "disconnect" else first.abort()
    again = await resume(joined, name, after)
    await again.publish(topic, b"x", qos=2)
    found = await again.message()
    assert (found.payload, found.qos) == (b"x", 1)


@CROSSINGS
async def test_a_clean_start(joined: Joined, unique: Unique, before: int, after: int) -> None:
    """Nothing of the old session is left: no subscription, no message, nothing to send again.

    [MQTT-3.1.2-4] [MQTT-3.1.4-4] [MQTT3-3.1.4-3] [MQTT-3.2.2-2] [MQTT3-3.2.2-1] [MQTT3-3.1.2-6]
    """
    topic, name = unique("t"), unique("c")
    first = await joined(name, version=before, clean=False, props=kept(before))
    await first.subscribe((topic, 1))
    source = await joined()
    await source.publish(topic, b"in flight", qos=1)
    await first.expect(PUBLISH)
    first.abort()
    await source.publish(topic, b"waiting", qos=1)
    fresh = await joined(name, version=after, clean=True)
    assert not fresh.connack.session_present
    await source.publish(topic, b"live", qos=1)
    await alive(fresh)


async def test_a_clean_session_in_311_ends_with_its_connection(joined: Joined, unique: Unique) -> None:
    """Nobody can go on with it. [MQTT3-3.1.2-6]"""
    topic, name = unique("t"), unique("c")
    first = await joined(name, version=4, clean=True)
    await first.subscribe((topic, 1))
    await first.disconnect()
    again = await joined(name, version=4, clean=False)
    assert not again.connack.session_present
    await again.publish(topic, b"x", qos=1)
    await alive(again)


async def test_a_session_expires(joined: Joined, unique: Unique, elapse: Elapse) -> None:
    """Kept until its interval has passed since the connection closed, and gone after it.

    [MQTT-3.1.2-23] [MQTT-4.1.0-2] [MQTT-4.1.0-1]
    """
    short, long = unique("c"), unique("c")
    for name, seconds in ((short, 1), (long, 600)):
        peer = await joined(name, clean=False, props=kept(5, seconds))
        await peer.subscribe(name)
        await peer.disconnect()
    await elapse(2)
    assert (await joined(long, clean=False)).connack.session_present
    assert not (await joined(short, clean=False)).connack.session_present


async def test_the_broker_may_shorten_the_expiry(
    joined: Joined, start_broker: StartBroker, elapse: Elapse, unique: Unique
) -> None:
    """It tells the client in CONNACK, and goes by it; what is within bounds is not told (section 3.2.2.3.2).

    [MQTT-4.1.0-2] [MQTT-3.1.2-23]
    """
    at = await start_broker(session={"max_expiry": 100})
    name = unique("c")
    assert (await joined(name, props=kept(5, 0xFFFF_FFFF), at=at)).connack.number(wire.SESSION_EXPIRY) == 100
    assert (await joined(name, props=kept(5, 100), at=at)).connack.get(wire.SESSION_EXPIRY) in (None, 100)
    at = await start_broker(session={"max_expiry": 1})
    for level, clean in ((5, True), (4, False)):
        await (await joined(name, version=level, clean=clean, props=kept(level), at=at)).disconnect()
        await elapse(2)  # another broker's clock, which runs as fast
        assert not (await joined(name, version=level, clean=False, at=at)).connack.session_present


async def test_disconnect_sets_the_expiry_anew(joined: Joined, unique: Unique) -> None:
    """The interval on DISCONNECT is the one that counts; from 0 it cannot be raised (section 3.14.2.2.2).

    [MQTT-4.1.0-2] [MQTT-3.1.2-23]
    """
    name = unique("c")
    await (await joined(name, props=kept(5))).disconnect(props=[(wire.SESSION_EXPIRY, 0)])
    assert not (await joined(name, clean=False)).connack.session_present
    await (await joined(name, props=kept(5, 1))).disconnect(props=[(wire.SESSION_EXPIRY, 600)])
    assert (await joined(name, clean=False)).connack.session_present
    peer = await joined()
    await peer.send(wire.disconnect(0, [(wire.SESSION_EXPIRY, 5)]))
    assert await thrown_out(peer, [PROTOCOL_ERROR]) == []


@CROSSINGS
async def test_messages_wait(joined: Joined, unique: Unique, before: int, after: int) -> None:
    """QoS 1 and 2 wait for a client that is away, in order, at the lower QoS; and come once.

    [MQTT3-3.1.2-5] [MQTT-4.5.0-1] [MQTT-3.1.2-23] [MQTT-4.6.0-5]
    """
    topic, name = unique("t"), unique("c")
    first = await joined(name, version=before, clean=False, props=kept(before))
    await first.subscribe((topic, 2))
    await first.disconnect()
    source = await joined()
    sent = [(str(number).encode(), 1 + number % 2) for number in range(40)]
    for payload, qos in sent:
        await source.publish(topic, payload, qos=qos)
    again = await resume(joined, name, after)
    found = [await again.message() for _ in sent]
    for qos in (1, 2):
        assert [one.payload for one in found if one.qos == qos] == [payload for payload, level in sent if level == qos]
    assert not [one for one in found if one.dup or one.retain]
    await alive(again)
    await again.disconnect()
    await alive(await resume(joined, name, after))


# -------------------------------------------------------------------------------------------------------- sending again


@CROSSINGS
@pytest.mark.parametrize("qos", [1, 2])
async def test_unacknowledged_publishes_come_again(
    joined: Joined, unique: Unique, before: int, after: int, qos: int
) -> None:
    """On resuming, and only then: same identifiers, same order, DUP 1, and before anything new.

    [MQTT-4.4.0-1] [MQTT-3.3.1-1] [MQTT-4.3.2-3] [MQTT-4.3.3-3] [MQTT3-4.6.0-6]
    """
    topic, name = unique("t"), unique("c")
    first = await joined(name, version=before, clean=False, props=kept(before))
    await first.subscribe((topic, qos))
    source = await joined()
    for payload in (b"1", b"2", b"3"):
        await source.publish(topic, payload, qos=qos)
    sent = [await first.expect(PUBLISH) for _ in range(3)]
    await alive(first)
    first.abort()
    await source.publish(topic, b"4", qos=qos)
    again = await resume(joined, name, after)
    back = [await again.expect(PUBLISH) for _ in range(4)]
    assert [one.payload for one in back] == [b"1", b"2", b"3", b"4"]
    assert [one.packet_id for one in back[:3]] == [one.packet_id for one in sent]
    # Whether the fourth was tried on the connection that had just broken is a race, and so is its DUP.
    assert [one.dup for one in back[:3]] == [True, True, True]
    await alive(again)


@CROSSINGS
async def test_an_unfinished_release_comes_again(joined: Joined, unique: Unique, before: int, after: int) -> None:
    """After PUBREC the PUBLISH is never sent again, PUBREL is. [MQTT-4.4.0-1] [MQTT-4.3.3-5] [MQTT-4.3.3-6]"""
    topic, name = unique("t"), unique("c")
    first = await joined(name, version=before, clean=False, props=kept(before))
    await first.subscribe((topic, 2))
    await (await joined()).publish(topic, b"x", qos=2)
    packet_id = (await first.expect(PUBLISH)).packet_id
    assert packet_id is not None
    await first.send(wire.ack(PUBREC, packet_id, version=before))
    assert (await first.expect(PUBREL)).packet_id == packet_id
    await alive(first)
    first.abort()
    again = await resume(joined, name, after)
    assert (await again.expect(PUBREL)).packet_id == packet_id
    await again.send(wire.ack(PUBCOMP, packet_id, version=after))
    await alive(again)
    again.abort()
    await alive(await resume(joined, name, after))


@for_each("qos", [1, 2])
async def test_a_refused_publish_does_not_come_again(joined: Joined, unique: Unique, qos: int) -> None:
    """PUBACK or PUBREC of 0x80 or more settles it. [MQTT-4.4.0-2]"""
    topic, name = unique("t"), unique("c")
    first = await joined(name, props=kept(5))
    await first.subscribe((topic, qos))
    await (await joined()).publish(topic, b"x", qos=qos)
    packet_id = (await first.expect(PUBLISH)).packet_id
    assert packet_id is not None
    await first.send(wire.ack(PUBACK if qos == 1 else PUBREC, packet_id, 0x97))
    await alive(first)
    first.abort()
    await alive(await resume(joined, name, 5))


async def test_qos_2_from_the_client_across_connections(joined: Joined, unique: Unique, version: int) -> None:
    """A PUBLISH that is sent again before its PUBREL is delivered once, on whatever connection it comes.

    [MQTT-4.3.3-10] [MQTT-4.3.3-11] [MQTT-3.1.2-5]
    """
    topic, name = unique("t"), unique("c")
    watcher = await joined()
    await watcher.subscribe((topic, 2))
    props = kept(version)
    publish = wire.publish(topic, b"once", version=version, qos=2, packet_id=7)
    again = wire.publish(topic, b"once", version=version, qos=2, packet_id=7, dup=True)
    peer = await joined(name, version=version, clean=False, props=props)
    await peer.send(publish)
    assert (await peer.expect(PUBREC)).packet_id == 7
    peer.abort()
    peer = await resume(joined, name, version)
    await peer.send(again, again)
    assert [(await peer.expect(PUBREC)).packet_id for _ in range(2)] == [7, 7]
    await peer.send(wire.ack(PUBREL, 7, version=version))
    done = await peer.expect(PUBCOMP)
    assert (done.packet_id, done.code) == (7, 0)
    assert (await watcher.message()).payload == b"once"
    await alive(watcher)


async def test_taken_over_in_the_middle(joined: Joined, unique: Unique, version: int) -> None:
    """The connection that takes over goes on with what was in flight on the old one. [MQTT-3.1.4-3] [MQTT-4.4.0-1]"""
    topic, name = unique("t"), unique("c")
    first = await joined(name, version=version, clean=False, props=kept(version))
    await first.subscribe((topic, 1))
    await (await joined()).publish(topic, b"x", qos=1)
    sent = await first.expect(PUBLISH)
    second = await resume(joined, name, version)
    back = await second.message()
    assert (back.packet_id, back.payload, back.dup) == (sent.packet_id, b"x", True)
    assert await thrown_out(first, [0x8E]) == []
    await alive(second)


# --------------------------------------------------------------------------------------------------------------- expiry


async def test_a_message_expires_waiting(joined: Joined, unique: Unique, elapse: Elapse) -> None:
    """A message that expires before its delivery begins is not delivered; another one carries the time it has left.

    [MQTT-3.3.2-5] [MQTT-3.3.2-6]
    """
    topic, name = unique("t"), unique("c")
    first = await joined(name, props=kept(5))
    await first.subscribe((topic, 1))
    await first.disconnect()
    source = await joined()
    for payload, expiry in ((b"short", 1), (b"long", 600), (b"short again", 1)):
        await source.publish(topic, payload, qos=1, props=[(wire.MESSAGE_EXPIRY, expiry)])
    await source.publish(topic, b"forever", qos=1)
    await elapse(2)
    again = await resume(joined, name, 5)
    long, forever = await again.message(), await again.message()
    assert (long.payload, forever.payload) == (b"long", b"forever")
    assert 500 < long.number(wire.MESSAGE_EXPIRY) <= 598
    assert forever.get(wire.MESSAGE_EXPIRY) is None
    await alive(again)


async def test_a_retained_message_expires(joined: Joined, unique: Unique, elapse: Elapse) -> None:
    """So do retained messages. [MQTT-3.3.2-5] [MQTT-3.3.2-6]"""
    topic = unique("t")
    source = await joined()
    await source.publish(f"{topic}/short", b"x", retain=True, props=[(wire.MESSAGE_EXPIRY, 1)])
    await source.publish(f"{topic}/long", b"x", retain=True, props=[(wire.MESSAGE_EXPIRY, 600)])
    await elapse(2)
    late = await joined()
    await late.subscribe(f"{topic}/#")
    found = await late.message()
    assert found.topic == f"{topic}/long"
    assert 500 < found.number(wire.MESSAGE_EXPIRY) <= 598
    await alive(late)


async def test_no_expiry_once_sent(joined: Joined, unique: Unique, elapse: Elapse) -> None:
    """A QoS 2 PUBLISH that was sent is sent again on resuming, expired or not. [MQTT-4.3.3-7]"""
    topic, name = unique("t"), unique("c")
    first = await joined(name, props=kept(5))
    await first.subscribe((topic, 2))
    await (await joined()).publish(topic, b"x", qos=2, props=[(wire.MESSAGE_EXPIRY, 1)])
    sent = await first.expect(PUBLISH)
    first.abort()
    await elapse(2)
    again = await resume(joined, name, 5)
    back = await again.message()
    assert (back.packet_id, back.payload, back.dup) == (sent.packet_id, b"x", True)


async def test_qos_2_goes_on_though_expired(joined: Joined, unique: Unique, elapse: Elapse) -> None:
    """The receiver of an expired message still answers PUBREL. [MQTT-4.3.3-13]"""
    peer = await joined()
    await peer.send(wire.publish(unique("t"), b"x", qos=2, packet_id=9, props=[(wire.MESSAGE_EXPIRY, 1)]))
    assert (await peer.expect(PUBREC)).code in (0, 0x10)
    await elapse(2)
    await peer.send(wire.ack(PUBREL, 9))
    done = await peer.expect(PUBCOMP)
    assert (done.packet_id, done.code) == (9, 0)
