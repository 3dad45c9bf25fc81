"""Brokers that are one: each in a mesh of this process, with clients on different nodes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.core.connection.answers import MOST_WAITING
from broker.core.queues.message import Message
from broker.mesh.retained.wire import digest_message
from tests.e2e import wire
from tests.e2e.wire import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, Peer
from tests.mesh.brokers import Nodes, Start
from tests.support.waiting import until

NO_MATCHING_SUBSCRIBERS = 0x10
KEPT = ((wire.SESSION_EXPIRY, 1_000),)


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_message_reaches_a_subscriber_of_another_node(start: Start, qos: int) -> None:
    """Subscribed means subscribed everywhere: what is published right after the SUBACK arrives."""
    nodes = await start("a", "b", "c")
    hears = await nodes.join("a", "hears", ("x/+", 2))
    says = await nodes.join("b", "says")
    for number in range(3):
        await says.publish("x/y", b"%d" % number, qos=qos)
    for number in range(3):
        message = await hears.message()
        assert (message.topic, message.payload, message.qos) == ("x/y", b"%d" % number, qos)


async def test_the_log_names_a_node_whose_clock_differs(start: Start) -> None:
    with capture_logs() as lines:
        retained = (await start("a", "b")).meshes["a"].retained
        await until(lambda: retained.ready_with("b"))
        for ahead in (59_000, 120_000, 120_000):
            now = retained.clock.milliseconds()
            retained.received("b", digest_message(now + ahead, retained.stamps.sums))
    (line,) = [line for line in lines if line["event"] == "clock differs"]
    assert (line["node"], round(line["ahead"])) == ("b", 120)


async def test_who_meets_the_others_waits_for_what_they_want_and_no_longer_than_set(start: Start) -> None:
    nodes = await start("a", "b", "c", mesh={"node_timeout": 0.5})
    mesh = nodes.meshes["a"]
    await mesh.meet(["b", "c"])
    nodes.mesh.cut("a", "b")
    await until(lambda: not mesh.links["b"].connected)
    await mesh.meet(["b"])
    assert not mesh.links["b"].connected
    mesh.settings = mesh.settings.model_copy(update={"node_timeout": 60.0})
    meeting = asyncio.create_task(mesh.meet(["b", "c"]))
    nodes.mesh.hold("b", "a")
    nodes.mesh.join("a", "b")
    await nodes.mesh.settle()
    assert not meeting.done()
    nodes.mesh.release("b", "a")
    await meeting
    assert mesh.interest.remotes["b"].complete


@pytest.mark.parametrize("qos", [1, 2])
async def test_who_waits_for_what_is_on_its_way_to_a_node_is_called_when_it_has_arrived(start: Start, qos: int) -> None:
    """And not when something later has; at once where nothing is on its way."""
    nodes = await start("a", "b")
    await nodes.join("b", "hears", ("x", 2))
    broker, link = nodes.brokers["a"], nodes.meshes["a"].links["b"]
    router = nodes.brokers["b"].router
    called: list[int] = []

    def publish(number: int) -> None:
        broker.router.publish(Message(b"x", b"%d" % number, qos, False, b"", 0.0, "p"), None)

    def arrived() -> None:
        called.append(router.sessions["hears"].offered)

    link.when_arrived(arrived)
    assert called == [0]
    publish(1)
    link.when_arrived(arrived)
    publish(2)
    publish(3)
    link.when_arrived(arrived)
    link.when_arrived(arrived)
    broker.after_batch()
    assert called == [0]
    await until(lambda: len(called) == 4)
    assert called[1] >= 1
    assert called[2:] == [3, 3]
    publish(4)
    link.when_arrived(arrived)
    link.end()
    assert len(called) == 4


async def test_each_subscriber_gets_one_copy_wherever_it_is(start: Start) -> None:
    """Three nodes, overlapping filters on each: what came from a node goes to no other."""
    nodes = await start("a", "b", "c")
    hearing = [await nodes.join(node, f"{node}{number}", ("x/#", 1), ("x/+", 1)) for node in "abc" for number in "12"]
    says = await nodes.join("a", "says")
    assert await says.publish("x/y", b"once", qos=1) == 0
    for peer in hearing:
        assert (await peer.message()).payload == b"once"
        assert await peer.fence() == []


async def test_the_publisher_is_told_whether_anybody_was_reached_on_any_node(start: Start) -> None:
    nodes = await start("a", "b")
    says = await nodes.join("a", "says")
    assert await says.publish("x", qos=1) == NO_MATCHING_SUBSCRIBERS
    hears = await nodes.join("b", "hears", ("x", 1))
    assert await says.publish("x", qos=1) == 0
    assert await says.publish("x", qos=2) == 0
    await hears.unsubscribe("x")
    await until(lambda: not nodes.meshes["a"].links["b"].session.subscriptions)
    assert await says.publish("x", qos=1) == NO_MATCHING_SUBSCRIBERS


@pytest.mark.parametrize("routed_before", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
async def test_an_acknowledgement_waits_for_the_other_nodes_and_no_longer_than_set(
    start: Start, qos: int, routed_before: bool
) -> None:
    """Also where the topic has been routed before, so that the message takes the hot path."""
    nodes = await start("a", "b", mesh={"confirm_timeout": 0.3})
    hears = await nodes.join("b", "hears", ("x", 2))
    near = await nodes.join("a", "near", ("x", 0))
    says = await nodes.join("a", "says")
    if routed_before:
        await says.publish("x", b"0")
        for peer in (hears, near):
            assert (await peer.message()).payload == b"0"
    nodes.mesh.hold("a", "b")
    await says.send(wire.publish("x", b"1", qos=qos, packet_id=7))
    assert await says.fence() == []
    # It came again while it waits: one message, and one acknowledgement.
    await says.send(wire.publish("x", b"1", qos=qos, packet_id=7))
    assert await says.fence() == []
    assert (await near.message()).payload == b"1"
    assert await near.fence() == []
    nodes.mesh.release("a", "b")
    assert (await says.expect(PUBACK if qos == 1 else PUBREC)).packet_id == 7
    if qos == 2:
        await says.send(wire.ack(PUBREL, 7))
        await says.expect(PUBCOMP)
    assert (await hears.message()).payload == b"1"
    nodes.mesh.hold("a", "b")
    assert await says.publish("x", b"2", qos=qos) == 0
    nodes.mesh.release("a", "b")
    assert (await hears.message()).payload == b"2"
    assert await hears.fence() == []


async def test_a_message_for_very_many_waits_for_the_other_nodes_too(start: Start) -> None:
    """It goes to clients here in turns; to a node at once, and once."""
    nodes = await start("a", "b")
    nodes.brokers["a"].router.fanout.at_once = 2
    far = await nodes.join("b", "far", ("x", 1))
    near = [await nodes.join("a", f"near{number}", ("x", 1), ("+", 1)) for number in range(4)]
    says = await nodes.join("a", "says")
    nodes.mesh.hold("a", "b")
    await says.send(wire.publish("x", b"1", qos=1, packet_id=7))
    assert [(await each.message()).payload for each in near] == [b"1"] * 4
    assert await says.fence() == []
    nodes.mesh.release("a", "b")
    assert (await says.expect(PUBACK)).packet_id == 7
    assert await received(far) == [b"1"]


async def test_a_suback_waits_for_the_other_nodes_and_no_longer_than_set(start: Start) -> None:
    nodes = await start("a", "b", mesh={"confirm_timeout": 0.3})
    hears = await nodes.join("b", "hears")
    nodes.mesh.hold("b", "a")
    await hears.send(wire.subscribe(3, [("x", 1)]))
    assert await hears.fence() == []
    nodes.mesh.release("b", "a")
    assert (await hears.expect(SUBACK)).packet_id == 3
    nodes.mesh.hold("b", "a")
    assert await hears.subscribe(("y", 1)) == (1,)
    nodes.mesh.release("b", "a")


async def test_so_many_subacks_of_one_client_wait_for_the_other_nodes(start: Start) -> None:
    """Those beyond leave at once."""
    nodes = await start("a", "b", mesh={"confirm_timeout": 60.0})
    asks = await nodes.join("a", "asks")
    nodes.mesh.hold("a", "b")
    await asks.send(*[wire.subscribe(number, [(f"x/{number}", 1)]) for number in range(1, MOST_WAITING + 4)])
    assert [(each.kind, each.packet_id) for each in await asks.fence()] == [
        (SUBACK, number) for number in range(MOST_WAITING + 1, MOST_WAITING + 4)
    ]
    nodes.mesh.release("a", "b")
    assert [(await asks.expect(SUBACK)).packet_id for _ in range(MOST_WAITING)] == [*range(1, MOST_WAITING + 1)]


async def test_a_message_keeps_what_it_says(start: Start) -> None:
    """Properties, RETAIN for who asked for it, the subscription identifier of each subscriber; expiry goes on."""
    nodes = await start("a", "b")
    hears = await nodes.join("b", "hears")
    await hears.send(wire.subscribe(1, [("x", 1 | 8)], [(wire.SUBSCRIPTION_ID, 9)]))
    await hears.wait_for(SUBACK)
    says = await nodes.join("a", "says")
    said: list[wire.Property] = [
        (wire.PAYLOAD_FORMAT, 1),
        (wire.MESSAGE_EXPIRY, 100),
        (wire.CONTENT_TYPE, "text"),
        (wire.RESPONSE_TOPIC, "answer"),
        (wire.CORRELATION_DATA, b"7"),
        (wire.USER_PROPERTY, ("a", "b")),
    ]
    await says.publish("x", b"1", qos=1, retain=True, props=said)
    message = await hears.message()
    assert message.retain
    assert (wire.SUBSCRIPTION_ID, 9) in message.properties
    left = dict(message.properties)[wire.MESSAGE_EXPIRY]
    assert isinstance(left, int)
    assert 98 <= left <= 100
    assert {*said} - {(wire.MESSAGE_EXPIRY, 100)} <= {*message.properties}


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_each_message_goes_to_one_member_of_a_share_group(start: Start, qos: int) -> None:
    """Wherever its members and the publishers are; beside those who subscribed by themselves."""
    nodes = await start("a", "b", "c")
    members = [await nodes.join(node, f"m{node}", ("$share/g/x/+", 2)) for node in "abc"]
    alone = await nodes.join("b", "alone", ("x/#", 2))
    publishers = [await nodes.join(node, f"p{node}") for node in "abc"]
    for number in range(30):
        assert await publishers[number % 3].publish("x/y", b"%d" % number, qos=qos) == 0
    assert {(await alone.message()).payload for _ in range(30)} == {b"%d" % number for number in range(30)}
    got: list[bytes] = []
    for member in members:
        mine = await received(member)
        assert mine
        got += mine
    assert sorted(got) == sorted(b"%d" % number for number in range(30))


async def test_what_a_node_does_not_take_goes_to_another_member(start: Start) -> None:
    """A member's node is gone before it had acknowledged: its messages are given on, as they were published."""
    nodes = await start("a", "b", mesh={"confirm_timeout": 0.2})
    await nodes.join("b", "far", ("$share/g/x", 1))
    says = await nodes.join("a", "says")
    nodes.mesh.hold("a", "b")
    await says.send(wire.publish("x", b"1", qos=1, packet_id=1))
    await until(lambda: nodes.meshes["a"].links["b"].session.inflight.count == 1)
    near = await nodes.join("a", "near", ("$share/g/x", 1))
    nodes.mesh.cut("a", "b")
    message = await near.message()
    assert (message.payload, message.properties) == (b"1", [])


