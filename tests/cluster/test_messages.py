"""What crosses between nodes: each message once, by one hop, and from the moment at which a client has subscribed."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from canopy_mqtt.testing.faults import Lost, losable
from tests.cluster.nodes import Nodes, messages, payloads
from tests.e2e import wire
from tests.support.waiting import until


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_message_crosses_with_its_qos_and_properties(nodes: Nodes, qos: int) -> None:
    await nodes.start("a", "b")
    subscriber = await nodes.join("b", "subscriber", ("plant/#", 2))
    publisher = await nodes.join("a", "publisher")
    await publisher.publish(
        "plant/1", b"hot", qos=qos, props=[(wire.CONTENT_TYPE, "text"), (wire.USER_PROPERTY, ("k", "v"))]
    )
    message = await subscriber.message()
    assert (message.topic, message.payload, message.qos, message.retain) == ("plant/1", b"hot", qos, False)
    assert message.get(wire.CONTENT_TYPE) == "text"
    assert ("k", "v") in message.all(wire.USER_PROPERTY)


async def test_a_client_of_3_1_1_gets_it_as_well(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    subscriber = await nodes.join("b", "old", ("plant/#", 1), version=4)
    publisher = await nodes.join("a", "publisher")
    await publisher.publish("plant/1", b"hot", qos=1)
    assert (await subscriber.message()).payload == b"hot"


async def test_each_message_comes_once_to_each_of_five_nodes(nodes: Nodes) -> None:
    names = "abcde"
    await nodes.start(*names)
    subscribers = {name: await nodes.join(name, f"s-{name}", ("all/#", 2)) for name in names}
    publishers = {name: await nodes.join(name, f"p-{name}") for name in names}
    for number in range(5):
        for name in names:
            for qos in range(3):
                await publishers[name].publish(f"all/{name}", f"{name}{number}{qos}".encode(), qos=qos)
    for name in names:
        # Behind everything that came from this node, and from others by way of it, if there were such a way.
        await publishers[name].publish(f"all/{name}", f"last-{name}".encode(), qos=2)
    sent = sorted(f"{name}{number}{qos}".encode() for name in names for number in range(5) for qos in range(3))
    for name, peer in subscribers.items():
        found: list[bytes] = []
        left = set(names)
        while left:
            message = await peer.message()
            if message.payload.startswith(b"last-"):
                left.remove(message.payload[5:].decode())
            else:
                found.append(message.payload)
        assert sorted(found) == sent, name
        assert await peer.fence() == []
    assert all(nodes.link(a, b).link_state.figures.looped == 0 for a in names for b in names if a != b)


async def test_what_came_from_a_node_is_sent_to_no_other_one(nodes: Nodes) -> None:
    await nodes.start("a", "b", "c")
    # Node c is cut off from a: it could only hear of it by way of b.
    nodes.darken("a", "c")
    await until(lambda: not nodes.link("c", "a").connected, "c without a")
    at_b = await nodes.join("b", "at-b", ("t", 1))
    at_c = await nodes.join("c", "at-c", ("t", 1))
    publisher = await nodes.join("a", "publisher")
    await publisher.publish("t", b"from a", qos=1)
    assert (await at_b.message()).payload == b"from a"
    # What b itself publishes goes the way that the other message would have gone.
    await (await nodes.join("b", "local")).publish("t", b"from b", qos=1)
    assert await payloads(at_c, b"from b") == [b"from b"]


async def test_from_its_suback_on_a_client_gets_what_is_published_at_other_nodes(nodes: Nodes) -> None:
    await nodes.start("a", "b", "c")
    subscriber = await nodes.join("a", "subscriber")
    publishers = [await nodes.join(name, f"p-{name}") for name in "bc"]
    for number in range(50):
        await subscriber.subscribe((f"new/{number}", 1))
        for publisher in publishers:
            await publisher.publish(f"new/{number}", b"", qos=1)
        assert [(await subscriber.message()).topic for _ in publishers] == [f"new/{number}"] * 2


async def test_a_suback_waits_for_the_other_node(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    subscriber = await nodes.join("a", "subscriber")
    nodes.wires["a", "b"].darken(up=False)
    await subscriber.send(wire.subscribe(7, [("new", 1)]))
    assert await subscriber.fence() == []
    nodes.light()
    assert (await subscriber.expect(wire.SUBACK)).packet_id == 7
    # A filter that the other node knows already is acknowledged at once.
    nodes.wires["a", "b"].darken(up=False)
    await subscriber.send(wire.subscribe(8, [("new", 0)]))
    assert [each.packet_id for each in await subscriber.fence()] == [8]


async def test_a_suback_does_not_wait_longer_than_link_timeout_for_a_node_that_says_nothing(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    subscriber = await nodes.join("a", "subscriber")
    nodes.wires["a", "b"].darken()
    assert await subscriber.subscribe(("new", 1)) == (1,)
    await until(lambda: not nodes.link("a", "b").connected, "the link is down")
    await subscriber.send(wire.subscribe(9, [("newer", 1)]))
    # The link is down: nothing is waited for.
    assert [each.packet_id for each in await subscriber.fence()] == [9]


async def test_nor_for_one_that_answers_everything_else(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    subscriber = await nodes.join("a", "subscriber")
    nodes.wires["a", "b"].packet_faults.append(Lost(None, True, losable("SUBACK")))
    connects = nodes.link("a", "b").connects
    assert await subscriber.subscribe(("new", 1)) == (1,)
    assert nodes.link("a", "b").connects == connects
    assert not nodes.link("a", "b").declarer.settled


async def test_a_suback_of_a_client_that_has_left_is_sent_to_nobody(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    gone = await nodes.join("a", "gone")
    nodes.wires["a", "b"].darken(up=False)
    await gone.send(wire.subscribe(1, [("new", 1)]))
    assert await gone.fence() == []
    await gone.disconnect()
    again = await nodes.join("a", "gone")
    nodes.light()
    await nodes.linked()
    assert await again.fence() == []


async def test_a_filter_that_nobody_wants_any_more_ends_at_the_other_node(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    first = await nodes.join("a", "first", "t/+")
    second = await nodes.join("a", "second", "$share/group/t/+")
    assert list(nodes.session("b", "a").subscriptions) == ["t/+"]
    await first.unsubscribe("t/+")
    assert list(nodes.session("b", "a").subscriptions) == ["t/+"]
    await second.disconnect()
    await until(lambda: not nodes.session("b", "a").subscriptions, "no filter is left")


async def test_other_nodes_filters_are_no_demand_of_ours(nodes: Nodes) -> None:
    await nodes.start("a", "b", "c")
    await nodes.join("a", "subscriber", "only/at/a")
    await nodes.join("b", "other", "only/at/b")
    assert list(nodes.session("c", "b").subscriptions) == ["only/at/b"]
    assert list(nodes.session("b", "a").subscriptions) == ["only/at/a"]


async def test_a_single_message_larger_than_link_bytes_crosses(stack: AsyncExitStack, tmp_path: Path) -> None:
    nodes = Nodes(stack, tmp_path, link_bytes=1_000)
    await nodes.start("a", "b")
    subscriber = await nodes.join("b", "subscriber", ("large", 2))
    publisher = await nodes.join("a", "publisher")
    for qos in range(3):
        await publisher.publish("large", bytes([qos]) * 300_000, qos=qos)
        message = await subscriber.message()
        assert message.payload == bytes([qos]) * 300_000


async def test_two_sessions_of_one_client_identifier_are_two_clients(nodes: Nodes) -> None:
    """Sessions stay at their node: nothing is handed over, and each gets what it wants."""
    await nodes.start("a", "b")
    at_a = await nodes.join("a", "same", ("t", 1))
    at_b = await nodes.join("b", "same", ("t", 1))
    await (await nodes.join("a", "publisher")).publish("t", b"x", qos=1)
    assert (await at_a.message()).payload == (await at_b.message()).payload == b"x"


async def test_a_message_of_an_upstream_broker_crosses_once(
    nodes: Nodes, stack: AsyncExitStack, tmp_path: Path
) -> None:
    above = Nodes(stack, tmp_path / "above")
    await above.start("upstream")
    url = f"mqtt://127.0.0.1:{above.brokers['upstream'].ports[0]}"
    link = {"name": "up", "url": url, "subscribe": ["news"], "publish": ["report"], "retry_min": 0.02, "retry_max": 0.1}
    await nodes.start("a", "b", upstream=[link], federation={})
    await until(
        lambda: all(each.links is not None and each.links.links["up"].connected for each in nodes.brokers.values())
    )
    reader = await above.join("upstream", "reader", ("report", 1))
    await (await nodes.join("a", "publisher")).publish("report", b"1", qos=1)
    await (await nodes.join("b", "other")).publish("report", b"2", qos=1)
    # Neither node's client wants the topic, so that each link takes up what was published at its own node.
    assert sorted([(await reader.message()).payload, (await reader.message()).payload]) == [b"1", b"2"]
    assert await messages_before_fence(above, reader) == []


async def messages_before_fence(above: Nodes, reader: wire.Peer) -> list[bytes]:
    """The payloads that come before one that is published now."""
    await (await above.join("upstream", "fence")).publish("report", b"fence", qos=1)
    return [each.payload for each in await messages(reader, b"fence")]


@pytest.mark.parametrize("version", [4, 5])
async def test_a_burst_goes_one_hop_in_order_whatever_its_frames_look_like(nodes: Nodes, version: int) -> None:
    await nodes.start("a", "b", "c")
    subscribers = [await nodes.join(name, f"s-{name}", ("burst/#", 0), version=version) for name in "abc"]
    publisher = await nodes.join("a", "publisher")
    written = [
        wire.publish(
            f"burst/{number % 3}",
            b"%d" % number,
            props=[(wire.USER_PROPERTY, ("k", "v"))] if number % 10 == 9 else (),
            retain=number % 25 == 24,
        )
        for number in range(100)
    ]
    await publisher.send(b"".join(written), wire.publish("burst/last", b"last"))
    for peer in subscribers:
        assert await payloads(peer, b"last") == [*(b"%d" % number for number in range(100)), b"last"]
        assert await peer.fence() == []
    assert nodes.link("b", "a").link_state.figures.received == 101
