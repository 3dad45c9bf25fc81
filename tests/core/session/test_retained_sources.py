"""With `retained.check_publisher` a retained message is sent only while its publisher may publish it."""

from __future__ import annotations

from canopy_mqtt.core.codec.packets import NEVER
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.message import Message
from tests.core.harness import Client, Network, limits
from tests.core.routing.test_fair_room import Door
from tests.support.runs import for_each


class Rules(Door):
    """Vouches for user names, and lets all publish but those who are named by identifier, user or address."""

    def __init__(self) -> None:
        self.barred: set[str] = set()
        self.asked: list[tuple[str, str | None, str]] = []

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        del topic, qos, retain
        self.asked.append((principal.client_id, principal.user_name, principal.host))
        return self.barred.isdisjoint({principal.client_id, str(principal.user_name), principal.host})


def filled(check: bool = True, who: str | None = "ann", expiry: int | None = None) -> tuple[Network, Rules, Client]:
    """A broker with a retained message of the client "p"; `who`: its user."""
    network = Network(limits(check_retained_publisher=int(check)))
    rules = Rules()
    network.router.access_control = rules
    publisher = network.idle("p")
    publisher.host = "192.0.2.7"
    publisher.connect(clean=expiry is None, user_name=who, expiry=expiry)
    publisher.publish("r/1", b"kept", 1, retain=True)
    return network, rules, publisher


def seen(network: Network, name: str = "s") -> list[bytes]:
    """What a new subscriber gets."""
    client = network.client(name)
    client.subscribe("r/#", qos=1)
    return client.payloads()


@for_each("lost", ["p", "ann"])
@for_each("gone", [False, True])
def test_whose_publisher_lost_its_right(lost: str, gone: bool) -> None:
    """By its identifier or its user, connected or without a session; and with the right it comes again."""
    network, rules, publisher = filled()
    if gone:
        publisher.disconnect()
        assert "p" not in network.router.sessions
    assert seen(network) == [b"kept"]
    rules.barred.add(lost)
    assert seen(network, "t") == []
    assert network.router.counters.totals.retained_withheld == 1
    rules.barred.clear()
    assert seen(network, "u") == [b"kept"]


def test_by_the_address_without_a_user() -> None:
    network, rules, publisher = filled(who=None)
    rules.barred.add(publisher.host)
    publisher.disconnect()
    assert seen(network) == []


def test_who_has_its_identifier_now_is_somebody_else() -> None:
    network, rules, publisher = filled()
    publisher.disconnect()
    other = network.idle("p")
    other.connect(user_name="bob")
    rules.barred.add("bob")
    assert seen(network) == [b"kept"]
    rules.barred = {"ann"}
    assert seen(network, "t") == []


def test_what_the_broker_and_its_program_retain_is_sent() -> None:
    network, rules, _ = filled()
    network.router.publish(Message(b"r/own", b"own", 1, True, b"", 0.0, ""), None)
    rules.barred |= {"p", "ann"}
    assert seen(network) == [b"own"]


def test_nobody_is_asked_without_the_setting() -> None:
    network, rules, _ = filled(check=False)
    before = len(rules.asked)
    rules.barred.add("p")
    assert seen(network) == [b"kept"]
    assert len(rules.asked) == before


def test_a_publisher_with_a_session_is_asked_about_as_it_is() -> None:
    network, rules, publisher = filled(expiry=NEVER)
    publisher.disconnect()
    assert seen(network) == [b"kept"]
    assert rules.asked[-1] == ("p", "ann", publisher.host)
