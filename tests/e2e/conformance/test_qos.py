"""QoS 1 and 2 step by step, packet identifiers, and flow control (chapters 2.2.1, 3.4 to 3.7, 4.3 and 4.9)."""

from __future__ import annotations

import pytest

from tests.e2e import wire
from tests.e2e.conformance.conftest import Joined, Unique
from tests.e2e.conformance.outcomes import alive, thrown_out
from tests.e2e.conftest import StartBroker
from tests.e2e.wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK
from tests.support.runs import for_each

# Section 3.4.2.1, 3.5.2.1, 3.6.2.1, 3.7.2.1.
PUBLISH_CODES = {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}
RELEASE_CODES = {0x00, 0x92}


# -------------------------------------------------------------------------------------------------- the broker receives


async def test_receiving_qos_1(joined: Joined, unique: Unique, version: int) -> None:
    """Each PUBLISH is answered by a PUBACK with its identifier, and delivered, DUP or not, as often as it comes.

    [MQTT-4.3.2-4] [MQTT-4.3.2-5] [MQTT-2.2.1-5] [MQTT-3.4.2-1]
    """
    topic = unique("t")
    watcher, peer = await joined(), await joined(version=version)
    await watcher.subscribe((topic, 0))
    for packet_id in (1, 65_535, 300):
        for dup in (False, True):
            await peer.send(wire.publish(topic, b"x", version=version, qos=1, packet_id=packet_id, dup=dup))
            answer = await peer.expect(PUBACK)
            assert answer.packet_id == packet_id
            assert answer.code in PUBLISH_CODES
            assert answer.code == 0
            assert (await watcher.message()).payload == b"x"
    await alive(watcher)


async def test_receiving_qos_2(joined: Joined, unique: Unique, version: int) -> None:
    """PUBREC as often as the PUBLISH comes, one delivery; PUBCOMP; and then the identifier is free for a new message.

    [MQTT-4.3.3-8] [MQTT-4.3.3-10] [MQTT-4.3.3-11] [MQTT-4.3.3-12] [MQTT-2.2.1-5] [MQTT-3.5.2-1] [MQTT-3.7.2-1]
    """
    topic = unique("t")
    watcher, peer = await joined(), await joined(version=version)
    await watcher.subscribe((topic, 0))
    for payload in (b"one", b"two"):
        for dup in (False, True, True):
            await peer.send(wire.publish(topic, payload, version=version, qos=2, packet_id=5, dup=dup))
            answer = await peer.expect(PUBREC)
            assert answer.packet_id == 5
            assert answer.code in PUBLISH_CODES
            assert answer.code in (0, 0x91)  # "packet identifier in use" is said of one that is sent again, if at all
        await peer.send(wire.ack(PUBREL, 5, version=version))
        done = await peer.expect(PUBCOMP)
        assert (done.packet_id, done.code) == (5, 0)
        assert (await watcher.message()).payload == payload
    await alive(watcher)


async def test_no_matching_subscribers(joined: Joined, unique: Unique) -> None:
    """The codes for it are 0x00 and 0x10. [MQTT-3.4.2-1] [MQTT-3.5.2-1]"""
    peer = await joined()
    assert await peer.publish(unique("t"), b"x", qos=1) in (0, 0x10)
    assert await peer.publish(unique("t"), b"x", qos=2) in (0, 0x10)


async def test_releasing_what_was_never_published(joined: Joined, version: int) -> None:
    """PUBREL is always answered by PUBCOMP, in 5.0 with 0x92. [MQTT-4.3.3-11] [MQTT-3.7.2-1]"""
    peer = await joined(version=version)
    await peer.send(wire.ack(PUBREL, 77, version=version))
    done = await peer.expect(PUBCOMP)
    assert (done.packet_id, done.code) == (77, 0x92 if version == 5 else 0)
    await alive(peer)


# ----------------------------------------------------------------------------------------------------- the broker sends


async def test_sending_qos_1(joined: Joined, unique: Unique, version: int) -> None:
    """Unacknowledged messages have identifiers of their own, none 0, DUP 0, and are not sent again unasked.

    [MQTT-2.2.1-4] [MQTT-4.3.2-1] [MQTT-4.3.2-2] [MQTT-4.3.2-3] [MQTT-4.4.0-1]
    """
    topic = unique("t")
    peer = await joined(version=version)
    await peer.subscribe((topic, 1))
    source = await joined()
    for number in range(10):
        await source.publish(topic, str(number).encode(), qos=1)
    found = [await peer.expect(PUBLISH) for _ in range(10)]
    ids = [one.packet_id for one in found]
    assert len(set(ids)) == 10
    assert 0 not in ids
    assert {(one.qos, one.dup) for one in found} == {(1, False)}
    await alive(peer)
    for packet_id in ids[::-1]:
        assert packet_id is not None
        await peer.send(wire.ack(PUBACK, packet_id, version=version))
    await source.publish(topic, b"more", qos=1)
    more = await peer.message()
    assert (more.payload, more.dup) == (b"more", False)
    await alive(peer)


