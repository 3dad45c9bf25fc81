"""SUBACKs that wait for other nodes: for the filters that they name, and for nothing else."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from canopy_mqtt.cluster import node_links
from canopy_mqtt.cluster.node_links import NodeLinks
from canopy_mqtt.cluster.parts import Parts
from canopy_mqtt.core.accounts import Account
from canopy_mqtt.links.filters.declarer import Declarer
from canopy_mqtt.net.listening.listeners import StartupError
from canopy_mqtt.testing.faults import Lost, losable
from tests.cluster.nodes import Nodes
from tests.e2e import wire
from tests.support.waiting import until

LONG = 30.0
"""A `link_timeout` that no test waits for."""

TOO_LARGE = 0x95


@pytest.fixture
def nodes(stack: AsyncExitStack, tmp_path: Path) -> Nodes:
    """Nodes that are waited for until they answer."""
    return Nodes(stack, tmp_path, link_timeout=LONG)


async def test_another_subscribe_for_the_same_filter_waits_as_well(nodes: Nodes) -> None:
    """Also one that only changes options: what is published after its SUBACK has to arrive."""
    await nodes.start("a", "b")
    subscriber = await nodes.join("a", "subscriber")
    nodes.wires["a", "b"].darken(up=False)
    await subscriber.send(wire.subscribe(1, [("new", 0)]), wire.subscribe(2, [("new", 1)]))
    assert await subscriber.fence() == []
    other = await nodes.join("a", "other")
    await other.send(wire.subscribe(3, [("$share/group/new", 1)]))
    assert await other.fence() == []
    nodes.light()
    assert [(await subscriber.expect(wire.SUBACK)).packet_id for _ in range(2)] == [1, 2]
    assert (await other.expect(wire.SUBACK)).packet_id == 3


async def test_a_subscribe_does_not_wait_for_the_filters_of_another_one(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    first = await nodes.join("a", "first")
    second = await nodes.join("a", "second")
    nodes.wires["a", "b"].packet_faults.append(Lost(None, True, losable("SUBACK")))
    await first.send(wire.subscribe(1, [("lost", 1)]))
    await until(lambda: nodes.wires["a", "b"].packet_faults[0].happened == 1, "node b has confirmed the first one")
    assert await second.subscribe(("other", 1)) == (1,)
    assert await first.fence() == []


async def test_a_subscribe_in_many_turns_waits_for_its_own_filters(nodes: Nodes) -> None:
    """Whatever other clients ask for between its turns."""
    await nodes.start("a", "b")
    known = [(f"known/{number}", 0) for number in range(5_000)]
    await (await nodes.join("a", "knows")).subscribe(*known)
    first = await nodes.join("a", "first")
    second = await nodes.join("a", "second")
    nodes.wires["a", "b"].darken(up=False)
    await first.send(wire.subscribe(1, [("new", 1), *known]))
    for number in range(1, 20):
        await second.send(wire.subscribe(number, known[:1]))
        assert [each.packet_id for each in await second.fence()] == [number]
    assert await first.fence() == []
    nodes.light()
    assert (await first.expect(wire.SUBACK)).packet_id == 1


async def test_a_node_that_goes_down_is_not_waited_for(nodes: Nodes) -> None:
    await nodes.start("a", "b", "c")
    subscriber = await nodes.join("a", "subscriber")
    for other in "bc":
        nodes.wires["a", other].darken(up=False)
    await subscriber.send(wire.subscribe(1, [("new", 1)]))
    assert await subscriber.fence() == []
    nodes.link("a", "b").reset()
    assert await subscriber.fence() == []
    nodes.link("a", "c").reset()
    assert (await subscriber.expect(wire.SUBACK)).packet_id == 1


async def test_a_node_opens_for_clients_when_the_others_have_said_what_they_want(nodes: Nodes) -> None:
    """What is published there at once reaches their clients."""
    await nodes.start("a", "b")
    subscriber = await nodes.join("b", "subscriber", ("wanted", 1))
    await nodes.stop("a")
    nodes.wires["b", "a"].darken()
    starting = asyncio.create_task(nodes.restart("a"))
    await until(lambda: "a" in nodes.brokers and nodes.brokers["a"].links is not None, "a has links")
    await until(lambda: nodes.link("a", "b").connected, "a is linked in one direction")
    assert not nodes.brokers["a"].ports
    nodes.light()
    await starting
    publisher = await nodes.join("a", "publisher")
    await publisher.publish("wanted", b"first", qos=1)
    assert (await subscriber.message()).payload == b"first"


async def test_a_node_opens_for_clients_without_those_that_do_not_answer(stack: AsyncExitStack, tmp_path: Path) -> None:
    """For `link_timeout` it waits."""
    nodes = Nodes(stack, tmp_path)
    await nodes.start("a", "b")
    await nodes.stop("a")
    await nodes.stop("b")
    await nodes.restart("a")
    subscriber = await nodes.join("a", "subscriber")
    assert await subscriber.subscribe(("new", 1)) == (1,)


async def test_a_node_that_is_stopped_while_it_waits_for_the_others_opens_for_nobody(nodes: Nodes) -> None:
    await nodes.start("a", "b")
    await nodes.stop("a")
    nodes.wires["a", "b"].darken()
    starting = asyncio.create_task(nodes.restart("a"))
    await until(lambda: "a" in nodes.brokers and nodes.brokers["a"].cluster is not None, "a waits")
    await nodes.brokers["a"].stop()
    with pytest.raises(StartupError, match="was stopped before it had started"):
        await starting


async def test_beyond_the_filters_that_are_noted_a_suback_waits_until_all_is_confirmed(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_links, "MAX_AWAITED", 3)
    await nodes.start("a", "b")
    first = await nodes.join("a", "first")
    second = await nodes.join("a", "second")
    nodes.wires["a", "b"].darken(up=False)
    await first.send(wire.subscribe(1, [("1", 1), ("2", 1)]))
    assert await first.fence() == []
    await second.send(wire.subscribe(2, [("3", 1), ("4", 1)]))
    assert await second.fence() == []
    nodes.light()
    assert (await first.expect(wire.SUBACK)).packet_id == 1
    assert (await second.expect(wire.SUBACK)).packet_id == 2


async def test_a_late_suback_that_the_client_cannot_take_ends_its_connection(nodes: Nodes) -> None:
    """[MQTT-3.1.2-24]"""
    await nodes.start("a", "b")
    broker = nodes.brokers["a"]
    faults = dict(broker.faults.counts)
    for dark in (False, True):
        peer = await nodes.join("a", "small", props=[(wire.MAXIMUM_PACKET_SIZE, 40)])
        if dark:
            nodes.wires["a", "b"].darken(up=False)
        await peer.send(wire.subscribe(1, [(f"{dark}/{number}", 0) for number in range(100)]))
        [last] = await peer.closed()
        assert (last.kind, last.code) == (wire.DISCONNECT, TOO_LARGE)
    nodes.light()
    await nodes.linked()
    assert broker.faults.counts == faults


async def test_what_a_suback_costs_does_not_depend_on_how_many_wait(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each filter is looked at when it is asked for and when it is confirmed, however many packets that takes."""
    await nodes.start("a", "b")
    looks: list[str] = []
    is_open = NodeLinks._is_open

    def count(links: NodeLinks, topic_filter: str) -> bool:
        looks.append(topic_filter)
        return is_open(links, topic_filter)

    monkeypatch.setattr(NodeLinks, "_is_open", count)
    subscriber = await nodes.join("a", "subscriber")
    filters = [(f"new/{number}", 0) for number in range(3_000)]
    nodes.wires["a", "b"].darken(up=False)
    await subscriber.send(wire.subscribe(1, filters))
    await until(lambda: len(looks) >= len(filters), "the filters have been looked at")
    nodes.light()
    assert (await subscriber.expect(wire.SUBACK)).packet_id == 1
    assert len(looks) == 2 * len(filters)


