"""A SUBSCRIBE or UNSUBSCRIBE with very many filters: worked off in turns, in order, and whole or not at all."""

from __future__ import annotations

import pytest

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import V5, V31, V311, Suback
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.codec.properties import REASON_STRING, Properties
from canopy_mqtt.core.codec.topic_names import matches
from canopy_mqtt.core.hooks import FORBIDDEN, AccessControl, EventListener, SubscriptionListener
from canopy_mqtt.core.jobs import FILTER_WORK, LENGTH_SHIFT, TOLD_WORK, TURN_WORK
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.protocol.subscribe import MAX_TOLD
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.queue_terms import QueueRule
from tests.core.harness import Client, Network, bag, limits

MANY = 6_000


def _names(count: int = MANY) -> list[str]:
    return [f"t/{number}" for number in range(count)]


def _subscribe(count: int = MANY, properties: Properties | None = None) -> p.Subscribe:
    return p.Subscribe(7, [Request(name, 1) for name in _names(count)], properties or Properties())


def _unsubscribe(count: int = MANY) -> p.Unsubscribe:
    return p.Unsubscribe(8, _names(count))


def _turn(client: Client) -> int:
    """One call into the core for this client: a read, or its next turn. What it was charged with."""
    before = client.network.router.budget.used
    link = client.wire
    moved = link.go_on() if link.protocol.unfinished else link.to_channel()
    assert moved
    return client.network.router.budget.used - before


def _ping_alone(client: Client) -> None:
    """A round trip for which nobody else is moved."""
    before = len(client.got(p.Pingresp))
    client.send(p.Pingreq())
    assert client.wire.to_channel()
    assert client.wire.flush()
    assert client.wire.to_client()
    assert len(client.got(p.Pingresp)) == before + 1


@pytest.mark.crowd
@pytest.mark.parametrize("version", [V31, V311, V5])
@pytest.mark.parametrize("kind", ["subscribe", "unsubscribe"])
def test_one_packet_is_many_turns(version: int, kind: str) -> None:
    """No turn does more than its bound and one filter; others are served in between; the answer comes once, at the end.

    [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.10.4-6]
    """
    network = Network()
    client, other = network.client("c", version), network.client("o")
    other.subscribe("t/1")
    if kind == "unsubscribe":
        client.subscribe(*_names(), qos=1)
    client.send(_subscribe() if kind == "subscribe" else _unsubscribe())
    client.send(p.Pingreq())
    turns = 0
    before = network.router.table.count
    while not turns or client.wire.protocol.unfinished:
        done = network.router.table.count - before
        assert _turn(client) <= TURN_WORK + FILTER_WORK + 2
        turns += 1
        assert abs(network.router.table.count - before - done) <= TURN_WORK // FILTER_WORK + 1
        if client.wire.protocol.unfinished:
            # Nothing is said yet, neither to the SUBSCRIBE nor to what came behind it.
            assert client.wire.send_buffer.empty
            _ping_alone(other)
    assert turns > MANY * FILTER_WORK // TURN_WORK
    network.settle()
    answers = [type(packet) for packet in client.packets if not isinstance(packet, p.Connack)][-2:]
    assert answers == [p.Suback if kind == "subscribe" else p.Unsuback, p.Pingresp]
    if kind == "subscribe":
        assert client.got(p.Suback)[0].reason_codes == [1] * MANY
        assert len(client.session.subscriptions) == MANY
    else:
        assert client.got(p.Unsuback)[0].reason_codes == ([0] * MANY if version == V5 else [])
        assert not client.session.subscriptions
        assert network.router.table.count == 1


@pytest.mark.crowd
def test_long_filters_count_for_more() -> None:
    """A turn is bounded in bytes of filters, too."""
    network = Network(limits(max_packet_size=4_000_000))
    client = network.client("c")
    client.send(p.Subscribe(7, [Request(f"{number}/" + "x" * 65_000) for number in range(40)]))
    turns = 0
    while not turns or client.wire.protocol.unfinished:
        assert _turn(client) <= TURN_WORK + FILTER_WORK + (65_535 >> LENGTH_SHIFT)
        turns += 1
    assert turns >= 2 * 40 * (65_000 >> LENGTH_SHIFT) // TURN_WORK
    network.settle()
    assert client.got(p.Suback)[0].reason_codes == [0] * 40


