"""The states of mosquitto's bridges below `$SYS/broker/connection/`: who may write there, and what remains."""

from __future__ import annotations

from typing import Any, cast

import pytest

from canopy_mqtt.core.codec.packets import PUBACK, V5, V31, V311, Will
from canopy_mqtt.core.hooks import AccessControl
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.refusals import WILL
from canopy_mqtt.core.routing.bridge_states import ANOTHER, ONLY_BRIDGES, is_bridge_state
from canopy_mqtt.store.memory import MemoryStore
from tests.core.harness import Client, Network, limits
from tests.support.restored import restore

HOUR = 3600
STATE = "$SYS/broker/connection/vm.site1/state"


def will(topic: str = STATE, payload: bytes = b"0", **more: Any) -> Will:
    """What mosquitto's bridge has in its CONNECT."""
    return Will(topic, payload, 1, True, **more)


def watched(**changes: int) -> tuple[Network, Client]:
    """A network, and a client that sees the states of bridges."""
    network = Network(limits(**changes))
    operator = network.client("operator")
    operator.subscribe("$SYS/broker/connection/+/state", qos=1)
    return network, operator


def bridge(network: Network, client_id: str = "vm.site1", version: int = V311, **more: Any) -> Client:
    """A bridge that has come: mosquitto's publishes its state as soon as it is let in."""
    client = network.client(client_id, version, **{"clean": False, "will": will(), **more})
    client.publish(STATE, b"1", 1, retain=True)
    return client


def told(network: Network, topic: str = STATE) -> bytes | None:
    """What an operator finds retained there now."""
    found = cast("Message | None", network.router.retained.get(topic))
    return None if found is None else found.payload()


def refused(network: Network, client_id: str) -> tuple[int, str] | None:
    """The last refusal of a client: what, and why."""
    record = network.session(client_id).ledger.refused
    return None if record is None or record.last is None else (record.last.kind, record.last.why)


@pytest.mark.parametrize(("topic", "is_one"), [
    (STATE, True), ("$SYS/broker/connection/a b/state", True), ("$SYS/broker/connection//state", False),
    ("$SYS/broker/connection/state", False), ("$SYS/broker/connection/a/b/state", False),
    ("$SYS/broker/connection/a/states", False), ("SYS/broker/connection/a/state", False),
    ("$SYS/broker/connection/a/state/", False), ("$SYS/broker/uptime", False), ("$SYS", False),
])  # fmt: skip
def test_which_topics_are_states(topic: str, is_one: bool) -> None:
    """One level is the name."""
    assert is_bridge_state(topic.encode()) is is_one


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_operators_read_the_state_of_a_bridge(version: int) -> None:
    """`1` while it is connected, `0` by its will when it is lost, `1` again when it is back; live and retained."""
    network, operator = watched()
    client = bridge(network, version=version, expiry=HOUR if version == V5 else 0)
    assert operator.payloads() == [b"1"]
    assert told(network) == b"1"
    client.cut()
    network.settle()
    assert operator.payloads() == [b"0"]
    assert told(network) == b"0"
    client.connect(clean=False, will=will(), expiry=HOUR if version == V5 else 0)
    client.publish(STATE, b"1", 1, retain=True)
    assert operator.payloads() == [b"1"]
    assert refused(network, "vm.site1") is None


def test_a_takeover_ends_with_one() -> None:
    """The old connection's will comes before the new connection's state [MQTT-3.1.4-3]."""
    network, operator = watched()
    bridge(network)
    bridge(network)
    assert operator.payloads() == [b"1", b"0", b"1"]
    assert told(network) == b"1"


@pytest.mark.parametrize("version", [V311, V5])
def test_a_stranger_writes_no_state(version: int) -> None:
    """Not without a will there, and not with the will of another name."""
    network, operator = watched()
    bridge(network)
    operator.take()
    for client_id, given in (("s1", None), ("s2", will("$SYS/broker/connection/other/state"))):
        stranger = network.client(client_id, version, will=given)
        for payload in (b"0", b""):
            stranger.publish(STATE, payload, 1, retain=True)
        assert [ack.reason_code for ack in stranger.acks(PUBACK)] == [0x87 if version == V5 else 0] * 2
    assert operator.take() == []
    assert told(network) == b"1"


def test_a_connected_bridge_keeps_its_name() -> None:
    """Another client with the same name comes in, without its will; it says nothing for the first one."""
    network, operator = watched()
    first = bridge(network)
    operator.take()
    second = network.client("imitator", V311, clean=False, will=will())
    assert refused(network, "imitator") == (WILL, ANOTHER)
    second.publish(STATE, b"0", 1, retain=True)
    second.cut()
    network.settle()
    assert operator.take() == []
    assert told(network) == b"1"
    first.cut()
    network.settle()
    assert told(network) == b"0"


