"""Shared subscriptions: who gets a message, at which QoS, and what becomes of one that was begun (section 4.8.2)."""

from __future__ import annotations

from tests.e2e import wire
from tests.e2e.conformance.conftest import Joined, Unique
from tests.e2e.conformance.outcomes import alive
from tests.e2e.wire import PUBLISH
from tests.support.runs import for_each


async def test_a_shared_subscription(joined: Joined, unique: Unique) -> None:
    """Each message goes to one member of each group, at the QoS granted to that member; 3.1.1 members included.

    [MQTT-4.8.2-1] [MQTT-4.8.2-2] [MQTT-4.8.2-3]
    """
    topic, group = unique("t"), unique("g")
    members = [await joined(version=level) for level in (4, 5, 5)]
    granted = [0, 1, 2]
    for peer, qos in zip(members, granted, strict=True):
        assert await peer.subscribe((f"$share/{group}/{topic}", qos)) == (qos,)
    other = await joined()
    await other.subscribe((f"$share/{group}x/{topic}", 1))
    source = await joined()
    sent = [str(number).encode() for number in range(60)]
    for payload in sent:
        await source.publish(topic, payload, qos=2)
    got: list[bytes] = []
    for peer, qos in zip(members, granted, strict=True):
        mine: list[bytes] = []
        while found := await peer.fence():
            for one in found:
                if one.kind == PUBLISH:
                    assert one.qos == qos
                    mine.append(one.payload)
                    if one.packet_id is not None:
                        kind = wire.PUBACK if qos == 1 else wire.PUBREC
                        await peer.send(wire.ack(kind, one.packet_id, version=peer.version))
                else:
                    assert one.kind == wire.PUBREL
                    assert one.packet_id is not None
                    await peer.send(wire.ack(wire.PUBCOMP, one.packet_id, version=peer.version))
        assert mine, "a member that works gets a share"
        got += mine
    assert sorted(got) == sorted(sent)
    assert [(await other.message()).payload for _ in sent] == sent


async def test_shared_subscriptions_get_no_retained_messages(joined: Joined, unique: Unique) -> None:
    """They are not sent on subscribing to one (section 4.8.2)."""
    topic = unique("t")
    await (await joined()).publish(topic, b"kept", retain=True)
    peer = await joined()
    await peer.subscribe(f"$share/g/{topic}")
    await alive(peer)


@for_each("qos", [1, 2])
async def test_a_refused_message_goes_to_no_other_member(joined: Joined, unique: Unique, qos: int) -> None:
    """A PUBACK or PUBREC of 0x80 or more settles it. [MQTT-4.8.2-6] [MQTT-4.4.0-2]"""
    topic = unique("t")
    members = [await joined(), await joined()]
    for peer in members:
        await peer.subscribe((f"$share/g/{topic}", qos))
    source = await joined()
    await source.publish(topic, b"x", qos=qos)
    arrived = [await peer.fence() for peer in members]
    assert sorted(len(found) for found in arrived) == [0, 1]
    for peer, found in zip(members, arrived, strict=True):
        for one in found:
            assert one.packet_id is not None
            await peer.send(wire.ack(wire.PUBACK if qos == 1 else wire.PUBREC, one.packet_id, 0x80))
            await alive(peer)
    for peer in members:
        await alive(peer)
        peer.abort()


@for_each("stage", ["sent", "received"])
async def test_a_qos_2_message_stays_with_its_member(joined: Joined, unique: Unique, stage: str) -> None:
    """Its delivery is completed to the member that it was begun to, when that one is back. [MQTT-4.8.2-4]"""
    topic, names = unique("t"), [unique("c"), unique("c")]
    keep = [(wire.SESSION_EXPIRY, 60)]
    members = [await joined(name, props=keep) for name in names]
    for peer in members:
        await peer.subscribe((f"$share/g/{topic}", 2))
    await (await joined()).publish(topic, b"x", qos=2)
    arrived = [await peer.fence() for peer in members]
    chosen = 0 if arrived[0] else 1
    assert [len(arrived[chosen]), len(arrived[1 - chosen])] == [1, 0]
    packet_id = arrived[chosen][0].packet_id
    assert packet_id is not None
    if stage == "received":
        await members[chosen].send(wire.ack(wire.PUBREC, packet_id))
        assert (await members[chosen].expect(wire.PUBREL)).packet_id == packet_id
    members[chosen].abort()
    again = await joined(names[chosen], clean=False, props=keep)
    if stage == "received":
        assert (await again.expect(wire.PUBREL)).packet_id == packet_id
        await again.send(wire.ack(wire.PUBCOMP, packet_id))
    else:
        back = await again.message()
        assert (back.packet_id, back.payload, back.dup) == (packet_id, b"x", True)
    await alive(again)
    await alive(members[1 - chosen])


@for_each("stage", ["sent", "received"])
async def test_a_qos_2_message_ends_with_its_members_session(joined: Joined, unique: Unique, stage: str) -> None:
    """A member to which one was begun and whose session ends takes it along: nobody else gets it. [MQTT-4.8.2-5]"""
    topic = unique("t")
    members = [await joined(), await joined()]
    for peer in members:
        await peer.subscribe((f"$share/g/{topic}", 2))
    await (await joined()).publish(topic, b"x", qos=2)
    arrived = [await peer.fence() for peer in members]
    chosen = 0 if arrived[0] else 1
    packet_id = arrived[chosen][0].packet_id
    assert packet_id is not None
    if stage == "received":
        await members[chosen].send(wire.ack(wire.PUBREC, packet_id))
        await members[chosen].expect(wire.PUBREL)
    await members[chosen].disconnect()
    await alive(members[1 - chosen])


@for_each("level", [4, 5])
async def test_an_unacknowledged_qos_1_message_finds_another_member(joined: Joined, unique: Unique, level: int) -> None:
    """A member that leaves for good without PUBACK: the message goes to one that is there (section 4.8.2)."""
    topic = unique("t")
    members = [await joined(version=level), await joined(version=level)]
    for peer in members:
        await peer.subscribe((f"$share/g/{topic}", 1))
    await (await joined()).publish(topic, b"x", qos=1)
    arrived = [await peer.fence() for peer in members]
    chosen = 0 if arrived[0] else 1
    await members[chosen].disconnect()
    assert (await members[1 - chosen].message()).payload == b"x"
