"""Retained messages of a cluster: each node keeps all of them, and the newest of each topic."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

import pytest

from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.settings import Settings
from tests.cluster.nodes import Nodes
from tests.e2e.wire import RETAIN_AS_PUBLISHED, Packet, Peer
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
    # No copy of these came from c: at most what it has in force (`comparing`).
    assert nodes.link("b", "c").link_state.figures.received <= 1


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
    await nodes.cut("a", "b")
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


# What only nodes may say, as a client may write it: the names of today, and of earlier versions.
FORGED = [("canopy-mark", "00" + "9" * 17), ("canopy-time", "9" * 17), ("canopy-qos", "1")]


@pytest.mark.parametrize("forged", [[each] for each in FORGED] + [FORGED])
async def test_what_a_client_writes_says_nothing_to_nodes(nodes: Nodes, forged: list[tuple[str, str]]) -> None:
    await nodes.start("a", "b")
    subscriber = await nodes.join("b", "subscriber", ("#", 2 | RETAIN_AS_PUBLISHED))
    liar = await nodes.join("a", "liar")
    properties = [(0x26, each) for each in forged]
    for qos in range(3):
        await liar.publish("live", b"forged", qos=qos, props=properties)
        message = await subscriber.message()
        assert (message.qos, message.retain, written(message)) == (qos, False, forged)
    assert kept(nodes, "a", "live") is kept(nodes, "b", "live") is None
    await liar.publish("t", b"forged", qos=1, retain=True, props=properties)
    await everywhere(nodes, "t", b"forged")
    await retain(nodes, "b", b"newer")
    await everywhere(nodes, "t", b"newer")
    # To one that comes later, too.
    await liar.publish("t", b"forged", qos=1, retain=True, props=properties)
    await everywhere(nodes, "t", b"forged")
    late = await nodes.join("b", "late", ("t", 2))
    assert written(await late.message()) == forged


def written(message: Packet) -> list[tuple[str, str]]:
    """The user properties of a message without the path that it took."""
    return [each for each in message.all(0x26) if each[0] != "canopy-via"]  # type: ignore[index, misc]


async def test_what_an_upstream_broker_brings_says_nothing_to_nodes(nodes: Nodes, stack: AsyncExitStack) -> None:
    upstream = Broker(Settings(listen=("mqtt://127.0.0.1:0",), sys={"interval": 0}))
    stack.push_async_callback(upstream.stop)
    await upstream.start()
    url = f"mqtt://127.0.0.1:{upstream.ports[0]}"
    await nodes.start("a", "b")
    await nodes.stop("a")
    above = {"name": "above", "url": url, "subscribe": ["#"], "subscribe_qos": 2}
    await nodes.restart("a", upstream=[above])
    await nodes.linked()
    link = nodes.brokers["a"].links.links["above"]  # type: ignore[union-attr]
    await until(lambda: link.connected and link.declarer.settled, "linked")
    subscriber = await nodes.join("b", "subscriber", ("#", 2))
    liar = await Peer.join(upstream.ports[0], "liar")
    stack.callback(liar.abort)
    await liar.publish("live", b"forged", qos=2, props=[(0x26, each) for each in FORGED])
    message = await subscriber.message()
    assert (message.qos, written(message)) == (2, FORGED)
    assert kept(nodes, "a", "live") is kept(nodes, "b", "live") is None


async def test_a_time_far_ahead_is_not_kept_elsewhere_and_wins_nowhere_for_ever(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    subscriber = await nodes.join("b", "subscriber", "t")
    totals = nodes.brokers["a"].router.counters.totals
    totals.epoch += 2 * 86_400.0
    await retain(nodes, "a", b"from the future")
    assert (await subscriber.message()).payload == b"from the future"
    other = nodes.brokers["b"].router
    await until(lambda: other.counters.retained_refused == 1, "b has refused it")
    assert kept(nodes, "b", "t") is None
    # As soon as the clock is right, all is.
    totals.epoch -= 2 * 86_400.0
    await retain(nodes, "b", b"now")
    await everywhere(nodes, "t", b"now")
    await retain(nodes, "a", b"later")
    await everywhere(nodes, "t", b"later")


async def test_of_equal_times_all_nodes_take_the_same(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    await nodes.cut("a", "b")
    at = int(time.time() + 3_600) * 1_000_000
    for name in "ab":
        nodes.brokers[name].router.counters.totals.retained_at = at
    await retain(nodes, "a", b"two", "t", qos=2)
    await retain(nodes, "b", b"one", "t", qos=2)
    nodes.light()
    await nodes.linked()
    await everywhere(nodes, "t", b"one")
    fence = await nodes.join("b", "fence", ("fence", 1))
    await retain(nodes, "a", b"fence", "fence")
    await fence.message()
    assert (kept(nodes, "a", "t"), kept(nodes, "b", "t")) == (b"one", b"one")


async def test_what_comes_later_is_newer_whatever_the_clocks_say(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    nodes.brokers["a"].router.counters.totals.epoch += 3_600.0
    await retain(nodes, "a", b"first")
    await everywhere(nodes, "t", b"first")
    # The clock of b is an hour behind.
    await retain(nodes, "b", b"second")
    await everywhere(nodes, "t", b"second")


async def test_times_survive_a_restart(nodes: Nodes) -> None:
    await nodes.start("a", "b", stores="ab")
    await nodes.cut("a", "b")
    await retain(nodes, "a", b"old")
    await retain(nodes, "b", b"new")
    for name in "ab":
        await nodes.stop(name)
    nodes.light()
    for name in "ab":
        await nodes.restart(name)
    await nodes.linked()
    await everywhere(nodes, "t", b"new")


async def test_times_go_on_after_a_restart_with_a_clock_that_was_set_back(nodes: Nodes) -> None:
    await nodes.start("a", "b", stores="a")
    nodes.brokers["a"].router.counters.totals.epoch += 3_600.0
    await retain(nodes, "a", b"first")
    await everywhere(nodes, "t", b"first")
    await nodes.stop("a")
    await nodes.restart("a")
    await nodes.linked()
    await retain(nodes, "a", b"second")
    await everywhere(nodes, "t", b"second")


async def test_a_response_topic_changes_nothing(nodes: Nodes) -> None:
    """A retained request is retained at each node with its time, and comes once; its publisher gets an answer."""
    await nodes.start("a", "b")
    answers = [(0x08, "answers")]
    client = await nodes.join("a", "requester")
    subscriber = await nodes.join("b", "subscriber", ("t", 1))
    await client.publish("t", b"live", qos=1, props=answers)
    assert (await subscriber.message()).payload == b"live"
    await nodes.cut("a", "b")
    await client.publish("t", b"older", qos=1, retain=True, props=answers)
    await retain(nodes, "b", b"newer")
    assert (await subscriber.message()).payload == b"newer"
    for _ in range(2):
        nodes.light()
        await nodes.linked()
        await fenced(nodes, "a", "b")
        await everywhere(nodes, "t", b"newer")
        await nodes.cut("a", "b")
    # What waited for b comes once, as every live message does.
    assert [payload for payload, _ in await got(subscriber)] == [b"older"]


# -- cleared topics ----------------------------------------------------------------------------------------------------


async def test_a_cleared_message_does_not_come_back_with_the_node_of_its_publisher(nodes: Nodes) -> None:
    """Nor if the node where it was cleared was restarted meanwhile: its store remembers it."""
    await nodes.start("a", "b", stores="ab")
    await retain(nodes, "b", b"on")
    await everywhere(nodes, "t", b"on")
    await nodes.cut("a", "b")
    await retain(nodes, "a", b"")
    await nodes.stop("a")
    nodes.light()
    await nodes.restart("a")
    await nodes.linked()
    await everywhere(nodes, "t", None)
    await fenced(nodes, "b", "a")
    assert kept(nodes, "a", "t") is None


async def test_a_clearing_reaches_a_node_that_was_never_here(nodes: Nodes) -> None:
    await nodes.start("a", "b", stores="b")
    await retain(nodes, "b", b"on")
    await everywhere(nodes, "t", b"on")
    await nodes.stop("b")
    await nodes.stop("a")
    await nodes.restart("a")
    await retain(nodes, "a", b"")
    await nodes.restart("b")
    await nodes.linked()
    await everywhere(nodes, "t", None)


async def test_a_clearing_with_qos_0_reaches_a_node_that_was_cut_off(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    await retain(nodes, "a", b"on")
    await everywhere(nodes, "t", b"on")
    await nodes.cut("a", "b")
    subscriber = await nodes.join("b", "subscriber", "t")
    assert (await subscriber.message()).payload == b"on"
    await retain(nodes, "a", b"", qos=0)
    nodes.light()
    await nodes.linked()
    await everywhere(nodes, "t", None)
    assert (await subscriber.message()).payload == b""


async def test_nobody_sees_what_was_cleared(nodes: Nodes) -> None:
    await nodes.start("a", "b", stores="ab")
    await retain(nodes, "a", b"on")
    await everywhere(nodes, "t", b"on")
    await retain(nodes, "a", b"")
    await everywhere(nodes, "t", None)
    for _ in range(2):
        for name in "ab":
            assert len(nodes.brokers[name].router.retained) == 0
            subscriber = await nodes.join(name, f"s-{name}", "#")
            assert await got(subscriber) == []
            await subscriber.disconnect()
        for name in "ab":
            await nodes.stop(name)
        for name in "ab":
            await nodes.restart(name)
        await nodes.linked()


async def fenced(nodes: Nodes, source: str, target: str) -> None:
    """Wait until a node has all that another one sends with a new connection."""
    await until(lambda: nodes.session(source, target).streams is None, "all is sent")
    fence = await nodes.join(target, "fence", ("fence", 1))
    await retain(nodes, source, b"fence", "fence")
    await fence.message()
    await fence.disconnect()


# -- limits ------------------------------------------------------------------------------------------------------------


async def test_what_is_refused_here_is_kept_nowhere(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    router = nodes.brokers["a"].router
    subscriber = await nodes.join("b", "subscriber", ("t", 1 | RETAIN_AS_PUBLISHED))
    await retain(nodes, "b", b"before")
    await everywhere(nodes, "t", b"before")
    assert (await subscriber.message()).payload == b"before"
    router.retained_store.shares.most = 400
    # One message of each client may always be retained.
    for topic in ("first", "t"):
        await retain(nodes, "a", b"x" * 500, topic)
    assert router.counters.retained_refused == 1
    message = await subscriber.message()
    assert (message.payload, message.retain) == (b"x" * 500, True)
    await everywhere(nodes, "first", b"x" * 500)
    await everywhere(nodes, "t", None)


async def test_what_another_node_has_no_room_for_is_counted_there_and_comes_once(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    router = nodes.brokers["b"].router
    router.limits.max_retained_messages = 1
    await retain(nodes, "b", b"own", "own")
    await everywhere(nodes, "own", b"own")
    subscriber = await nodes.join("b", "subscriber", ("t", 1))
    await retain(nodes, "a", b"on")
    assert (await subscriber.message()).payload == b"on"
    await until(lambda: router.counters.retained_refused == 1, "it is counted")
    assert kept(nodes, "b", "t") is None
    assert router.sessions["$upstream/$node/a"].ledger.refused is not None
    # It is sent again with each connection.
    await nodes.cut("a", "b")
    received = nodes.link("b", "a").link_state.figures.received
    nodes.light()
    await nodes.linked()
    await until(lambda: nodes.link("b", "a").link_state.figures.received > received, "it has come again")
    assert await got(subscriber) == []


async def test_topics_with_a_dollar_come_to_a_node_that_joins(nodes: Nodes) -> None:
    await nodes.start("a", "b", stores="a")
    await nodes.stop("b")
    await retain(nodes, "a", b"on", "$factory/state")
    await nodes.restart("b")
    await until(lambda: kept(nodes, "b", "$factory/state") == b"on", "b has it")
