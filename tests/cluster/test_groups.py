"""Share groups that live at one of several nodes: who asks for what, faults between them, and restarts.

Only workers have homes of groups (`tests/workers/test_groups.py`); here each node takes node a for the home of all.
"""

from __future__ import annotations

import pytest

from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.core.routing.nodes import NODES
from tests.cluster.nodes import Nodes as AnyNodes
from tests.e2e import wire
from tests.e2e.wire import SESSION_EXPIRY, Peer, ack
from tests.support.waiting import until

HOME = "a"
JOBS = "$share/g/jobs/#"


class Nodes(AnyNodes):
    """Nodes that have the home of all share groups at node a."""

    async def member(self, name: str, client_id: str, qos: int = 1, clean: bool = False) -> Peer:
        """A connected member at a node, whose session stays."""
        return await self.join(name, client_id, (JOBS, qos), clean=clean, props=((SESSION_EXPIRY, 3600),))

    def told(self, name: str, other: str) -> list[str]:
        """The filters that a node has asked another one for, and that one has confirmed."""
        link = self.link(name, other)
        return sorted(link.declarer.held) if link.declarer.settled else []


def at_home(name: str, broker: Broker) -> None:
    broker.router.table.home_of = lambda _: "" if name == HOME else NODES + HOME


@pytest.fixture
def nodes(nodes: AnyNodes) -> AnyNodes:
    nodes.__class__ = Nodes
    nodes.prepare = at_home
    return nodes


async def test_only_the_home_asks_for_the_filter_of_a_group(nodes: Nodes) -> None:
    await nodes.start("a", "b", "c")
    first = await nodes.member("b", "m1")
    assert (nodes.told("b", "a"), nodes.told("b", "c")) == (["$node/a/members/1/g/jobs/#"], [])
    assert (nodes.told("a", "b"), nodes.told("a", "c")) == (["jobs/#"], ["jobs/#"])
    await nodes.member("b", "m2")
    first.abort()
    await until(lambda: nodes.told("b", "a") == ["$node/a/members/1/g/jobs/#"], "one of two is connected")
    await (await nodes.join("b", "m1", clean=False)).unsubscribe(JOBS)
    await (await nodes.join("b", "m2", clean=False)).unsubscribe(JOBS)
    await until(lambda: nodes.told("b", "a") == [], "no member is left")
    await until(lambda: nodes.told("a", "c") == nodes.told("a", "b") == [], "nor asks the home for anything")


async def test_no_client_can_say_that_a_node_has_members(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    await nodes.join("b", "liar", ("$node/a/members/5/g/jobs/#", 1))
    await nodes.join("a", "liar-at-home", ("$node/a/members/5/g/jobs/#", 1))
    member = await nodes.member("a", "m")
    sender = await nodes.join("b", "sender")
    for number in range(3):
        await sender.publish("jobs/1", b"%d" % number, qos=1)
    assert [(await member.message()).payload for _ in range(3)] == [b"0", b"1", b"2"]


async def test_a_node_that_is_cut_off_gets_nothing_more_and_has_nothing_twice(nodes: Nodes) -> None:
    """What was on its way there comes later, once; other messages go to members elsewhere."""
    await nodes.start("a", "b", "c")
    cut = await nodes.member("b", "at-b", 2)
    other = await nodes.member("c", "at-c", 2)
    sender = await nodes.join("a", "sender")
    nodes.darken("a", "b")
    for number in range(10):
        await sender.publish("jobs/1", b"%d" % number, qos=2)
    found = [(await other.message()).payload for _ in range(5)]
    await until(lambda: nodes.session("a", "b").send_buffer is None, "a without b")
    for number in range(10, 20):
        await sender.publish("jobs/1", b"%d" % number, qos=2)
    found += [(await other.message()).payload for _ in range(10)]
    nodes.light()
    found += [(await cut.message()).payload for _ in range(5)]
    assert sorted(found, key=int) == [b"%d" % number for number in range(20)]
    assert await cut.fence() == await other.fence() == []


async def test_the_queue_of_a_group_outlives_a_restart_of_its_only_members_node(nodes: Nodes) -> None:
    """Its member was connected when that node ended, and is not when it is back."""
    await nodes.start("a", "b", stores="ab")
    await nodes.member("b", "m")
    # The home is not told that the member leaves.
    nodes.darken("a", "b")
    await nodes.stop("b")
    await until(lambda: nodes.session("a", "b").send_buffer is None, "a without b")
    nodes.wires["b", "a"].cut()
    nodes.light()
    sender = await nodes.join("a", "sender")
    for number in range(50):
        await sender.publish("jobs/1", b"%d" % number, qos=1)
    assert nodes.brokers["a"].router.sessions[JOBS].waiting_messages() == 50
    await nodes.restart("b")
    await until(lambda: nodes.told("b", "a") == ["$node/a/members/0/g/jobs/#"], "it has a member that is away")
    member = await nodes.join("b", "m", clean=False, props=((SESSION_EXPIRY, 3600),))
    assert [int((await member.message()).payload) for _ in range(50)] == list(range(50))


async def test_a_member_that_is_busy_is_passed_over(nodes: Nodes) -> None:
    await nodes.start("a", "b", "c")
    busy = await nodes.join("b", "busy", (JOBS, 1), props=((wire.RECEIVE_MAXIMUM, 1),))
    free = await nodes.member("c", "free")
    sender = await nodes.join("a", "sender")
    await sender.publish("jobs/1", b"first", qos=1)
    await sender.publish("jobs/1", b"second", qos=1)
    held = await busy.expect(wire.PUBLISH)
    other = await free.message()
    assert {held.payload, other.payload} == {b"first", b"second"}
    await until(lambda: nodes.told("b", "a") == ["$node/a/busy/1/g/jobs/#"], "the home knows that it is busy")
    for number in range(5):
        await sender.publish("jobs/1", b"%d" % number, qos=1)
        assert (await free.message()).payload == b"%d" % number
    await busy.send(ack(wire.PUBACK, held.packet_id or 0))
    await until(lambda: nodes.told("b", "a") == ["$node/a/members/1/g/jobs/#"], "and that it has room again")
    await sender.publish("jobs/1", b"x", qos=1)
    await sender.publish("jobs/1", b"y", qos=1)
    assert {(await busy.message()).payload, (await free.message()).payload} == {b"x", b"y"}
