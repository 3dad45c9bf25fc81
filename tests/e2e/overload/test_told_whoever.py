"""Loss is told with whatever message comes next, and a frozen subscriber's queue refuses for the publisher, too.

The broker is embedded, so that what is told can be held against the ledger; all else goes over sockets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import pytest

from broker.core.counters import DROP_CAUSES
from broker.core.session.session import Session
from canopy import Broker
from tests.e2e import wire
from tests.e2e.clients.frozen import Frozen
from tests.e2e.embedded import (
    KEPT,
    NEVER_STALLED,
    PAYLOAD,
    Embed,
    flood,
    join,
)
from tests.e2e.wire import Packet, Peer
from tests.support.losses import dropped_by_cause

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
    return +Counter(dict(zip(DROP_CAUSES, dropped_by_cause(session), strict=True)))


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


# ----------------------------------------------------------------------------------------------------------- under $SYS


# -------------------------------------------------------------------------------------------------------- the publisher


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
        code = await publisher.publish("load", b"%d " % number + PAYLOAD, qos=qos)
        assert code == (0x97 if ledger(session).total() > before else 0)
        refused += code == 0x97
        if refused == 5:
            break
    assert ledger(session) == {"full-messages": 5}


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
