"""Loss is told with whatever message comes next.

The broker is embedded, so that what is told can be held against the ledger; all else goes over sockets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import pytest

from broker.core.counters import DROP_CAUSES
from broker.core.session.session import Session
from tests.e2e import wire
from tests.e2e.clients.frozen import Frozen
from tests.e2e.embedded import (
    NEVER_STALLED,
    Embed,
    flood,
    join,
)
from tests.e2e.wire import Packet
from tests.support.losses import dropped_by_cause

LOST: Final = "canopy-lost"


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
