"""Who is told of a loss: the 5.0 subscriber in band, everybody under `$SYS`, and the publisher where it is wanted.

The broker is embedded, so that what is told can be held against the ledger; all else goes over sockets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import pytest

from broker import Broker
from broker.core.counters import DROP_CAUSES
from broker.core.session.session import Session
from tests.e2e import wire
from tests.e2e.clients import test_overload as overload
from tests.e2e.clients.frozen import Frozen
from tests.e2e.clients.test_overload import KEPT, NEVER_STALLED, Embed, join
from tests.e2e.test_policies_live import flood
from tests.e2e.wire import Packet, Peer

embed = overload.embed

LOST: Final = "canopy-lost"

KEEP: Final = [(wire.SESSION_EXPIRY, KEPT)]
"""CONNECT of a client whose session stays."""

LOSSES: Final = "$SYS/broker/clients/+/dropped/#"
"""Everybody's losses: `+/dropped`, and below it the causes."""

ROOM: Final = 4
"""Messages that wait for a client that is away."""


def told(packets: Iterable[Packet]) -> Counter[str]:
    """What the messages tell of losses, by cause; each cause once on one message, and nothing on other packets."""
    found: Counter[str] = Counter()
    for packet in packets:
        notes = [pair[1] for pair in packet.all(wire.USER_PROPERTY) if isinstance(pair, tuple) and pair[0] == LOST]
        assert packet.kind == wire.PUBLISH or not notes
        causes = [note.partition(";")[2] for note in notes]
        assert len(set(causes)) == len(causes)
        for note in notes:
            count, _, cause = note.partition(";")
            assert int(count) > 0
            assert count == str(int(count))
            found[cause] += int(count)
    return found


def ledger(session: Session) -> Counter[str]:
    """What was lost, by cause, without those that nothing was lost to."""
    return +Counter(dict(zip(DROP_CAUSES, session.dropped_by_cause(), strict=True)))


async def miss(publisher: Peer, count: int) -> list[int]:
    """Publish so many messages of QoS 1 and return the reason codes."""
    return [await publisher.publish("load", b"%d" % number, qos=1) for number in range(count)]


async def away(broker: Broker, client_id: str, *filters: str | tuple[str, int], version: int = 5) -> Session:
    """A client with a session that is not connected."""
    connect: dict[str, Any] = {"props": KEEP} if version == 5 else {"clean": False, "version": version}
    peer = await join(broker, client_id, *filters or [("load", 1)], **connect)
    await peer.disconnect()
    return broker.router.sessions[client_id]


async def acknowledged(peer: Peer) -> list[Packet]:
    """All that comes, acknowledged, until nothing comes any more."""
    found: list[Packet] = []
    while packets := await peer.fence():
        found += packets
        for packet in packets:
            assert packet.kind == wire.PUBLISH
            if packet.packet_id is not None:
                await peer.send(wire.ack(wire.PUBACK, packet.packet_id))
    return found


# -------------------------------------------------------------------------------------------------------------- in band


async def test_a_frozen_subscriber_is_told_of_each_loss_once(embed: Embed) -> None:
    """Over several losses, the sums of `count;cause` are those of the ledger; what nobody lost anything by, is bare."""
    broker = await embed(queue={"stall_timeout": NEVER_STALLED, "live_messages": 20})
    frozen = await Frozen.join(broker.ports[0], wire.connect("frozen", keep_alive=0), ("load", 0))
    session = broker.router.sessions["frozen"]
    publisher = await join(broker, "publisher")
    await flood(session, publisher, 33)
    reader = await frozen.thaw()
    found = await reader.fence()
    assert told(found) == ledger(session) == {"full-messages": 33}
    # It is told by a single message, which is the first that was written after the loss.
    assert [bool(told([packet])) for packet in found].count(True) == 1
    # Again, while it reads nothing: as a plain client whose program is busy.
    await flood(session, publisher, 40)
    found += await reader.fence()
    assert told(found) == ledger(session) == {"full-messages": 73}
    await publisher.publish("load", b"and on")
    (last,) = await reader.fence()
    assert (last.payload, last.properties) == (b"and on", [])