def weight(nodes: Nodes, node: str, other: str, share: str) -> int:
    """What a node has heard of the members of a share group at another; -1: nothing."""
    member = nodes.meshes[node].links[other].session.subscriptions.get(share)
    return -1 if member is None else member.weight


async def test_a_node_has_its_share_by_how_many_members_are_there(start: Start) -> None:
    """As the power of two: three members count as two."""
    nodes = await start("a", "b")
    share = "$share/g/x"
    near = await nodes.join("a", "near", (share, 0))
    far = [await nodes.join("b", f"far{number}", (share, 0)) for number in range(3)]
    await until(lambda: weight(nodes, "a", "b", share) == 2)
    says = await nodes.join("a", "says")
    for _ in range(9):
        await says.publish("x", b"", qos=1)
    assert len(await received(near)) == 3
    assert sorted([len(await received(each)) for each in far]) == [2, 2, 2]


async def test_members_that_are_away_have_no_turn_while_another_is_connected_anywhere(start: Start) -> None:
    nodes = await start("a", "b")
    share = "$share/g/x"
    near = await nodes.join("a", "near", (share, 1))
    far = await nodes.join("b", "far", (share, 1), props=KEPT)
    says = await nodes.join("a", "says")
    await far.disconnect()
    await until(lambda: weight(nodes, "a", "b", share) == 0)
    for number in range(4):
        assert await says.publish("x", b"%d" % number, qos=1) == 0
    assert await received(near) == [b"0", b"1", b"2", b"3"]
    await near.unsubscribe(share)
    assert await says.publish("x", b"waits", qos=1) == 0
    far = await nodes.join("b", "far", clean=False, props=KEPT)
    assert (await far.message()).payload == b"waits"
    await until(lambda: weight(nodes, "a", "b", share) == 1)


