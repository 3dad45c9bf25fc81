"""Links that are cut without a word, nodes that hang, stop and come back: what is lost, and for whom."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from canopy_mqtt.cluster.node_links import NodeLinks
from tests.cluster.nodes import TIMEOUT, Nodes, payloads
from tests.support.runs import LONG
from tests.support.waiting import until

SLACK: Final = 5.0
"""Seconds that a busy machine may need beside the promised time."""

CUTS: Final = 20 if LONG else 1

BOTH, TO, FROM = (True, True), (True, False), (False, True)


@pytest.mark.parametrize("way", [BOTH, TO, FROM], ids=["both", "a to b", "b to a"])
@pytest.mark.parametrize("times", [0.5, 1.0, 1.3, 1.6, 3.0])
async def test_silent_cuts_lose_nothing_and_heal(nodes: Nodes, times: float, way: tuple[bool, bool]) -> None:
    """Within twice `link_timeout`. And another node goes on meanwhile."""
    await nodes.start("a", "b", "c")
    ends = [("a", "b"), ("b", "a")]
    subscribers = [await nodes.join(to, f"s-{to}", (f"from/{name}", 2)) for name, to in ends]
    publishers = [await nodes.join(name, f"p-{name}") for name, _ in ends]
    elsewhere = await nodes.join("c", "s-c", ("from/a", 2))
    loop = asyncio.get_running_loop()
    number, longest = 0, 0.0
    for _ in range(CUTS):
        nodes.darken("a", "b", *way)
        over = loop.time() + times * TIMEOUT
        while loop.time() < over:
            for publisher, (name, _) in zip(publishers, ends, strict=True):
                await publisher.publish(f"from/{name}", str(number).encode(), qos=1 + number % 2)
            assert (await elsewhere.message()).payload == str(number).encode()
            number += 1
            await asyncio.sleep(TIMEOUT / 10)  # the cut itself takes its time
        dialled = [len(nodes.wires[each].came) for each in ends]
        nodes.light()
        lit = loop.time()
        await nodes.linked()
        longest = max(longest, loop.time() - lit)
        again = [len(nodes.wires[each].came) - before for each, before in zip(ends, dialled, strict=True)]
        # What was begun in the dark may be over before it is answered; the next time, or the one after that, it is not.
        assert max(again) <= 2
    # For those who run it with -rP.
    print(f"linked again within {longest:.2f} s")
    assert longest < 2 * TIMEOUT + SLACK
    for publisher, (name, _) in zip(publishers, ends, strict=True):
        await publisher.publish(f"from/{name}", b"last", qos=2)
    for subscriber in subscribers:
        found = [int(each) for each in (await payloads(subscriber, b"last"))[:-1]]
        # Also those with QoS 1 come once.
        assert found == list(range(number))


async def test_a_cut_is_found_within_link_timeout(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    loop = asyncio.get_running_loop()
    nodes.darken("a", "b")
    began = loop.time()
    await until(lambda: not nodes.link("a", "b").connected and not nodes.link("b", "a").connected, "both know")
    assert loop.time() - began < TIMEOUT + SLACK
    await until(lambda: nodes.link("a", "b").trouble, "why it is down")


async def test_the_others_go_on_while_one_node_hangs(stack: AsyncExitStack, tmp_path: Path) -> None:
    nodes = Nodes(stack, tmp_path, link_bytes=20_000, link_timeout=30.0)
    await nodes.start("a", "b", "c")
    await nodes.join("c", "at-c", ("t", 2))
    at_b = await nodes.join("b", "at-b", ("t", 2))
    publisher = await nodes.join("a", "publisher")
    # Node c neither reads nor closes anything, and its links count as up for a long time.
    nodes.darken("c", "a")
    nodes.darken("c", "b")
    for number in range(300):
        payload = str(number).encode() * 200
        await publisher.publish("t", payload, qos=number % 3)
        assert (await at_b.message()).payload == payload
    links = nodes.brokers["a"].links
    assert links is not None
    [of_c] = [each for each in links.other_nodes() if each.name == "c"]
    assert of_c.dropped > 0
    assert 0 < of_c.waiting_bytes <= 2 * 20_000 + 2_000
    session = nodes.session("a", "c")
    assert session.ledger.in_all() == of_c.dropped
    # Nor is a publisher held for it, as for a client that reads and falls behind.
    assert session.send_buffer is not None
    assert not session.send_buffer.holds
    assert not session.queue.holds


async def test_what_fits_waits_for_a_node_that_is_cut_off(stack: AsyncExitStack, tmp_path: Path) -> None:
    nodes = Nodes(stack, tmp_path)
    await nodes.start("a", "b")
    at_b = await nodes.join("b", "at-b", ("t", 2))
    publisher = await nodes.join("a", "publisher")
    await nodes.cut("a", "b")
    for number in range(20):
        await publisher.publish("t", str(number).encode(), qos=2)
    nodes.light()
    assert await payloads(at_b, b"19") == [str(number).encode() for number in range(20)]


async def test_a_node_that_was_away_finds_what_its_durable_clients_missed(nodes: Nodes) -> None:
    await nodes.start("a", "b", stores="ab")
    durable = await nodes.join("b", "durable", ("t", 2), clean=False, props=[(0x11, 3600)])
    await durable.disconnect()
    publisher = await nodes.join("a", "publisher")
    await nodes.stop("b")
    for number in range(10):
        await publisher.publish("t", str(number).encode(), qos=1 + number % 2)
    publisher.abort()
    # What waits is on disk at its publisher's node.
    await nodes.stop("a")
    await nodes.restart("a")
    await nodes.restart("b")
    await nodes.linked()
    again = await nodes.join("b", "durable", clean=False, props=[(0x11, 3600)])
    assert again.connack.session_present
    found = [(await again.message()).payload for _ in range(10)]
    assert [each for each in found if int(each) % 2] == [b"1", b"3", b"5", b"7", b"9"]
    assert [each for each in found if not int(each) % 2] == [b"0", b"2", b"4", b"6", b"8"]


async def test_a_node_without_a_store_begins_anew(nodes: Nodes) -> None:
    await nodes.start("a", "b", stores="a")
    await nodes.join("b", "clean", ("noise/#", 1))
    await nodes.stop("b")
    await (await nodes.join("a", "publisher")).publish("noise/1", b"missed", qos=1)
    await nodes.restart("b")
    await nodes.linked()
    assert not nodes.session("a", "b").subscriptions
    again = await nodes.join("b", "clean", ("noise/#", 1))
    await (await nodes.join("a", "again")).publish("noise/1", b"new", qos=1)
    assert await payloads(again, b"new") == [b"new"]


async def test_filters_of_clients_of_an_earlier_run_end(nodes: Nodes) -> None:
    await nodes.start("a", "b", stores="ab")
    await nodes.join("b", "clean", *[(f"noise/{number}", 1) for number in range(2_000)])
    durable = await nodes.join("b", "durable", ("kept", 1), clean=False, props=[(0x11, 3600)])
    await durable.disconnect()
    await nodes.linked()
    # Node a does not hear of the end of the clean session, as if b were killed.
    await nodes.cut("a", "b")
    await nodes.stop("b")
    assert len(nodes.session("a", "b").subscriptions) == 2_001
    nodes.light()
    await nodes.restart("b")
    await nodes.linked()
    await until(lambda: list(nodes.session("a", "b").subscriptions) == ["kept"], "the others have ended")


async def test_a_node_that_stops_is_linked_again_when_it_is_back(nodes: Nodes) -> None:
    await nodes.start("a", "b", "c")
    at_a = await nodes.join("a", "at-a", ("t", 1))
    await nodes.stop("b")
    await until(lambda: not nodes.link("a", "b").connected, "a knows")
    # The others do not wait for it.
    await (await nodes.join("c", "publisher")).publish("t", b"c", qos=1)
    assert (await at_a.message()).payload == b"c"
    await nodes.restart("b")
    await nodes.linked()
    await (await nodes.join("b", "publisher")).publish("t", b"b", qos=1)
    assert (await at_a.message()).payload == b"b"


async def test_the_stop_of_a_node_leaves_nothing_at_the_others_if_it_keeps_nothing(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    await nodes.join("b", "clean", ("t", 1))
    assert list(nodes.session("a", "b").subscriptions) == ["t"]
    await nodes.stop("b")
    await until(lambda: "$node/b" not in nodes.brokers["a"].router.sessions, "its session has ended")


async def test_a_node_knows_whom_it_hears(nodes: Nodes) -> None:
    """Not a node that has stopped, nor one that it has no link to."""
    await nodes.start("a", "b")
    links = nodes.brokers["a"].links
    assert isinstance(links, NodeLinks)
    assert links.linked(["b"])
    assert not links.linked(["b", "c"])
    await nodes.stop("b")
    await until(lambda: not links.linked(["b"]), "the link is down")
    assert links.linked([])