@pytest.mark.parametrize(
    ("policy", "cause"),
    [("drop-newest", "full-messages"), ("drop-oldest", "full-messages"), ("latest", "replaced-by-latest")],
)
@pytest.mark.parametrize("form", ["plain", "topic alias", "subscription identifier"])
async def test_every_policy_and_every_form_of_a_message(embed: Embed, policy: str, cause: str, form: str) -> None:
    """The note joins whatever else the message carries."""
    broker = await embed(
        queue={"stall_timeout": NEVER_STALLED, "live_messages": 20, "policy": policy},
        mqtt={"topic_alias_outbound": 5},
    )
    connect = wire.connect(
        "frozen", keep_alive=0, props=[(wire.TOPIC_ALIAS_MAXIMUM, 5)] if form == "topic alias" else []
    )
    identifier = [(wire.SUBSCRIPTION_ID, 300)] if form == "subscription identifier" else []
    frozen = await Frozen.join(broker.ports[0], connect, ("load", 0), props=identifier)
    session = broker.router.sessions["frozen"]
    publisher = await join(broker, "publisher")
    count, _ = await flood(session, publisher, 33)
    found = await (await frozen.thaw()).fence()
    assert told(found) == ledger(session) == {cause: 33}
    assert len(found) == count - 33
    for packet in found:
        assert packet.all(wire.SUBSCRIPTION_ID) == [value for _, value in identifier]
        assert (packet.get(wire.TOPIC_ALIAS) is not None) is (form == "topic alias")
        assert packet.topic == "load" or (form == "topic alias" and packet is not found[0])


async def test_who_comes_back_is_told_first(embed: Embed) -> None:
    """The first message of the next connection tells of what did not fit while the client was away, by cause."""
    broker = await embed(queue={"session_messages": ROOM})
    session = await away(broker, "sleeper")
    publisher = await join(broker, "publisher")
    await miss(publisher, ROOM + 15)
    await publisher.publish("load", b"expires", qos=1, props=[(wire.MESSAGE_EXPIRY, 3600)])
    back = await join(broker, "sleeper", clean=False, props=KEEP)
    found = await acknowledged(back)
    assert [packet.payload for packet in found] == [b"%d" % number for number in range(ROOM)]
    assert told(found[:1]) == ledger(session) == {"full-messages": 16}
    assert told(found[1:]) == {}
    # Once: not with the next message, nor on the next connection.
    await publisher.publish("load", b"next", qos=1)
    assert told(await acknowledged(back)) == {}
    await back.disconnect()
    await publisher.publish("load", b"last", qos=1)
    back = await join(broker, "sleeper", clean=False, props=KEEP)
    (last,) = await acknowledged(back)
    assert (last.payload, last.properties) == (b"last", [])


async def test_each_cause_has_a_property_of_its_own(embed: Embed) -> None:
    """Beside the publisher's own properties, which come first and in their order [MQTT-3.3.2-18]."""
    broker = await embed(queue={"session_messages": ROOM})
    own = [(wire.USER_PROPERTY, ("a", "1")), (wire.USER_PROPERTY, ("b", "2")), (wire.USER_PROPERTY, ("a", "3"))]
    props = [*KEEP, (wire.RECEIVE_MAXIMUM, 1), (wire.MAXIMUM_PACKET_SIZE, 200)]
    peer = await join(broker, "busy", ("load", 1), props=props)
    session = broker.router.sessions["busy"]
    publisher = await join(broker, "publisher")
    await publisher.publish("load", b"in flight", qos=1)
    (first,) = await peer.fence()
    assert told([first]) == {}
    for _ in range(2):
        await publisher.publish("load", bytes(300))
    for number in range(ROOM + 3):
        await publisher.publish("load", b"%d" % number, qos=1, props=own)
    assert first.packet_id is not None
    await peer.send(wire.ack(wire.PUBACK, first.packet_id))
    found = await acknowledged(peer)
    assert ledger(session) == {"too-large": 2, "no-quota": 3}
    assert told(found[:1]) == ledger(session)
    assert told(found[1:]) == {}
    assert len(found) == ROOM
    for packet in found:
        assert packet.properties[:3] == own