def test_to_look_at_a_filter_takes_one_call_however_many_are_unconfirmed() -> None:
    declarer = Declarer(1)
    declarer.open(5, False, False, 1_000_000, [])
    for number in range(2_000):
        declarer.declare(f"new/{number}")
    declarer.packets([])
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        found = [declarer.is_confirmed(f"new/{number}") for number in (1, 1_000, 1_999)]
        found.append(declarer.is_confirmed("known"))
    finally:
        sys.setprofile(None)
    assert found == [False, False, False, True]
    # A compiled one calls nothing that is seen.
    assert calls.count("is_confirmed") in (0, 4)
    assert len(calls) <= 4 + 1  # and the comprehension


async def test_nothing_is_left_of_subacks_that_have_waited(stack: AsyncExitStack, tmp_path: Path) -> None:
    nodes = Nodes(stack, tmp_path)
    await nodes.start("a", "b")
    subscriber = await nodes.join("a", "subscriber")
    nodes.wires["a", "b"].packet_faults.append(Lost(None, True, losable("SUBACK")))
    # One that is never confirmed, and others meanwhile.
    await subscriber.send(wire.subscribe(1, [("lost", 1)]))
    await asyncio.gather(*[subscriber.send(wire.subscribe(2 + number, [(f"{number}", 1)])) for number in range(10)])
    assert {(await subscriber.expect(wire.SUBACK)).packet_id for _ in range(11)} == set(range(1, 12))
    links = nodes.brokers["a"].links
    assert isinstance(links, NodeLinks)
    assert (len(links._waiting), len(links._awaited)) == (0, 0)
    for parts in (links._subacks, links._filters):
        assert not parts._had


async def test_one_client_leaves_room_for_the_subacks_of_others(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes beyond its part goes at once, as a SUBACK beyond all parts does."""
    monkeypatch.setattr(node_links, "MAX_WAITING", 20)
    await nodes.start("a", "b")
    greedy = await nodes.join("a", "greedy")
    other = await nodes.join("a", "other")
    nodes.wires["a", "b"].darken(up=False)
    await greedy.send(*[wire.subscribe(number, [(f"new/{number}", 1)]) for number in range(1, 41)])
    at_once = {each.packet_id for each in await greedy.fence()}
    assert 20 <= len(at_once) < 40
    await other.send(wire.subscribe(1, [("mine", 1)]))
    assert await other.fence() == []
    nodes.light()
    assert (await other.expect(wire.SUBACK)).packet_id == 1


def test_the_clients_of_an_account_leave_room_for_other_accounts() -> None:
    parts = Parts(1_000)
    one, other = Account("user one", user=True), Account("user other", user=True)
    number = 0
    while parts.has_room(f"of one {number}", one, 1):
        parts.change(f"of one {number}", one, 1)
        number += 1
    assert 900 < number < 1_000
    assert parts.has_room("of other", other, 1)
    parts.change("of one 0", one, -1)
    assert parts.has_room("of one 0", one, 1)
