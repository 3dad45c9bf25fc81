"""The list of those who were refused something: bounded, fair, and empty where nothing is refused."""

from __future__ import annotations

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.ledger import Ledger
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.refusals import (
    CHANGED,
    KINDS,
    MAX_LISTED_CLIENTS,
    MAX_LISTED_OF_ACCOUNT,
    MAX_TOPIC_CHARACTERS,
    PUBLISH,
    RECEIVE,
    SUBSCRIBE,
    TOO_LONG,
    Refusals,
)
from canopy_mqtt.core.routing.verdicts import MAX_BARRED_ROUTES, MAX_TOLD_SUBSCRIBERS
from tests.core.routing.test_permissions import Rules, ruled
from tests.support.runs import for_each


def refuse(refusals: Refusals, ledger: Ledger, who: Principal, topic: str = "t", kind: int = PUBLISH) -> None:
    refusals.note(ledger, who, kind, topic, reason_codes.NOT_AUTHORIZED, 1.0)


def test_a_client_is_listed_once_and_its_refusals_are_counted_by_kind() -> None:
    refusals, ledger, who = Refusals(), Ledger("c", Counters()), Principal("u", client_id="c")
    for topic in ("a", "b"):
        refuse(refusals, ledger, who, topic)
    refuse(refusals, ledger, who, "f", SUBSCRIBE)
    (refused,) = refusals.listed
    refusals.listed = []
    assert [(KINDS[each.kind], each.topic, each.count) for each in refusals.take(refused)] == [
        ("publish", "b", 2),
        ("subscribe", "f", 1),
    ]
    assert refused.counts == [2, 1, 0, 0, 0]
    assert refused.last is not None
    assert refused.last.topic == "f"
    refuse(refusals, ledger, who)
    assert refusals.listed == [refused]
    assert [each.count for each in refusals.take(refused)] == [1]


def test_one_principal_leaves_room_for_others_and_the_list_is_bounded() -> None:
    """While there is room it has all that it wants: a whole fleet may share one user."""
    refusals = Refusals()
    fleet = Principal("fleet")
    for number in range(3 * MAX_LISTED_CLIENTS):
        refuse(refusals, Ledger(f"f{number}", Counters()), fleet)
    assert len(refusals.listed) == MAX_LISTED_CLIENTS // 2
    for number in range(MAX_LISTED_CLIENTS):
        refuse(refusals, Ledger(f"o{number}", Counters()), Principal(host=f"192.0.2.{number % 20}"))
    others = len(refusals.listed) - MAX_LISTED_CLIENTS // 2
    assert others == 20 * MAX_LISTED_OF_ACCOUNT
    assert refusals.unlisted == 3 * MAX_LISTED_CLIENTS + MAX_LISTED_CLIENTS - len(refusals.listed)
    # As it was before, once all is told.
    for refused in refusals.listed:
        refusals.take(refused)
    refusals.listed = []
    assert refusals._places == {}


def test_a_long_topic_is_cut_and_no_rule_is_looked_up_for_the_rest() -> None:
    refusals, ledger, who = Refusals(), Ledger("c", Counters()), Principal("u")
    refuse(refusals, ledger, who, "t" * 65_535)
    refused = ledger.refused
    assert refused is not None
    assert refused.last is not None
    assert len(refused.last.topic) == MAX_TOPIC_CHARACTERS
    assert refused.last.settle(who, Rules()) == TOO_LONG


def test_a_rule_that_has_changed_since_is_not_blamed() -> None:
    refusals, ledger, who = Refusals(), Ledger("c", Counters()), Principal("u")
    refuse(refusals, ledger, who)
    assert ledger.refused is not None
    assert ledger.refused.last is not None
    assert ledger.refused.last.settle(who, Rules()) == CHANGED


def test_where_everybody_may_have_it_nothing_is_noted() -> None:
    network, _ = ruled()
    reader, writer = network.client("r"), network.client("w")
    reader.subscribe("#")
    for number in range(3):
        writer.publish(f"t/{number}", b"x", 1)
    assert len(reader.take()) == 3
    fanout = network.router.fanout
    assert fanout.barred._listed == []
    assert not fanout.barred.tell(network.router.sessions, network.router.counters)
    assert network.router.counters.refusals.listed == []


@for_each("filters", [["$share/g/t"], ["$share/g/t", "+"]], ids=["one filter", "several"])
def test_what_no_member_of_a_share_group_may_have_is_counted_for_one_of_them(filters: list[str]) -> None:
    network, rules = ruled()
    writer = network.client("w")
    for name in ("no", "neither"):
        network.client(name).subscribe(*filters)
        rules.no_receive.add((name, "t"))
    for number in range(6):
        writer.publish("t", b"%d" % number, number % 3)
    router = network.router
    while router.fanout.barred.tell(router.sessions, router.counters):
        pass
    ordinary = 6 if len(filters) == 2 else 0
    assert router.counters.denied_deliveries == 6 + 2 * ordinary
    for name in ("no", "neither"):
        refused = router.sessions[name].ledger.refused
        assert refused is not None
        assert refused.counts[RECEIVE] == 3 + ordinary
        assert refused.last is not None
        assert refused.last.topic == "t"
    # A member that may have them gets all, and nothing more is refused to the group.
    may = network.client("may")
    may.subscribe("$share/g/t")
    writer.publish("t", b"x", 1)
    assert may.payloads() == [b"x"]
    while router.fanout.barred.tell(router.sessions, router.counters):
        pass
    assert router.counters.denied_deliveries == 6 + 2 * ordinary + (2 if ordinary else 0)


def test_routes_with_barred_subscribers_are_remembered_up_to_a_bound() -> None:
    network, rules = ruled()
    readers, topics = MAX_TOLD_SUBSCRIBERS // MAX_BARRED_ROUTES + 1, MAX_BARRED_ROUTES + 5
    writer = network.client("w")
    for reader in range(readers):
        network.client(f"r{reader}").subscribe("#")
        rules.no_receive |= {(f"r{reader}", f"t/{number}") for number in range(topics)}
    for _ in range(2):
        for number in range(topics):
            writer.post(f"t/{number}", b"x", 0)
    network.settle()
    router = network.router
    turns = 1
    while router.fanout.barred.tell(router.sessions, router.counters):
        turns += 1
    assert turns > 1
    assert router.counters.denied_deliveries == 2 * topics * readers
    refused = router.sessions["r0"].ledger.refused
    assert refused is not None
    assert refused.counts[RECEIVE] == 2 * MAX_BARRED_ROUTES
    assert router.counters.refusals.unlisted == 2 * (topics - MAX_BARRED_ROUTES) * readers