async def test_members_here_come_first_where_that_is_set(start: Start) -> None:
    nodes = await start("a", "b", mesh={"local_members_first": True})
    share = "$share/g/x"
    far = await nodes.join("b", "far", (share, 0))
    near = [await nodes.join("a", f"near{number}", (share, 0)) for number in range(2)]
    says = await nodes.join("a", "says")
    for _ in range(6):
        assert await says.publish("x", b"", qos=1) == 0
    assert [len(await received(each)) for each in (*near, far)] == [3, 3, 0]
    for each in near:
        await each.disconnect()
    for _ in range(2):
        assert await says.publish("x", b"", qos=1) == 0
    assert len(await received(far)) == 2


async def test_a_will_is_published_on_all_nodes(start: Start) -> None:
    nodes = await start("a", "b")
    hears = await nodes.join("b", "hears", ("gone", 1))
    dies = await nodes.join("a", "dies", will=wire.Will("gone", b"dies", 1))
    dies.abort()
    assert (await hears.message()).payload == b"dies"


async def test_nothing_is_lost_or_doubled_while_nodes_lose_each_other(start: Start) -> None:
    """QoS 2, and a pipe that breaks again and again: exactly once, in order [MQTT-4.3.3-10] [MQTT-4.6.0-6]."""
    nodes = await start("a", "b")
    hears = await nodes.join("b", "hears", ("x", 2))
    says = await nodes.join("a", "says")
    for number in range(60):
        await says.send(wire.publish("x", b"%d" % number, qos=2, packet_id=number + 1))
        if number % 7 == 3:
            nodes.mesh.lose("a", "b")
    got = [(await hears.message()).payload for _ in range(60)]
    assert got == [b"%d" % number for number in range(60)]
    assert await hears.fence() == []