async def test_sending_qos_2(joined: Joined, unique: Unique, version: int) -> None:
    """PUBLISH, PUBREC, PUBREL, PUBCOMP; PUBREL has the identifier, and comes again for each PUBREC.

    [MQTT-4.3.3-1] [MQTT-4.3.3-2] [MQTT-4.3.3-4] [MQTT-2.2.1-5] [MQTT-3.6.2-1]
    """
    topic = unique("t")
    peer = await joined(version=version)
    await peer.subscribe((topic, 2))
    source = await joined()
    await source.publish(topic, b"one", qos=2)
    await source.publish(topic, b"two", qos=2)
    found = [await peer.expect(PUBLISH) for _ in range(2)]
    ids = [one.packet_id for one in found]
    assert len(set(ids)) == 2
    assert {(one.qos, one.dup) for one in found} == {(2, False)}
    for packet_id in ids:
        assert packet_id
        await peer.send(wire.ack(PUBREC, packet_id, version=version))
        release = await peer.expect(PUBREL)
        assert (release.packet_id, release.code) == (packet_id, 0)
    for packet_id in ids:
        assert packet_id
        await peer.send(wire.ack(PUBCOMP, packet_id, version=version))
    await alive(peer)


@for_each("kind", [PUBREC, PUBACK, PUBCOMP])
async def test_answers_to_nothing(joined: Joined, version: int, kind: int) -> None:
    """An unknown identifier harms nobody: PUBREC is answered by PUBREL (in 5.0 0x92), the others by nothing.

    [MQTT-3.6.2-1]
    """
    peer = await joined(version=version)
    await peer.send(wire.ack(kind, 99, version=version))
    found = await peer.fence()
    if kind == PUBREC:
        assert [(one.kind, one.packet_id) for one in found] == [(PUBREL, 99)]
        assert found[0].code in (RELEASE_CODES if version == 5 else {0})
    else:
        assert found == []


async def test_acknowledgements_with_reasons(joined: Joined, unique: Unique) -> None:
    """Reason codes and properties on a client's acknowledgements are read and settle the message. [MQTT-4.3.3-4]"""
    topic = unique("t")
    peer, source = await joined(), await joined()
    await peer.subscribe((topic, 2))
    said: wire.Properties = [(wire.REASON_STRING, "because"), (wire.USER_PROPERTY, ("k", "v"))]
    await source.publish(topic, b"x", qos=1)
    packet_id = (await peer.expect(PUBLISH)).packet_id
    assert packet_id
    await peer.send(wire.ack(PUBACK, packet_id, 0x10, said))
    await source.publish(topic, b"x", qos=2)
    packet_id = (await peer.expect(PUBLISH)).packet_id
    assert packet_id
    await peer.send(wire.ack(PUBREC, packet_id, 0x10, said))
    assert (await peer.expect(PUBREL)).packet_id == packet_id
    await peer.send(wire.ack(PUBCOMP, packet_id, 0x00, said))
    await alive(peer)


async def test_a_refused_qos_2_message(joined: Joined, unique: Unique) -> None:
    """A PUBREC of 0x80 or more ends it: no PUBREL. [MQTT-4.4.0-2] [MQTT-4.3.3-4]"""
    topic = unique("t")
    peer = await joined()
    await peer.subscribe((topic, 2))
    await (await joined()).publish(topic, b"x", qos=2)
    packet_id = (await peer.expect(PUBLISH)).packet_id
    assert packet_id
    await peer.send(wire.ack(PUBREC, packet_id, 0x80))
    await alive(peer)


# --------------------------------------------------------------------------------------------------------- flow control


@for_each("qos", [1, 2])
async def test_the_clients_receive_maximum(joined: Joined, unique: Unique, qos: int) -> None:
    """No more than so many are under way; one more for each that is settled; QoS 0 and all else passes meanwhile.

    [MQTT-3.3.4-9] [MQTT-3.3.4-10] [MQTT-4.9.0-1] [MQTT-4.9.0-2] [MQTT-4.9.0-3]
    """
    topic = unique("t")
    peer = await joined(props=[(wire.RECEIVE_MAXIMUM, 2)])
    await peer.subscribe((f"{topic}/1", qos), (f"{topic}/0", 0))
    source = await joined()
    for number in range(6):
        await source.publish(f"{topic}/1", str(number).encode(), qos=qos)
    under_way = [await peer.expect(PUBLISH) for _ in range(2)]
    await alive(peer)

    await source.publish(f"{topic}/0", b"zero")
    assert (await peer.expect(PUBLISH)).payload == b"zero"
    await peer.send(wire.subscribe(50, [("else", 0)]))
    assert (await peer.expect(SUBACK)).packet_id == 50
    assert await peer.publish("else", b"mine", qos=0) == 0
    assert (await peer.expect(PUBLISH)).payload == b"mine"
    await peer.send(wire.publish(unique("t"), b"x", qos=1, packet_id=51))
    assert (await peer.expect(PUBACK)).packet_id == 51

    seen = [one.payload for one in under_way]
    while under_way:
        packet_id = under_way.pop(0).packet_id
        assert packet_id
        if qos == 2:
            await peer.send(wire.ack(PUBREC, packet_id))
            assert (await peer.expect(PUBREL)).packet_id == packet_id
            await alive(peer)
        await peer.send(wire.ack(PUBACK if qos == 1 else PUBCOMP, packet_id))
        found = await peer.fence()
        assert len(found) == (1 if len(seen) < 6 else 0)
        under_way += found
        seen += [one.payload for one in found]
    assert seen == [str(number).encode() for number in range(6)]


