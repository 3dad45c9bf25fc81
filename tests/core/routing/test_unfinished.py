"""What a member of a share group leaves unfinished: in turns to the others, nobody's for no moment, and none lost."""

from __future__ import annotations

import pytest

from canopy_mqtt.core.jobs import DUE_WORK, OBJECT_WORK, STEP_WORK
from canopy_mqtt.core.persistence.journal import Journal
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.unfinished import AT_ONCE
from tests.core.harness import Client, Network, limits, total_ledger
from tests.core.recount import losses
from tests.core.routing.test_permissions import Rules
from tests.support.losses import dropped_by_cause

MANY = 4 * AT_ONCE
HOUR = 3_600


def group(expiry: int) -> tuple[Network, Client, Client]:
    """A member for whom `MANY` messages wait, and one who has just come."""
    network = Network(limits(session_messages=0, live_messages=0, live_bytes=0))
    member = network.client("member", clean=False, expiry=expiry)
    member.subscribe("$share/g/t", qos=1)
    member.wire.frozen = True
    for number in range(MANY):
        network.router.publish(Message(b"t", b"%d" % number, 1, False, b"", 0.0, "p"), None)
    other = network.client("other", clean=False, expiry=HOUR)
    other.subscribe("$share/g/t", qos=1)
    other.wire.frozen = True
    return network, member, other


def turns(network: Network) -> int:
    """Tick until all has been done; how often that was. Each tick is bounded."""
    count = 0
    while network.router.jobs.waiting:
        before = network.router.budget.used
        assert network.router.tick(network.now) == network.router.jobs.waiting
        assert network.router.budget.used - before <= STEP_WORK + OBJECT_WORK + DUE_WORK
        count += 1
    return count


@pytest.mark.parametrize("expiry", [0, HOUR])
def test_very_many_go_in_turns(expiry: int) -> None:
    """All of them come, in their order, and count as waiting until then [MQTT-4.8.2-4]."""
    network, member, other = group(expiry)
    totals = network.router.counters.totals
    held = (totals.messages, totals.bytes)
    member.cut()
    assert other.session.queued() == AT_ONCE
    assert (totals.messages, totals.bytes) == held
    assert network.router.deadlines.due(network.now)
    assert turns(network) >= (MANY - AT_ONCE) * OBJECT_WORK // STEP_WORK
    assert (totals.messages, totals.bytes) == held
    assert other.session.queued() == MANY
    other.wire.frozen = False
    network.settle()
    assert [int(payload) for payload in other.payloads()] == list(range(MANY))
    assert (totals.messages, totals.bytes) == (0, 0)
    assert total_ledger(network.router.sessions.values()) == []


def test_with_a_store_none_is_nobodys() -> None:
    network, member, other = group(HOUR)
    network.router.counters.totals.journal = Journal()
    member.cut()
    assert other.session.queued() == MANY


@pytest.mark.parametrize("expiry", [0, HOUR])
def test_the_others_go_meanwhile(expiry: int) -> None:
    """What nobody has yet waits for the group; or is lost, with the group's last session [MQTT-4.8.2-5]."""
    network, member, other = group(expiry)
    left = member.session
    member.cut()
    network.router.unsubscribe(other.session, "$share/g/t")
    turns(network)
    back = MANY - AT_ONCE
    assert left.queued() == 0
    if expiry:
        assert network.session("$share/g/t").queued() == back
        assert sum(dropped_by_cause(left)) == 0
    else:
        assert sum(dropped_by_cause(left)) == back
    assert other.session.queued() == AT_ONCE
    assert total_ledger([left, *network.router.sessions.values()]) == []
    totals = network.router.counters.totals
    assert totals.messages == AT_ONCE + (back if expiry else 0)


@pytest.mark.parametrize("stays", ["member", "away", "gone"])
@pytest.mark.parametrize("forbidden", [("other",), ("member", "other")], ids=len)
def test_what_no_member_may_have_is_back_with_its_client_or_counted(forbidden: tuple[str, ...], stays: str) -> None:
    """The rules have changed since: its client has it again where it may and is coming back, and else it is lost."""
    rules = Rules()
    network, member, other = group(0 if stays == "gone" else HOUR)
    network.router.access_control = rules
    rules.no_receive.update((name, "t") for name in forbidden)
    rules.change()
    left = member.session
    if stays == "away":
        # Its session is, but it is no member any more.
        network.router.unsubscribe(left, "$share/g/t")
    member.cut()
    turns(network)
    assert other.session.queued() == 0
    back = MANY if stays != "gone" and "member" not in forbidden else 0
    assert left.queued() == back
    assert losses(left) == ({} if back else {"not-authorized": MANY})
    assert total_ledger([left, other.session]) == []
    assert network.router.counters.totals.messages == back