def test_two_that_announce_one_name() -> None:
    """The first to write it has it: the other's will says nothing about it."""
    network, operator = watched()
    first = network.client("first", V311, clean=False, will=will())
    second = network.client("second", V311, clean=False, will=will())
    first.publish(STATE, b"1", 1, retain=True)
    second.publish(STATE, b"0", 1, retain=True)
    second.cut()
    network.settle()
    assert operator.payloads() == [b"1"]
    assert told(network) == b"1"


def test_an_absent_bridge_keeps_its_name() -> None:
    """As long as its session is there: nobody else says that it is up. Then the name is free."""
    network, operator = watched()
    bridge(network).cut()
    network.settle()
    operator.take()
    stranger = network.client("stranger", V311, clean=False, will=will())
    assert refused(network, "stranger") == (WILL, ANOTHER)
    stranger.publish(STATE, b"1", 1, retain=True)
    assert operator.take() == []
    assert told(network) == b"0"
    network.router.end_session(network.session("vm.site1"), network.now)
    bridge(network, "stranger")
    assert told(network) == b"1"


class Rules(AccessControl):
    """Nobody publishes below $SYS."""

    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        del principal, qos, retain
        return not topic.startswith("$SYS/")

    def said(self, principal: Principal, action: str, topic: str, qos: int, retain: bool) -> tuple[bool, str]:
        del action
        return self.may_publish(principal, topic, qos, retain), "rule 1 (deny)"


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_access_rules_apply(version: int) -> None:
    """The bridge comes in; nobody hears of its state, and the log says which rule to change."""
    network, operator = watched()
    network.router.access_control = Rules()
    client = bridge(network, version=version, expiry=HOUR)
    record = network.session("vm.site1").ledger.refused
    assert record is not None
    assert record.counts[WILL] == 1
    client.cut()
    network.settle()
    assert operator.take() == []
    assert told(network) is None


@pytest.mark.parametrize("version", [V31, V311, V5])
@pytest.mark.parametrize("topic", ["$SYS", "$SYS/broker/uptime", "$SYS/broker/connection/a/b/state"])
def test_other_wills_below_sys_are_left_out(version: int, topic: str) -> None:
    """The client comes in, as with mosquitto and EMQX; the log tells of its will. Nothing is published."""
    network, _ = watched()
    witness = network.client("w")
    witness.subscribe("$SYS/#")
    client = network.client("c", version, clean=False, expiry=HOUR, will=will(topic))
    assert client.connack.reason_code == 0
    assert refused(network, "c") == (WILL, ONLY_BRIDGES)
    client.cut()
    network.settle()
    assert witness.take() == []
    assert told(network, topic) is None


def test_below_a_mount_it_is_left_out() -> None:
    """Mounted clients have no name for topics that begin with `$`."""
    network, _ = watched()
    client = network.mounted("vm.site1", V311, "tenant/a/", clean=False, will=will())
    assert client.connack.reason_code == 0
    client.publish(STATE, b"1", 1, retain=True)
    client.cut()
    network.settle()
    assert told(network) is None


def test_a_delayed_zero_does_not_follow_the_one() -> None:
    """A will that has to wait for its turn says nothing about a bridge that is back by then (mosquitto#2097)."""
    network, operator = watched()
    client = bridge(network)
    network.router.wills._pressed = True
    client.cut()
    assert len(network.router.wills.line) == 1
    client.connect(clean=False, will=will())
    client.publish(STATE, b"1", 1, retain=True)
    network.advance(1.0)
    assert len(network.router.wills.line) == 0
    assert operator.payloads()[-1] == b"1"
    assert told(network) == b"1"


def test_states_count_against_the_limits_of_their_client() -> None:
    """A client with ever new names leaves no more than any client may."""
    network = Network(limits(max_retained_messages=3))
    store = network.router.retained_store
    for number in range(10):
        topic = f"$SYS/broker/connection/{number}/state"
        client = network.client(f"c{number}", V311, will=will(topic))
        client.publish(topic, b"1", 1, retain=True)
        client.cut()
        network.settle()
    assert len(store.tree) == 3
    assert (store.system_count, store.bytes > 0) == (0, True)
    for number in range(10):
        store.drop(f"$SYS/broker/connection/{number}/state")
    assert (len(store.tree), store.bytes, store.system_count) == (0, 0, 0)


@pytest.mark.asyncio
async def test_after_a_restart() -> None:
    """No store keeps a state; but it keeps the will of the bridge, which says `0` unless the bridge is back."""
    store = MemoryStore()
    before = Network()
    before.router.journal = store.journal
    await store.open(lambda: before.now)
    bridge(before)
    after = Network()
    after.router.journal = store.journal
    restore(after.router, await store.load(), after.now)
    assert told(after) is None
    after.advance(HOUR)
    assert told(after) == b"0"