@pytest.mark.parametrize("heard", ["access control", "listener", "links", "queue options", "queue rules"])
def test_filters_that_somebody_hears_of_count_for_more(heard: str) -> None:
    """Where nobody does, a turn has room for more of them."""

    def charge(network: Network, wanted: Properties | None = None) -> int:
        client = network.client("c")
        client.send(_subscribe(100, wanted))
        return _turn(client)

    plain, given = charge(Network()), limits()
    if heard == "queue rules":
        given.rules = (QueueRule(topic_filter="t/1", depth=3),)
    network = Network(given)
    wanted: Properties | None = None
    match heard:
        case "access control":
            network.router.access_control = AccessControl()
        case "listener":
            network.router.event_listener = EventListener()
        case "links":
            network.router.table.listener = SubscriptionListener()
        case "queue options":
            wanted = bag(("canopy-queue", "latest"))
    for_rules = 100 * len(given.rules)
    assert charge(network, wanted) == plain + 100 * TOLD_WORK + for_rules


@pytest.mark.parametrize(
    ("count", "differ", "told"), [(MAX_TOLD + 1, False, 1), (MAX_TOLD, True, MAX_TOLD), (MAX_TOLD + 1, True, 0)]
)
def test_queue_options_of_very_many(count: int, differ: bool, told: int) -> None:
    """Told once where all are alike; where they differ and are too many, not at all: no answer outgrows its packet."""
    given = Limits()
    if differ:
        given.rules = (QueueRule(topic_filter="t/1", depth=3),)
    client = Network(given).client("c")
    client.send(_subscribe(count, bag(("canopy-depth", "5"))))
    client.network.settle()
    [answer] = client.got(p.Suback)
    assert answer.reason_codes == [1] * count
    assert len(answer.properties.user) == told * 3
    assert [value for name, value in answer.properties.user if name == "canopy-depth"][:2] == ["5", "3"][:told]


def test_while_subscriptions_are_looked_through_nothing_comes_before_what_was_in_flight() -> None:
    """[MQTT-4.6.0-1] And what comes meanwhile comes once: it is not in flight from before [MQTT-4.4.0-1]."""
    network = Network()
    rules = AccessControl()
    rules.epoch, rules.ask_work = 0, 100
    network.router.access_control = rules
    reader, writer = network.client("r", clean=False, expiry=3600, receive_maximum=2), network.client("w")
    reader.subscribe("t", *(f"other/{number}" for number in range(1_000)), qos=1)
    reader.answering = False
    for number in range(4):
        writer.publish("t", b"%d" % number, 1)
    reader.cut()
    reader.take()
    reader.connect(clean=False, expiry=3600, receive_maximum=10, settle=False)
    reader.wire.to_channel()
    assert reader.wire.protocol.unfinished
    # The writer's turn, and then somebody else's.
    network.wake()
    network.router.publish(Message(b"t", b"4", 1, False, b"", 0.0, "w"), None)
    network.settle()
    assert reader.payloads() == [b"0", b"1", b"2", b"3", b"4"]
    assert reader.session.window.quota == 5


class Parts(AccessControl):
    """Denies a/b, and every filter that matches it."""

    def may_subscribe(self, principal: Principal, topic_filter: str, qos: int) -> int:
        del principal
        return FORBIDDEN if matches(topic_filter, "a/b") else qos

    def denies_part(self, principal: Principal, topic_filter: str) -> bool:
        del principal
        return topic_filter != "a/b"


@pytest.mark.parametrize(("filters", "told"), [
    (["#"], "#"), (["a/c", "a/+", "#"], "a/+"), (["$share/g/#"], "$share/g/#"), (["a/b"], ""), (["a/c"], ""),
])  # fmt: skip
@pytest.mark.parametrize("version", [V311, V5])
def test_a_filter_that_is_denied_for_a_part_of_it(version: int, filters: list[str], told: str) -> None:
    """The Reason String says that narrower filters may be granted, and names no topic [MQTT-3.9.2-1]."""
    network = Network()
    network.router.access_control = Parts()
    client = network.client("c", version)
    client.subscribe(*filters)
    (suback,) = client.got(Suback)
    said = f'a rule denies a part of the filter "{told}": subscribe to narrower ones' if told and version == V5 else ""
    assert suback.properties.strings.get(REASON_STRING, "") == said
    refused = 0x87 if version == V5 else 0x80
    assert [code == refused for code in suback.reason_codes] == [
        matches(each.removeprefix("$share/g/"), "a/b") for each in filters
    ]
