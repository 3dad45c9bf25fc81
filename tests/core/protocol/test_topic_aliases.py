"""What a client's topic aliases and user properties take: counted, bounded, and given back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import V5, Will
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.codec.properties import encode_forward
from canopy_mqtt.core.protocol.publish import ALIAS_BYTES
from tests.core.harness import Client, Network, bag, limits

TOPIC_ALIAS_MAXIMUM = 0x22


def _set(client: Client, alias: int, size: int) -> None:
    client.publish("t" * size, alias=alias)


def test_the_aliases_of_all() -> None:
    """Who connects when most of the bound is used may set none; who sets more than there is room for has 0x97."""
    size = 100 + ALIAS_BYTES
    network = Network(limits(max_alias_bytes=4 * size))
    one, two = network.client("one"), network.client("two")
    assert two.connack.properties.integers[TOPIC_ALIAS_MAXIMUM] == 64
    for alias in (1, 2, 3):
        _set(one, alias, 100)
    late = network.client("late")
    assert TOPIC_ALIAS_MAXIMUM not in late.connack.properties.integers
    _set(late, 1, 100)
    assert late.end == 0x94  # [MQTT-3.2.2-18]
    _set(two, 1, 100)
    _set(two, 2, 1)
    assert two.end == 0x97
    one.cut()
    assert network.router.alias_bytes == 0
    assert network.client("again").connack.properties.integers[TOPIC_ALIAS_MAXIMUM] == 64


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(1, 60)), max_size=40))
def test_the_account_is_exact(steps: list[tuple[int, int, int]]) -> None:
    """However aliases are set, set again, and end with their connections (0) [MQTT-3.3.2-7]."""
    network = Network(limits(max_alias_bytes_per_client=3 * ALIAS_BYTES, max_alias_bytes=6 * ALIAS_BYTES))
    clients = [network.client(f"c{number}") for number in range(3)]
    model: list[dict[int, int]] = [{}, {}, {}]
    for number, alias, size in steps:
        client = clients[number]
        if not alias:
            client.cut()
        elif TOPIC_ALIAS_MAXIMUM in client.connack.properties.integers:
            _set(client, alias, size)
            wanted = {**model[number], alias: size + ALIAS_BYTES}
            of_all = sum(sum(each.values()) for each in model) - sum(model[number].values()) + sum(wanted.values())
            grows = wanted[alias] > model[number].get(alias, 0)
            fits = sum(wanted.values()) <= 3 * ALIAS_BYTES and of_all <= 6 * ALIAS_BYTES
            assert client.end == (0x97 if grows and not fits else -2)
            model[number] = wanted
        if not alias or client.closed:
            model[number] = {}
            client.connect()
        assert network.router.alias_bytes == sum(sum(each.values()) for each in model)


PAIRS = [("k", "v")] * 3


@pytest.mark.parametrize("kind", ["publish", "subscribe", "unsubscribe", "puback", "disconnect"])
@pytest.mark.parametrize("count", [3, 4])
def test_user_properties_of_a_packet(kind: str, count: int) -> None:
    """As many as the settings say; more of them end the connection with 0x97."""
    network = Network(limits(max_user_properties=3))
    client = network.client("c")
    held = bag(*[("k", "v")] * count)
    packets: dict[str, p.Packet] = {
        "publish": p.Publish(b"t", b"", properties=encode_forward(user=held.user)),
        "subscribe": p.Subscribe(1, [Request("t")], held),
        "unsubscribe": p.Unsubscribe(1, ["t"], held),
        "puback": p.Ack(p.PUBACK, 1, 0, held),
        "disconnect": p.Disconnect(0, held),
    }
    client.send(packets[kind])
    network.settle()
    if count > 3:
        assert client.end == 0x97
    else:
        assert client.wire.protocol.close_cause == ("client-disconnect" if kind == "disconnect" else "")


@pytest.mark.parametrize(("of_will", "count", "code"), [(0, 3, 0), (0, 4, 0x97), (1, 3, 0), (1, 4, 0x97)])
def test_user_properties_of_a_connect(of_will: int, count: int, code: int) -> None:
    """Those of the will are counted by themselves."""
    pairs = [("k", "v")] * count
    will = Will("w", b"", properties=encode_forward(user=pairs if of_will else PAIRS))
    client = Network(limits(max_user_properties=3)).idle("c", V5)
    assert client.connect(will=will, properties=bag(*(PAIRS if of_will else pairs))).reason_code == code


def test_properties_count_in_a_turn() -> None:
    """A read full of them is more than one turn's work."""
    network = Network()
    client = network.client("c")
    section = encode_forward(user=[("", "")] * 1_000)
    before = network.router.budget.used
    client.publish("t", properties=section)
    assert network.router.budget.used - before >= len(section) // 2
