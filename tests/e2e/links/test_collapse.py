"""Many local topic filters, few upstream: what is declared, what is delivered, what is taken back.

Owns: the folded filters seen from both ends of a link. How often a filter is asked for is counted by an upstream that
writes down what it hears; that it works is tried against each kind of broker.
"""

from __future__ import annotations

import pytest

from tests.e2e.links.network import KINDS, NOBODY, V5, Net, codes, link, pairs, until
from tests.e2e.links.scripted_upstream import ScriptedUpstream

K = 30


@pytest.mark.parametrize("kind", V5)
async def test_the_last_child_takes_the_aggregate_with_it(net: Net, kind: str) -> None:
    """Half of them unsubscribe, the others disconnect; only then has nobody upstream asked for it."""
    upstream = await net.upstream(kind)
    edge = await net.edge(link(upstream, aggregate=["site/7/#"]))
    above = await net.join(upstream, "above")
    children = [await net.join(edge, f"child{number}", f"site/7/{number}") for number in range(6)]
    last = children.pop()
    await net.down(above, last)
    for number, child in enumerate(children):
        if number % 2:
            await child.unsubscribe(f"site/7/{number}")
        else:
            await child.disconnect()
    await net.down(above, last)
    assert await above.publish("site/7/5", b"still wanted", qos=1) == 0
    ((message,),) = await net.down(above, last)
    assert message.payload == b"still wanted"
    await last.disconnect()
    await codes(above, NOBODY, "site/7/5")


async def test_one_subscribe_and_one_unsubscribe(net: Net) -> None:
    """However many come and go in between: the aggregate is asked for once and taken back once."""
    upstream = await net.scripted(ScriptedUpstream())
    edge = await net.edge(link(upstream, aggregate=["site/7/#"]))
    children = [await net.join(edge, f"child{number}", f"site/7/{number}") for number in range(K)]
    caller = await upstream.caller()
    await upstream.until("the aggregate", lambda: "site/7/#" in caller.filters)
    for number, child in enumerate(children):
        await child.unsubscribe(f"site/7/{number}")
        await child.subscribe("site/7/again")
        if number % 3 == 0:
            await child.disconnect()
    for number, child in enumerate(children):
        if number % 3:
            await child.unsubscribe("site/7/again")
    await upstream.until("none", lambda: not caller.filters)
    # The fence: what comes behind whatever else there was to say.
    await net.join(edge, "fence", "fence")
    await upstream.until("the fence", lambda: "fence" in caller.filters)
    assert caller.asked() == ["site/7/#", "fence"]
    assert caller.took_back() == ["site/7/#"]


async def test_a_client_that_is_taken_over_or_comes_back_declares_nothing_anew(net: Net) -> None:
    """The session stays, and with it what was asked for."""
    upstream = await net.scripted(ScriptedUpstream())
    edge = await net.edge(link(upstream))
    keep = [(0x11, 3600)]
    await net.join(edge, "one", "a", clean=False, props=keep)
    caller = await upstream.caller()
    await upstream.until("a", lambda: "a" in caller.filters)
    second = await net.join(edge, "one", clean=False, props=keep)
    await second.disconnect()
    third = await net.join(edge, "one", clean=False, props=keep)
    assert third.connack.session_present
    await third.subscribe("fence")
    await upstream.until("the fence", lambda: "fence" in caller.filters)
    assert (caller.asked(), caller.took_back()) == (["a", "fence"], [])
    await net.join(edge, "one", clean=True)
    await upstream.until("all are gone", lambda: not caller.filters)


@pytest.mark.parametrize("kind", KINDS)
async def test_overlapping_filters_bring_each_message_once(net: Net, kind: str) -> None:
    """One client asks for what an aggregate folds, another for something wider: neither gets anything twice."""
    upstream = await net.upstream(kind)
    edge = await net.edge(link(upstream, aggregate=["site/7/#"]))
    above = await net.join(upstream, "above")
    narrow = await net.join(edge, "narrow", "site/7/a")
    wide = await net.join(edge, "wide", "site/#", "+/7/a")
    await net.down(above, wide)
    for number in range(3):
        await above.publish("site/7/a", b"%d" % number, qos=1)
    for found in await net.down(above, narrow, wide):
        assert pairs(found) == [("site/7/a", b"%d" % number) for number in range(3)]


async def test_what_comes_by_a_wide_aggregate_and_nobody_wants_goes_nowhere(net: Net) -> None:
    """It costs the link, and is counted: `unwanted` or the like is for the operator to see."""
    upstream = await net.upstream("canopy")
    edge = await net.edge(link(upstream, aggregate=["site/#"]), sys={"interval": 0.05})
    above = await net.join(upstream, "above")
    child = await net.join(edge, "child", "site/1")
    operator = await net.join(edge, "operator", ("$SYS/broker/upstream/up/#", 0))
    await net.down(above, child)
    for number in range(10):
        await above.publish(f"site/{number}", b"x", qos=1)
    ((message,),) = await net.down(above, child)
    assert message.topic == "site/1"
    seen: dict[str, str] = {}
    while not any(value == "9" for value in seen.values()):
        told = await operator.message()
        seen[told.topic] = told.payload.decode()


async def test_static_filters(net: Net) -> None:
    """A list in place of `demand`: asked for always, whoever is there, and nothing else is."""
    upstream = await net.scripted(ScriptedUpstream())
    edge = await net.edge(link(upstream, subscribe=["orders/#", "notice"]))
    caller = await upstream.caller()
    await upstream.until("both", lambda: set(caller.filters) == {"orders/#", "notice"})
    client = await net.join(edge, "client", "orders/1", "something/else")
    await caller.publish("orders/1", b"1", qos=1)
    assert (await client.message()).payload == b"1"
    await client.disconnect()
    assert set(caller.filters) == {"orders/#", "notice"}
    assert sorted(caller.asked()) == ["notice", "orders/#"]


async def test_roots_hold_back_what_is_outside(net: Net) -> None:
    """Nothing outside of the roots is asked of upstream; what reaches beyond them is clipped."""
    upstream = await net.scripted(ScriptedUpstream())
    edge = await net.edge(link(upstream, roots=["site/#", "fence"]))
    await net.join(edge, "client", "site/1", "private/1", "#", "fence")
    caller = await upstream.caller()
    await upstream.until("the fence", lambda: "fence" in caller.filters)
    await upstream.until("the root for #", lambda: "site/#" in caller.filters)
    assert "private/1" not in caller.asked()
    assert "#" not in caller.asked()


async def test_a_budget_is_kept_and_everything_arrives(net: Net) -> None:
    """`aggregate = "auto"`: 40 filters within 4, whichever; each client gets its own."""
    upstream = await net.upstream("canopy")
    roots = ["site/#", "fence/#"]
    edge = await net.edge(link(upstream, aggregate="auto", max_filters=4, hold=0.05, roots=roots))
    above = await net.join(upstream, "above")
    children = [await net.join(edge, f"c{n}", f"site/{n % 5}/{n}/state") for n in range(40)]
    await until("the budget is kept", lambda: 0 < len(upstream.filters) <= 4)
    # A filter more, the fence's, must not break it either.
    await net.down(above, children[0])
    for number in range(40):
        await above.publish(f"site/{number % 5}/{number}/state", b"%d" % number, qos=1)
    for number, found in enumerate(await net.down(above, *children)):
        assert pairs(found) == [(f"site/{number % 5}/{number}/state", b"%d" % number)]
    await until("the budget is kept", lambda: len(upstream.filters) <= 4)