async def test_loss_is_not_told_where_that_is_off(embed: Embed) -> None:
    """`tell_loss` off: the messages are as they were published, and the ledger knows all the same."""
    broker = await embed(queue={"session_messages": ROOM, "tell_loss": False})
    session = await away(broker, "sleeper")
    await miss(await join(broker, "publisher"), ROOM + 15)
    found = await acknowledged(await join(broker, "sleeper", clean=False, props=KEEP))
    assert [packet.properties for packet in found] == [[]] * ROOM
    assert ledger(session) == {"full-messages": 15}


# ----------------------------------------------------------------------------------------------------------- under $SYS


@pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5.0"])
async def test_anybody_can_read_who_lost_how_much(embed: Embed, version: int) -> None:
    """Retained, the total and each cause; what is special in topics is encoded; gone when the session is.

    A 3.1.1 client, which cannot be told in band, reads it of itself.
    """
    broker = await embed(queue={"session_messages": ROOM}, sys={"interval": 0.1})
    name = "line/3 +#%"
    base = "$SYS/broker/clients/line%2F3 %2B%23%25/dropped"
    session = await away(broker, name, version=version)
    lossless = await away(broker, "lossless", ("nothing", 1), version=version)
    publisher = await join(broker, "publisher")
    await miss(publisher, ROOM + 15)
    assert ledger(lossless) == {}

    connect: dict[str, Any] = {"props": KEEP} if version == 5 else {"version": version}
    back = await join(broker, name, clean=False, **connect)
    assert len(await acknowledged(back)) == ROOM
    assert ledger(session) == {"full-messages": 15}
    await back.subscribe(LOSSES)
    values: dict[str, bytes] = {}
    while values != {base: b"15", f"{base}/full-messages": b"15"}:
        packet = await back.message()
        values[packet.topic] = packet.payload
        assert packet.topic.startswith(base)
    # The whole again for who comes later, as retained messages.
    watcher = await join(broker, "watcher", LOSSES, version=version)
    found = [await watcher.message() for _ in range(2)]
    assert {packet.topic: packet.payload for packet in found} == values
    assert all(packet.retain for packet in found)

    await back.disconnect()
    await join(broker, name, version=version, clean=True)
    found = [await watcher.message() for _ in range(2)]
    assert {packet.topic: packet.payload for packet in found} == dict.fromkeys(values, b"")
    late = await join(broker, "late", LOSSES, version=version)
    assert await late.fence() == []


