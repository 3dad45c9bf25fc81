"""What goes wrong for a retained message is made good while the link stays up, and no word of a client misleads."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from canopy_mqtt.core.hooks import AccessControl
from canopy_mqtt.core.principal import Principal
from tests.cluster.nodes import Nodes
from tests.cluster.test_retained import everywhere, got, kept, retain
from tests.support.waiting import until

TOPICS: Final = 40
PAYLOAD: Final = b"." * 999


async def test_what_a_full_queue_has_dropped_is_sent_again(stack: AsyncExitStack, tmp_path: Path) -> None:
    # Its links do not take the silence for an end.
    nodes = Nodes(stack, tmp_path, link_timeout=60.0, link_bytes=10_000)
    await nodes.start("a", "b")
    publisher = await nodes.join("a", "publisher")
    for number in range(TOPICS):
        await publisher.publish(f"t/{number}", b"1" + PAYLOAD, qos=1, retain=True)
    topics = [f"t/{number}" for number in range(TOPICS)]
    await until(lambda: all(kept(nodes, "b", topic) == b"1" + PAYLOAD for topic in topics))
    nodes.wires["b", "a"].darken()
    for topic in topics:
        await publisher.publish(topic, b"2" + PAYLOAD, qos=1, retain=True)
    assert nodes.session("a", "b").ledger.in_all() > 0
    nodes.light()
    await until(lambda: all(kept(nodes, "b", topic) == b"2" + PAYLOAD for topic in topics))
    assert nodes.link("b", "a").connects == 1


async def test_a_clock_that_is_set_counts_at_once(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    await nodes.start("a", "b")
    totals = nodes.brokers["a"].router.counters.totals
    before, right = totals.epoch, time.time
    monkeypatch.setattr("canopy_mqtt.cluster.cluster.time.time", lambda: right() + 1_000.0)
    await until(lambda: totals.epoch > before + 900.0)


class NobodyMayPublish(AccessControl):
    def may_publish(self, principal: Principal, topic: str, qos: int, retain: bool) -> bool:
        del principal, topic, qos, retain
        return False


async def test_copies_of_other_nodes_are_sent_where_publishers_are_checked(nodes: Nodes) -> None:
    await nodes.start("a", "b", retained={"check_publisher": True})
    await retain(nodes, "a", b"1")
    await everywhere(nodes, "t", b"1")
    for broker in nodes.brokers.values():
        broker.router.access_control = NobodyMayPublish()
    assert await got(await nodes.join("b", "late", ("t", 1))) == [(b"1", True)]
    assert await got(await nodes.join("a", "late", ("t", 1))) == []


async def test_no_hops_that_a_client_has_written_keep_a_message_from_a_node(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    subscriber = await nodes.join("b", "subscriber", ("t", 1))
    publisher = await nodes.join("a", "publisher")
    name = nodes.brokers["b"].router.broker_id
    await publisher.publish("t", b"1", qos=1, retain=True, props=[(0x26, ("canopy-via", name))])
    message = await subscriber.message()
    assert (message.payload, message.all(0x26)) == (b"1", [("canopy-via", name)])
    await everywhere(nodes, "t", b"1")


async def test_what_waits_for_a_node_comes_before_what_is_retained(nodes: Nodes) -> None:
    """With stores: a message with QoS 2 waits for its commit, and between nodes one with QoS 1 goes with QoS 2."""
    await nodes.start("a", "b", stores="ab")
    subscriber = await nodes.join("b", "subscriber", ("t", 1))
    publisher = await nodes.join("a", "publisher")
    nodes.wires["b", "a"].darken()
    await until(lambda: not nodes.link("b", "a").connected and nodes.session("a", "b").send_buffer is None)
    for number in range(20):
        await publisher.publish("t", b"%d" % number, qos=1, retain=True)
    nodes.light()
    assert [int((await subscriber.message()).payload) for _ in range(20)] == list(range(20))