async def test_what_is_for_a_node_waits_while_it_is_gone(start: Start) -> None:
    nodes = await start("a", "b")
    hears = await nodes.join("b", "hears", ("x", 1))
    says = await nodes.join("a", "says")
    a = nodes.meshes["a"]
    assert a.down() == {"b": 0.0}
    nodes.mesh.cut("a", "b")
    await until(lambda: not a.links["b"].there)
    assert a.down()["b"] > 0.0
    for number in range(3):
        assert await says.publish("x", b"%d" % number, qos=1) == 0
    assert await hears.fence() == []
    nodes.mesh.join("a", "b")
    assert [(await hears.message()).payload for _ in range(3)] == [b"0", b"1", b"2"]


async def test_a_node_that_is_gone_for_too_long_is_given_up(start: Start) -> None:
    """Nothing waits for it, its filters are out of the trie; when it comes it begins anew."""
    nodes = await start("a", "b", mesh={"node_expiry": 1.0})
    hears = await nodes.join("b", "hears", ("x", 1))
    says = await nodes.join("a", "says")
    nodes.mesh.cut("a", "b")
    await until(lambda: not nodes.meshes["a"].links)
    await until(lambda: nodes.brokers["a"].router.table.count == 0)
    assert await says.publish("x", b"nobody", qos=1) == NO_MATCHING_SUBSCRIBERS
    nodes.mesh.join("a", "b")
    await until(lambda: "b" in nodes.meshes["a"].links and nodes.meshes["a"].links["b"].session.subscriptions)
    assert await says.publish("x", b"again", qos=1) == 0
    assert (await hears.message()).payload == b"again"