# -------------------------------------------------------------------------------------------------------- the publisher


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_publisher_is_told_when_every_queue_refused(embed: Embed, qos: int) -> None:
    """0x97 in PUBACK or PUBREC; QoS 2 ends there, and its identifier is free."""
    broker = await embed(queue={"session_messages": ROOM, "on_full": "tell-publisher"})
    sessions = [await away(broker, name, ("load", qos)) for name in ("first", "second")]
    publisher = await join(broker, "publisher")
    answers = [await publisher.publish("load", b"%d" % number, qos=qos) for number in range(ROOM + 3)]
    assert answers == [0] * ROOM + [0x97] * 3
    for session in sessions:
        assert ledger(session) == {"full-messages": 3}
    if qos == 2:
        # A new message under the same identifier: nothing of the refused one is remembered.
        await join(broker, "reader", ("load", 2))
        packet_id = publisher.next_id() - 1
        await publisher.send(wire.publish("load", b"again", qos=2, packet_id=packet_id))
        assert (await publisher.expect(wire.PUBREC)).code == 0
        await publisher.send(wire.ack(wire.PUBREL, packet_id))
        assert (await publisher.expect(wire.PUBCOMP)).code == 0
    assert await publisher.fence() == []


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_publisher_is_not_told_when_one_queue_took_it(embed: Embed, qos: int) -> None:
    """Somebody gets it, whether that one is connected or away."""
    broker = await embed(
        queue={"on_full": "tell-publisher", "rules": [{"client_id": "full", "session_messages": ROOM}]}
    )
    full = await away(broker, "full", ("load", qos))
    publisher = await join(broker, "publisher")
    roomy = await away(broker, "roomy", ("load", qos))
    answers = [await publisher.publish("load", b"%d" % number, qos=qos) for number in range(ROOM + 3)]
    assert answers == [0] * (ROOM + 3)
    assert (ledger(full), ledger(roomy)) == ({"full-messages": 3}, {})
    await (await join(broker, "roomy", clean=True)).disconnect()
    assert await publisher.publish("load", b"refused", qos=qos) == 0x97
    reader = await join(broker, "reader", "load")
    assert await publisher.publish("load", b"taken", qos=qos) == 0
    assert (await reader.message()).payload == b"taken"


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_frozen_subscriber_refuses_too(embed: Embed, qos: int) -> None:
    """The queue of one that is connected and does not read, for QoS 0: the publisher is told message by message."""
    broker = await embed(queue={"stall_timeout": NEVER_STALLED, "live_messages": 20, "on_full": "tell-publisher"})
    await Frozen.join(broker.ports[0], wire.connect("frozen", keep_alive=0), ("load", 0))
    session = broker.router.sessions["frozen"]
    publisher = await join(broker, "publisher")
    refused = 0
    for number in range(1000):
        before = ledger(session).total()
        code = await publisher.publish("load", b"%d " % number + overload.PAYLOAD, qos=qos)
        assert code == (0x97 if ledger(session).total() > before else 0)
        refused += code == 0x97
        if refused == 5:
            break
    assert ledger(session) == {"full-messages": 5}


@pytest.mark.parametrize("policy", ["drop-oldest", "latest"])
async def test_a_queue_that_makes_room_refuses_nothing(embed: Embed, policy: str) -> None:
    """What is lost there is an older message, and its publisher was answered long ago."""
    broker = await embed(queue={"session_messages": ROOM, "on_full": "tell-publisher", "policy": policy})
    session = await away(broker, "sleeper")
    publisher = await join(broker, "publisher")
    assert await miss(publisher, ROOM + 3) == [0] * (ROOM + 3)
    assert ledger(session).total() == (3 if policy == "drop-oldest" else ROOM + 2)


async def test_nobody_else_is_told(embed: Embed) -> None:
    """A 3.1.1 publisher is acknowledged as usual; a topic without subscribers, or with one away, is not full."""
    broker = await embed(queue={"session_messages": ROOM, "on_full": "tell-publisher"})
    session = await away(broker, "sleeper", ("load", 1), ("nothing", 0))
    old = await join(broker, "old", version=4)
    assert await miss(old, ROOM + 3) == [0] * (ROOM + 3)
    for qos in (1, 2):
        assert await old.publish("load", b"once more", qos=qos, retain=True) == 0
    assert await old.publish("load", b"twice", qos=2) == 0
    assert await old.fence() == []
    assert ledger(session) == {"full-messages": 6}
    new = await join(broker, "new")
    for topic in ("nobody", "nothing"):
        for qos in (1, 2):
            assert await new.publish(topic, b"x", qos=qos) in (0x00, 0x10)
    for qos in (1, 2):
        for retain in (False, True):
            assert await new.publish("load", b"x", qos=qos, retain=retain) == 0x97


async def test_by_default_a_full_queue_is_not_the_publishers_error(embed: Embed) -> None:
    """`acknowledge`: success for all, and the ledger counts."""
    broker = await embed(queue={"session_messages": ROOM})
    session = await away(broker, "sleeper")
    publisher = await join(broker, "publisher")
    assert await miss(publisher, ROOM + 3) == [0] * (ROOM + 3)
    assert await publisher.publish("load", b"x", qos=2) == 0
    assert ledger(session) == {"full-messages": 4}
