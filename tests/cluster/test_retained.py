"""Retained messages of a cluster: each node keeps all of them, and the newest of each topic."""

from __future__ import annotations

from tests.cluster.nodes import Nodes
from tests.e2e.wire import RETAIN_AS_PUBLISHED, Peer
from tests.support.waiting import until


def kept(nodes: Nodes, name: str, topic: str) -> bytes | None:
    """The payload that a node retains for a topic."""
    message = nodes.brokers[name].router.retained.get(topic)
    return None if message is None else message.payload()  # type: ignore[attr-defined]


async def everywhere(nodes: Nodes, topic: str, payload: bytes | None) -> None:
    """Wait until each node that runs retains a payload."""
    await until(lambda: all(kept(nodes, name, topic) == payload for name in nodes.brokers), f"{topic} is {payload!r}")


async def retain(nodes: Nodes, name: str, payload: bytes, topic: str = "t", qos: int = 1) -> None:
    """Retain a message at a node."""
    publisher = await nodes.join(name, f"publisher-{name}")
    await publisher.publish(topic, payload, qos=qos, retain=True)
    await publisher.disconnect()


async def got(peer: Peer) -> list[tuple[bytes, bool]]:
    """What a client has got until now: payloads, and RETAIN."""
    return [(each.payload, each.retain) for each in await peer.fence()]


async def test_each_node_has_what_was_retained_at_another_one(nodes: Nodes) -> None:
    await nodes.start("a", "b", "c")
    for qos in range(3):
        await retain(nodes, "a", b"kept", f"t/{qos}", qos)
        await everywhere(nodes, f"t/{qos}", b"kept")
    # With RETAIN, also while the node of its publisher is away.
    await nodes.stop("a")
    for name in "bc":
        subscriber = await nodes.join(name, f"s-{name}", ("t/#", 0))
        assert await got(subscriber) == [(b"kept", True)] * 3
    assert nodes.link("b", "c").link_state.figures.received == 0


async def test_a_node_that_comes_later_gets_all(nodes: Nodes) -> None:
    await nodes.start("a", "b", stores="a")
    await nodes.stop("b")
    for number in range(600):
        await retain_many(nodes, number)
    await nodes.restart("b")
    await until(lambda: len(nodes.brokers["b"].router.retained) == 600, "b has all")
    assert kept(nodes, "b", "many/599") == b"599"


async def retain_many(nodes: Nodes, number: int) -> None:
    """Retain one of many."""
    await nodes.brokers["a"].publish(f"many/{number}", str(number), 1, True)


async def test_the_newest_wins_wherever_it_was_published(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    await retain(nodes, "a", b"first")
    await everywhere(nodes, "t", b"first")
    await retain(nodes, "b", b"second")
    await everywhere(nodes, "t", b"second")
    nodes.darken("a", "b")
    await until(lambda: not nodes.link("a", "b").connected and not nodes.link("b", "a").connected, "no link")
    await retain(nodes, "a", b"third")
    await retain(nodes, "b", b"fourth")
    nodes.light()
    await nodes.linked()
    await everywhere(nodes, "t", b"fourth")


async def test_a_cleared_message_is_cleared_everywhere(nodes: Nodes) -> None:
    await nodes.start("a", "b", "c")
    await retain(nodes, "a", b"on")
    await everywhere(nodes, "t", b"on")
    # By another node than that of its publisher.
    await retain(nodes, "b", b"")
    await everywhere(nodes, "t", None)


async def test_an_older_message_does_not_undo_a_clearing(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    nodes.wires["b", "a"].darken()
    await retain(nodes, "a", b"older")
    await retain(nodes, "b", b"on")
    await retain(nodes, "b", b"")
    await until(lambda: kept(nodes, "a", "t") is None, "a has heard of it")
    nodes.light()
    await nodes.linked()
    fence = await nodes.join("b", "fence", ("fence", 1))
    await retain(nodes, "a", b"fence", "fence")
    await fence.message()
    assert kept(nodes, "b", "t") is None


async def test_a_subscriber_gets_it_live_once_and_a_later_one_as_retained(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    subscriber = await nodes.join("b", "subscriber", ("t", 1 | RETAIN_AS_PUBLISHED))
    await retain(nodes, "a", b"on")
    message = await subscriber.message()
    assert (message.payload, message.retain) == (b"on", True)
    assert await got(subscriber) == []
    late = await nodes.join("b", "late", "t")
    assert await got(late) == [(b"on", True)]


async def test_a_retained_message_that_waited_does_not_replace_a_newer_one(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    subscriber = await nodes.join("b", "subscriber", ("t", 1 | RETAIN_AS_PUBLISHED))
    nodes.wires["b", "a"].darken()
    await retain(nodes, "a", b"old")
    await retain(nodes, "b", b"new")
    assert (await subscriber.message()).payload == b"new"
    nodes.light()
    # It is delivered as it was published, and not retained.
    message = await subscriber.message()
    assert (message.payload, message.qos, message.retain) == (b"old", 1, True)
    await everywhere(nodes, "t", b"new")


async def test_a_time_that_a_client_writes_does_not_count(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    forged = [(0x26, ("canopy-time", "99999999999999999"))]
    await (await nodes.join("a", "liar")).publish("t", b"forged", qos=1, retain=True, props=forged)
    await everywhere(nodes, "t", b"forged")
    await retain(nodes, "b", b"newer")
    await everywhere(nodes, "t", b"newer")


async def test_what_comes_later_is_newer_whatever_the_clocks_say(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    nodes.brokers["a"].router.counters.load.epoch += 3_600.0
    await retain(nodes, "a", b"first")
    await everywhere(nodes, "t", b"first")
    # The clock of b is an hour behind.
    await retain(nodes, "b", b"second")
    await everywhere(nodes, "t", b"second")


async def test_times_survive_a_restart(nodes: Nodes) -> None:
    await nodes.start("a", "b", stores="ab")
    nodes.darken("a", "b")
    await until(lambda: not nodes.link("a", "b").connected and not nodes.link("b", "a").connected, "no link")
    await retain(nodes, "a", b"old")
    await retain(nodes, "b", b"new")
    for name in "ab":
        await nodes.stop(name)
    nodes.light()
    for name in "ab":
        await nodes.restart(name)
    await nodes.linked()
    await everywhere(nodes, "t", b"new")