async def test_a_refusal_makes_room(joined: Joined, unique: Unique) -> None:
    """A PUBREC of 0x80 or more gives its place back. [MQTT-3.3.4-9] [MQTT-4.9.0-2]"""
    topic = unique("t")
    peer = await joined(props=[(wire.RECEIVE_MAXIMUM, 1)])
    await peer.subscribe((topic, 2))
    source = await joined()
    await source.publish(topic, b"one", qos=2)
    await source.publish(topic, b"two", qos=2)
    first = await peer.expect(PUBLISH)
    await alive(peer)
    assert first.packet_id
    await peer.send(wire.ack(PUBREC, first.packet_id, 0x80))
    assert (await peer.message()).payload == b"two"


async def test_the_window_after_resuming(joined: Joined, unique: Unique) -> None:
    """The new connection's Receive Maximum holds for what is sent again too. [MQTT-3.3.4-9]"""
    topic, name = unique("t"), unique("c")
    keep: wire.Properties = [(wire.SESSION_EXPIRY, 60)]
    first = await joined(name, props=[*keep, (wire.RECEIVE_MAXIMUM, 10)])
    await first.subscribe((topic, 1))
    source = await joined()
    for number in range(5):
        await source.publish(topic, str(number).encode(), qos=1)
    for _ in range(5):
        await first.expect(PUBLISH)
    first.abort()
    again = await joined(name, clean=False, props=[*keep, (wire.RECEIVE_MAXIMUM, 2)])
    assert len(await again.fence()) == 2


@for_each("qos", [1, 2])
async def test_the_servers_receive_maximum(joined: Joined, start_broker: StartBroker, unique: Unique, qos: int) -> None:
    """As many as announced are taken at once; more than that unsettled is DISCONNECT 0x93. [MQTT-3.3.4-7]"""
    at = await start_broker(mqtt={"receive_maximum": 3})
    peer = await joined(at=at)
    assert peer.connack.number(wire.RECEIVE_MAXIMUM) == 3
    topic = unique("t")
    await peer.send(*(wire.publish(topic, b"x", qos=qos, packet_id=number) for number in (1, 2, 3)))
    answers = [await peer.recv() for _ in range(3)]
    assert [one.packet_id for one in answers] == [1, 2, 3]
    if qos == 1:
        await alive(peer)
        return
    await peer.send(wire.publish(topic, b"x", qos=2, packet_id=1, dup=True))
    assert (await peer.expect(PUBREC)).packet_id == 1
    await peer.send(wire.ack(PUBREL, 2))
    await peer.expect(PUBCOMP)
    await peer.send(wire.publish(topic, b"x", qos=2, packet_id=4))
    await peer.expect(PUBREC)
    await peer.send(wire.publish(topic, b"x", qos=2, packet_id=5))
    assert await thrown_out(peer, [0x93]) == []


@pytest.mark.long
async def test_identifiers_come_round(joined: Joined, unique: Unique) -> None:
    """After 65,535 messages they begin anew, past those that are in use still. [MQTT-2.2.1-4] [MQTT-4.3.2-1]"""
    topic = unique("t")
    peer = await joined(version=4)
    await peer.subscribe((topic, 1))
    source = await joined()
    await source.publish(topic, b"", qos=1)
    held = (await peer.expect(PUBLISH)).packet_id
    count = 66_000
    block = 500
    seen: set[int] = set()
    for start in range(0, count, block):
        await source.send(*(wire.publish(topic, b"", qos=1, packet_id=number + 1) for number in range(block)))
        answers = []
        for _ in range(block):
            found = await peer.expect(PUBLISH)
            assert found.packet_id not in (None, 0, held), start
            assert not found.dup
            answers.append(found.packet_id or 0)
        seen.update(answers)
        await peer.send(*(wire.ack(PUBACK, packet_id, version=4) for packet_id in answers))
        for _ in range(block):
            await source.expect(PUBACK)
    assert len(seen) <= 65_534
