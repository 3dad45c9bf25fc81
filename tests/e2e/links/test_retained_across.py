"""Retained messages of the upstream broker: once for each local subscription, and none that is not there any more.

Owns: who gets which retained message when, over reconnects with and without session, and what is kept at the edge.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.e2e import wire
from tests.e2e.faults import FaultProxy
from tests.e2e.links.network import V5, Net, Place, link, pairs, until

NEVER_LATE = {"max_loop_lag": 0}
"""Limits of a broker that has 20 seconds pass at once: it is not overloaded."""

TWO = [("r/1", b"one"), ("r/2", b"two")]


class Outages:
    """A way to the upstream that can be closed: no connection gets through until it is open again."""

    def __init__(self) -> None:
        self._closed = False

    async def proxy(self, net: Net, port: int) -> FaultProxy:
        self._proxy = await net.proxy(port, lambda connection: connection.freeze() if self._closed else None)
        return self._proxy

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        self._closed = True
        self._proxy.cut()
        yield
        self._closed = False
        for connection in self._proxy.links:
            connection.heal()


async def test_each_subscription_gets_them_once(net: Net, upstream: Place) -> None:
    """The first, one with the same filter, and ones with overlapping filters; nobody gets anything again."""
    above = await net.join(upstream, "above")
    for topic, payload in TWO:
        await above.publish(topic, payload, qos=1, retain=True)
    edge = await net.edge(link(upstream))
    first = await net.join(edge, "first", "r/+")
    (found,) = await net.down(above, first, least=[2])
    assert sorted(pairs(found)) == TWO
    second = await net.join(edge, "second", "r/+")
    wide = await net.join(edge, "wide", "r/#")
    got = await net.down(above, first, second, wide, least=[0, 2, 2])
    assert [sorted(pairs(found)) for found in got] == [[], TWO, TWO]
    one = await net.join(edge, "one", "r/1")
    got = await net.down(above, first, second, wide, one, least=[0, 0, 0, 1])
    assert [sorted(pairs(found)) for found in got] == [[], [], [], TWO[:1]]
    # A second subscription of somebody who is there: once for each subscription, as at any broker.
    await first.subscribe(("r/#", 1))
    got = await net.down(above, first, second, wide, one)
    assert [sorted(pairs(found)) for found in got] == [TWO, [], [], []]


async def test_behind_an_aggregate(net: Net, upstream: Place) -> None:
    """The aggregate brings all of them; each child gets its own, the later ones from what is kept here."""
    above = await net.join(upstream, "above")
    for topic, payload in TWO:
        await above.publish(topic, payload, qos=1, retain=True)
    edge = await net.edge(link(upstream, aggregate=["r/#"]))
    one = await net.join(edge, "one", "r/1")
    (found,) = await net.down(above, one, least=[1])
    assert pairs(found) == TWO[:1]
    # Aedes sends what it has retained beside the fence; what came to a subscription that is there would be live.
    await until("the aggregate has brought both", lambda: edge.router.retained.get("r/2") is not None)
    two = await net.join(edge, "two", "r/2")
    both = await net.join(edge, "both", "r/+")
    got = await net.down(above, one, two, both, least=[0, 1, 2])
    assert [sorted(pairs(found)) for found in got] == [[], TWO[1:], TWO]
    assert [message.retain for message in got[1]] == [True]


@pytest.mark.parametrize("session", ["kept", "lost"])
async def test_a_reconnect_repeats_nothing(net: Net, upstream: Place, session: str) -> None:
    """This holds if the upstream still knows the link, and if it sends everything again."""
    above = await net.join(upstream, "above")
    for topic, payload in TWO:
        await above.publish(topic, payload, qos=1, retain=True)
    outages = Outages()
    proxy = await outages.proxy(net, upstream.port)
    edge = await net.edge(link(proxy, session_expiry=0 if session == "lost" else 3600))
    first = await net.join(edge, "first", "r/+")
    (found,) = await net.down(above, first, least=[2])
    assert sorted(pairs(found)) == TWO
    await net.down(above, first)
    async with outages.one():
        await above.publish("r/3", b"new", qos=1, retain=True)
    # A broker sends what it has retained for one filter in the order in which it came: behind this nothing more comes
    # again. Aedes may send it behind the fence.
    (found,) = await net.down(above, first, least=[1])
    assert pairs(found) == [("r/3", b"new")]
    second = await net.join(edge, "second", "r/+")
    (found,) = await net.down(above, second)
    assert sorted(pairs(found)) == [*TWO, ("r/3", b"new")]
    # It is live again, and a message that says the same is a message.
    await above.publish("r/1", b"one", qos=1, retain=True)
    got = await net.down(above, first, second)
    assert [pairs(found) for found in got] == [TWO[:1], TWO[:1]]


async def test_what_was_cleared_or_changed_during_the_outage(net: Net, upstream: Place) -> None:
    """The session is lost: what is gone above is not handed out here any more; what is newer reaches who is here."""
    above = await net.join(upstream, "above")
    for topic, payload in (*TWO, ("r/3", b"three")):
        await above.publish(topic, payload, qos=1, retain=True)
    outages = Outages()
    proxy = await outages.proxy(net, upstream.port)
    edge = await net.edge(link(proxy, session_expiry=0), limits=NEVER_LATE)
    first = await net.join(edge, "first", "r/+")
    await net.down(above, first, least=[2])
    await net.down(above, first)
    async with outages.one():
        await above.publish("r/1", b"", qos=1, retain=True)
        await above.publish("r/2", b"newer", qos=1, retain=True)
    (found,) = await net.down(above, first, least=[1])
    assert [pair for pair in pairs(found) if pair[1]] == [("r/2", b"newer")]
    await net.down(above, first)
    # No broker says when it has sent all that it had retained: the link waits whether more comes.
    net.later(20)
    await until("r/1 is forgotten", lambda: edge.router.retained.get("r/1") is None)
    second = await net.join(edge, "second", "r/#")
    (found,) = await net.down(above, second)
    assert sorted(pairs(found)) == [("r/2", b"newer"), ("r/3", b"three")]


@pytest.mark.parametrize("when", ["at once", "later"])
async def test_a_filter_that_is_asked_for_again(net: Net, upstream: Place, when: str) -> None:
    """Withdrawn and asked for again: the newest alone, and nothing that was cleared meanwhile."""
    above = await net.join(upstream, "above")
    for topic, payload in TWO:
        await above.publish(topic, payload, qos=1, retain=True)
    edge = await net.edge(link(upstream), limits=NEVER_LATE)
    first = await net.join(edge, "first", "r/+")
    await net.down(above, first, least=[2])
    await first.unsubscribe("r/+")
    await net.down(above, first)
    if when == "later":
        net.later(20)
        await until("they are forgotten", lambda: edge.router.retained.get("r/2") is None)
    await above.publish("r/1", b"newer", qos=1, retain=True)
    await above.publish("r/2", b"", qos=1, retain=True)
    await first.subscribe(("r/+", 1))
    (found,) = await net.down(above, first, least=[1])
    assert pairs(found) == [("r/1", b"newer")]
    second = await net.join(edge, "second", "r/+")
    (found,) = await net.down(above, second)
    assert pairs(found) == [("r/1", b"newer")]


async def test_what_is_retained_here_goes_up_and_stays(net: Net, upstream: Place) -> None:
    """RETAIN goes up with the message; who comes later upstream finds it; and clearing it here clears it there."""
    edge = await net.edge(link(upstream, publish=["state/#", "fence/#"]))
    writer = await net.join(edge, "writer")
    above = await net.join(upstream, "above")
    await writer.publish("state/1", b"on", qos=1, retain=True)
    await writer.publish("state/2", b"on", qos=1, retain=True)
    await net.up(writer, above)
    later = await net.join(upstream, "later", "state/#")
    found = [await later.message() for _ in range(2)]
    found += (await net.up(writer, later))[0]
    assert sorted(pairs(found)) == [("state/1", b"on"), ("state/2", b"on")]
    assert all(message.retain for message in found)
    await writer.publish("state/1", b"", qos=1, retain=True)
    await net.up(writer, above)
    latest = await net.join(upstream, "latest", "state/#")
    found = [await latest.message(), *(await net.up(writer, latest))[0]]
    assert pairs(found) == [("state/2", b"on")]


async def test_what_was_cleared_above_during_an_outage_does_not_rise_again(net: Net, upstream: Place) -> None:
    """A link that publishes what it asks for: the copy kept here came from above, and does not go back there."""
    above = await net.join(upstream, "above")
    await above.publish("state/above", b"old", qos=1, retain=True)
    outages = Outages()
    proxy = await outages.proxy(net, upstream.port)
    edge = await net.edge(link(proxy, session_expiry=0, publish=["#"]))
    reader = await net.join(edge, "reader", "state/#")
    (found,) = await net.down(above, reader, least=[1])
    assert pairs(found) == [("state/above", b"old")]
    await reader.publish("state/here", b"ours", qos=1, retain=True)
    await net.up(reader, above)
    await net.down(above, reader)
    async with outages.one():
        await above.publish("state/above", b"", qos=1, retain=True)
    await net.down(above, reader)
    await net.up(reader, above)
    late = await net.join(upstream, "late", "state/#")
    found = [await late.message(), *(await net.up(reader, late))[0]]
    assert pairs(found) == [("state/here", b"ours")]


@pytest.mark.parametrize("kind", V5)
async def test_retain_handling_and_retain_as_published_are_the_clients_own(net: Net, kind: str) -> None:
    """The options of a client's subscription hold at the edge, whatever the link asks for above."""
    upstream = await net.upstream(kind)
    above = await net.join(upstream, "above")
    await above.publish("r/1", b"one", qos=1, retain=True)
    edge = await net.edge(link(upstream))
    first = await net.join(edge, "first", ("r/+", 1))
    await net.down(above, first)
    never = await net.join(edge, "never", ("r/+", 1 | wire.RETAIN_NEVER))
    kept = await net.join(edge, "kept", ("r/+", 1 | wire.RETAIN_NEVER | wire.RETAIN_AS_PUBLISHED))
    await above.publish("r/1", b"two", qos=1, retain=True)
    await above.publish("r/1", b"three", qos=1)
    got = await net.down(above, first, never, kept)
    both = [("r/1", b"two"), ("r/1", b"three")]
    assert [pairs(found) for found in got] == [both, both, both]
    assert [[message.retain for message in found] for found in got] == [[False] * 2, [False] * 2, [True, False]]