async def test_names_of_nodes_are_no_clients(start: Start) -> None:
    nodes = await start("a", "b")
    with pytest.raises(AssertionError):
        await nodes.join("a", "$node/from/b")


async def received(peer: Peer) -> list[bytes]:
    """What has come for a client so far, its QoS seen through."""
    found: list[bytes] = []
    while True:
        waiting = await peer.fence()
        if not waiting:
            return found
        for packet in waiting:
            packet_id = packet.packet_id or 0
            if packet.kind == PUBREL:
                await peer.send(wire.ack(PUBCOMP, packet_id))
                continue
            assert packet.kind == PUBLISH
            found.append(packet.payload)
            if packet.qos > 0:
                await peer.send(wire.ack(PUBACK if packet.qos == 1 else PUBREC, packet_id))


@pytest.mark.parametrize("version", [4, 5])
async def test_a_session_follows_its_client_to_another_node(start: Start, version: int) -> None:
    """What waited, its subscriptions, and what was in flight; the node that it was on has it no more."""
    nodes = await start("a", "b")
    options: dict[str, Any] = {"version": version, "clean": False}
    if version == 5:
        options["props"] = [(wire.SESSION_EXPIRY, 600)]
    first = await nodes.join("a", "moves", ("x", 1), **options)
    says = await nodes.join("b", "says")
    await first.disconnect()
    for number in range(3):
        assert await says.publish("x", b"%d" % number, qos=1) == 0
    again = await nodes.join("b", "moves", **options)
    assert again.connack is not None
    assert again.connack.session_present
    assert [(await again.message()).payload for _ in range(3)] == [b"0", b"1", b"2"]
    await until(lambda: "moves" not in nodes.brokers["a"].router.sessions)
    assert await says.publish("x", b"3", qos=1) == 0
    assert (await again.message()).payload == b"3"


async def test_a_client_that_connects_elsewhere_ends_its_connection_here(start: Start) -> None:
    nodes = await start("a", "b", "c")
    first = await nodes.join("a", "same", ("x", 1))
    second = await nodes.join("c", "same", ("x", 1))
    assert (await first.expect(wire.DISCONNECT)).code == 0x8E
    says = await nodes.join("b", "says")
    assert await says.publish("x", b"1", qos=1) == 0
    assert (await second.message()).payload == b"1"


async def test_a_retained_message_that_is_too_large_for_the_bus_stays_where_it_is(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """It would end the membership of the other node, which would be sent it again as soon as it is back."""
    nodes = await start("a", "b", mesh={"queue_bytes": 4_194_304}, limits={"max_packet_size": 8_388_608})
    says = await nodes.join("a", "says")
    for number in range(2):
        await says.publish(f"large/{number}", bytes(1_048_577), qos=1, retain=True)
    await says.publish("small", b"1", qos=1, retain=True)
    await until(lambda: nodes.brokers["b"].router.retained.get("small"))
    await nodes.mesh.settle()
    assert not nodes.brokers["b"].router.retained.get("large/0")
    assert nodes.meshes["a"].retained.counts.too_large >= 2
    said = [each.getMessage() for each in caplog.records if "retained message stays here" in each.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("retained message stays here topic='large/0' bytes=1048")


async def test_retained_messages_are_on_every_node(start: Start) -> None:
    """Also for subscribers that come later, once for those that are there, and cleared everywhere."""
    nodes = await start("a", "b")
    hears = await nodes.join("b", "hears", ("x", 1))
    says = await nodes.join("a", "says")
    assert await says.publish("x", b"kept", qos=1, retain=True) == 0
    assert (await hears.message()).payload == b"kept"
    await until(lambda: nodes.brokers["b"].router.retained.get("x"))
    later = await nodes.join("b", "later")
    await later.subscribe(("x", 1))
    message = await later.message()
    assert (message.payload, message.retain) == (b"kept", True)
    assert await hears.fence() == []
    await says.publish("x", b"", qos=1, retain=True)
    await until(lambda: not nodes.brokers["b"].router.retained.get("x"))
