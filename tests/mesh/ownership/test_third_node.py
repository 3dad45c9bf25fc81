"""A session moves while a third node cannot be reached by the one, the other, or both of its nodes.

c is the third node; the session goes from b to a, and on to d.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterable
from functools import partial

import pytest

from broker.core.queues.message import Message
from broker.core.routing.remote.node_tags import with_share
from broker.mesh.ownership.messages import Late
from broker.mesh.ownership.moves.giving import Giving
from broker.mesh.status import status
from broker.observe.figures import catalogue
from tests.e2e import wire
from tests.e2e.wire import Peer, ack
from tests.mesh.brokers import Nodes, Start
from tests.support.waiting import until

KEPT = ((wire.SESSION_EXPIRY, 1_000),)
SETTINGS = {"confirm_timeout": 2.0}
HEALED = [("ac", "bc"), ("bc", "ac"), ("bc",), ("ac",)]
"""The pairs that cannot reach each other, in the order in which they can again."""


async def cut(nodes: Nodes, pairs: Iterable[str]) -> None:
    for pair in pairs:
        nodes.mesh.cut(*pair)
    await until(lambda: not any(connected(nodes, pair) for pair in pairs))


async def join(nodes: Nodes, pair: str) -> None:
    nodes.mesh.join(*pair)
    await until(lambda: connected(nodes, pair) == 2)


def connected(nodes: Nodes, pair: str) -> int:
    return sum(nodes.meshes[one].links[other].connected for one, other in (tuple(pair), tuple(pair[::-1])))


async def comes(nodes: Nodes, node: str) -> Peer:
    """The client, at a node."""
    return await nodes.join(node, "hears", clean=False, props=KEPT)


async def subscribed(nodes: Nodes, *filters: str) -> Peer:
    """The client with its session at b."""
    peer = await nodes.join("b", "hears", *((each, 2) for each in filters), clean=False, props=KEPT)
    await nodes.mesh.settle()
    return peer


async def said(says: Peer, numbers: Iterable[int], qos: int, topic: str = "x/1") -> None:
    for number in numbers:
        await says.publish(topic, b"%d" % number, qos=qos)


async def numbers(peer: Peer, count: int) -> list[int]:
    """What comes: so many, and what else there is."""
    found = [int((await peer.message()).payload) for _ in range(count)]
    return found + [int(each.payload) for each in await peer.fence() if each.kind == wire.PUBLISH]


async def over(nodes: Nodes) -> None:
    """Nothing is kept of the move."""
    rooms = [mesh.ownership.gates for mesh in nodes.meshes.values()]
    await until(lambda: not any(len(each) or each.owed for each in rooms))
    for broker in nodes.brokers.values():
        assert all(session.shut is None for session in broker.router.sessions.values())


@pytest.mark.parametrize("others", [False, True], ids=["alone", "not alone"])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("pairs", HEALED, ids="-".join)
async def test_what_a_third_node_publishes_meanwhile_comes_once_and_in_order(
    start: Start, pairs: tuple[str, ...], qos: int, others: bool
) -> None:
    """Whether or not clients of both nodes want the same."""
    nodes = await start("a", "b", "c", mesh=SETTINGS)
    if others:
        for node in "ab":
            await nodes.join(node, f"other {node}", ("x/#", 2))
    hears = await subscribed(nodes, "x/#")
    says = await nodes.join("c", "says")
    await said(says, (0,), qos)
    assert int((await hears.message()).payload) == 0
    hears.abort()
    await cut(nodes, pairs)
    await said(says, (1, 2, 3), qos)
    hears = await comes(nodes, "a")
    await said(says, (4, 5, 6), qos)
    for at, pair in enumerate(pairs):
        await join(nodes, pair)
        await said(says, (7 + at,), qos)
    await said(says, (9,), qos)
    expected = [*range(1, 7 + len(pairs)), 9]
    assert await numbers(hears, len(expected)) == expected
    await over(nodes)


@pytest.mark.parametrize("pairs", HEALED[:3], ids="-".join)
async def test_what_had_come_to_the_old_node_does_not_come_again(start: Start, pairs: tuple[str, ...]) -> None:
    """[MQTT-4.3.3-10] The third node does not know it: the acknowledgements are lost."""
    nodes = await start("a", "b", "c", mesh=SETTINGS)
    (await subscribed(nodes, "x/#")).abort()
    says = await nodes.join("c", "says")
    nodes.mesh.hold("b", "c")
    await said(says, (1, 2, 3), 2)
    nodes.mesh.cut("b", "c")
    nodes.mesh.release("b", "c")
    await cut(nodes, pairs)
    await said(says, (4,), 2)
    hears = await comes(nodes, "a")
    for pair in pairs:
        await join(nodes, pair)
    await said(says, (5,), 2)
    assert await numbers(hears, 5) == [1, 2, 3, 4, 5]
    await over(nodes)


@pytest.mark.parametrize("pairs", [("ac", "bc"), ("bc", "ac")], ids="-".join)
async def test_nor_to_a_session_that_has_moved_on(start: Start, pairs: tuple[str, ...]) -> None:
    """[MQTT-4.3.3-10] To a node that the third one reaches: that has not heard of the move before."""
    nodes = await start("a", "b", "c", "d", mesh=SETTINGS)
    (await subscribed(nodes, "x/#")).abort()
    says = await nodes.join("c", "says")
    nodes.mesh.hold("b", "c")
    await said(says, (1, 2, 3), 2)
    nodes.mesh.cut("b", "c")
    nodes.mesh.release("b", "c")
    await cut(nodes, pairs)
    await said(says, (4,), 2)
    (await comes(nodes, "a")).abort()
    hears = await comes(nodes, "d")
    for pair in pairs:
        await join(nodes, pair)
    await said(says, (5,), 2)
    assert await numbers(hears, 5) == [1, 2, 3, 4, 5]
    await over(nodes)


async def moved_without(start: Start, pairs: tuple[str, ...]) -> tuple[Nodes, Peer]:
    """A session has moved from b to a while some nodes did not reach each other; whoever publishes is at c."""
    nodes = await start("a", "b", "c", "d", mesh=SETTINGS)
    await nodes.join("a", "other", ("x/#", 2))
    (await subscribed(nodes, "x/#", "y")).abort()
    says = await nodes.join("c", "says")
    await cut(nodes, pairs)
    await said(says, (1, 2), 2)
    (await comes(nodes, "a")).abort()
    await said(says, (3, 4), 2)
    return nodes, says


@pytest.mark.parametrize("pairs", [*itertools.permutations(("ac", "bc", "cd"))], ids="-".join)
async def test_a_session_that_moves_on_has_all_of_it(start: Start, pairs: tuple[str, ...]) -> None:
    nodes, says = await moved_without(start, pairs)
    hears = await comes(nodes, "d")
    await said(says, (5,), 2)
    for at, pair in enumerate(pairs):
        await join(nodes, pair)
        await said(says, (6 + at,), 2)
    assert await numbers(hears, 8) == [*range(1, 9)]
    await over(nodes)


@pytest.mark.parametrize("pairs", [("ac", "bc", "cd"), ("bc", "ac", "cd")], ids="-".join)
async def test_a_session_that_moves_on_when_its_new_node_has_been_reached_again(
    start: Start, pairs: tuple[str, ...]
) -> None:
    nodes, says = await moved_without(start, pairs)
    for pair in pairs[:2]:
        await join(nodes, pair)
    await said(says, (5, 6), 2)
    hears = await comes(nodes, "d")
    await said(says, (7, 8), 2)
    await join(nodes, "cd")
    await said(says, (9,), 2)
    assert await numbers(hears, 9) == [*range(1, 10)]
    await over(nodes)


@pytest.mark.parametrize("qos", [1, 2])
async def test_the_mark_may_come_before_the_rest_of_the_session(start: Start, qos: int) -> None:
    nodes = await start("a", "b", "c")
    await nodes.join("a", "other", ("x/#", 2))
    (await subscribed(nodes, "x/#", "y")).abort()
    says = await nodes.join("c", "says")
    await cut(nodes, ["ac"])
    giver = nodes.meshes["b"].ownership.giver
    parting = giver._parting

    def parts(giving: Giving) -> None:
        nodes.mesh.hold("b", "a")
        parting(giving)

    giver._parting = parts
    await said(says, (1, 2), qos)
    coming = asyncio.create_task(comes(nodes, "a"))
    await until(lambda: nodes.meshes["c"].links["a"].marks)
    await said(says, (3, 4), qos)
    await join(nodes, "ac")
    await said(says, (5, 6), qos)
    nodes.mesh.release("b", "a")
    hears = await coming
    await said(says, (7,), qos)
    assert await numbers(hears, 7) == [*range(1, 8)]
    await over(nodes)


@pytest.mark.parametrize("lost", [("ac",), ("bc", "ac"), ("ac", "bc"), ()], ids="-".join)
@pytest.mark.parametrize("qos", [1, 2])
async def test_a_node_may_be_lost_when_all_know_where_the_session_is(
    start: Start, qos: int, lost: tuple[str, ...]
) -> None:
    """What it has published since then has come to the old node, and not to the new one yet. Or it takes too long."""
    nodes = await start("a", "b", "c", mesh=SETTINGS)
    await nodes.join("a", "other", ("x/#", 2))
    (await subscribed(nodes, "x/#")).abort()
    says = await nodes.join("c", "says")
    giver = nodes.meshes["b"].ownership.giver
    session = nodes.brokers["b"].router.sessions["hears"]
    ready, known = giver.ready, asyncio.Event()

    def hears_ready(node: str, client_id: str, time: int, without: list[str]) -> None:
        assert without == []
        giver.ready = ready  # type: ignore[method-assign]
        nodes.mesh.hold("c", "a")
        publishing.append(asyncio.create_task(said(says, (1, 2, 3), qos)))
        giving.append(partial(ready, node, client_id, time, without))
        known.set()

    giving: list[Callable[[], None]] = []
    publishing: list[asyncio.Task[None]] = []
    giver.ready = hears_ready  # type: ignore[method-assign]
    coming = asyncio.create_task(comes(nodes, "a"))
    await known.wait()
    await until(session.queued)
    giving[0]()
    await nodes.mesh.settle()
    for pair in lost:
        nodes.mesh.cut(*pair)
    hears = await coming
    nodes.mesh.release("c", "a")
    for pair in lost[::-1]:
        await until(lambda: not connected(nodes, pair))  # noqa: B023
        await join(nodes, pair)
    await publishing[0]
    await said(says, (4,), qos)
    assert await numbers(hears, 4) == [1, 2, 3, 4]
    await over(nodes)


async def test_a_session_that_goes_to_and_fro_leaves_nothing_behind(start: Start) -> None:
    """Of moves that nobody has heard of, and nobody will."""
    nodes = await start("a", "b", "c", mesh=SETTINGS)
    (await subscribed(nodes, "x/#")).abort()
    says = await nodes.join("c", "says")
    await cut(nodes, ["ac", "bc"])
    for number in range(1, 31):
        await said(says, (number,), 2)
        (await comes(nodes, "ab"[number % 2])).abort()
    assert sum(mesh.ownership.gates.owed for mesh in nodes.meshes.values()) <= 2
    await join(nodes, "bc")
    await join(nodes, "ac")
    hears = await comes(nodes, "a")
    await said(says, (31,), 2)
    assert await numbers(hears, 31) == [*range(1, 32)]
    await over(nodes)


@pytest.mark.parametrize("first", ["ac", "bc"])
@pytest.mark.parametrize("qos", [1, 2])
async def test_a_session_that_comes_into_another_one_has_it_too(start: Start, qos: int, first: str) -> None:
    """The client has begun a session at a while a and b did not reach each other."""
    nodes = await start("a", "b", "c", mesh=SETTINGS)
    (await subscribed(nodes, "x/#")).abort()
    says = await nodes.join("c", "says")
    await cut(nodes, ("ab", "ac", "bc"))
    await said(says, (1, 2, 3), qos)
    hears = await nodes.join("a", "hears", ("y", 2), clean=False, props=KEPT)
    assert not hears.connack.session_present
    await join(nodes, "ab")
    await until(lambda: nodes.meshes["a"].ownership.taker.merged and not nodes.meshes["b"].ownership.giver.givings)
    await said(says, (4,), qos)
    await join(nodes, first)
    await join(nodes, "bc" if first == "ac" else "ac")
    await said(says, (5,), qos)
    assert await numbers(hears, 5) == [1, 2, 3, 4, 5]
    await over(nodes)


async def test_a_node_that_does_not_come_back_is_waited_for_as_long_as_set(start: Start) -> None:
    """`mesh.node_expiry`: nothing is kept of the move then; the session takes what the node publishes afterwards."""
    nodes = await start("a", "b", "c", mesh={**SETTINGS, "node_expiry": 1.0})
    (await subscribed(nodes, "x/#")).abort()
    await cut(nodes, ["ac", "bc"])
    hears = await comes(nodes, "a")
    room = nodes.meshes["a"].ownership.gates
    assert len(room) == 1
    await over(nodes)
    assert status(nodes.meshes["a"]).sessions_incomplete == 1
    topics = dict(catalogue.topics(nodes.brokers["a"].figures.read()))
    assert topics["mesh/sessions/incomplete"] == "1"
    nodes.mesh.join("a", "c")
    says = await nodes.join("c", "says")
    await until(lambda: nodes.meshes["c"].links["a"].session.subscriptions)
    await said(says, (1,), 2)
    assert await numbers(hears, 1) == [1]


@pytest.mark.parametrize("older", ["a", "b", "c"])
async def test_with_an_older_node_sessions_move_as_before(start: Start, older: str) -> None:
    nodes = await start("a", "b", "c", mesh=SETTINGS)
    nodes.mesh[older].speaks = 2
    (await subscribed(nodes, "x/#")).abort()
    says = await nodes.join("c", "says")
    await cut(nodes, ["ac", "bc"])
    await said(says, (1,), 2)
    hears = await comes(nodes, "a")
    await join(nodes, "ac")
    await join(nodes, "bc")
    await over(nodes)
    await until(lambda: nodes.meshes["c"].links["a"].session.subscriptions)
    await said(says, (2,), 2)
    assert await numbers(hears, 1) == [2]


async def test_more_than_have_room_move_as_before(start: Start) -> None:
    """An eighth of `mesh.queue_bytes`, here and at their old node."""
    nodes = await start("a", "b", "c", mesh={**SETTINGS, "queue_bytes": 4_194_304})
    for number in range(4):
        filters = [(f"{first}" * 60_000, 2) for first in range(4)]
        await nodes.join("b", f"s{number}", *filters, clean=False, props=KEPT)
    await nodes.mesh.settle()
    await cut(nodes, ["ac", "bc"])
    for number in range(4):
        await nodes.join("a", f"s{number}", clean=False, props=KEPT)
    assert len(nodes.meshes["a"].ownership.gates) == 2
    assert nodes.meshes["b"].ownership.gates.owed == 2
    await join(nodes, "ac")
    await join(nodes, "bc")
    await over(nodes)


async def test_a_node_that_comes_back_is_told_of_all_moves_together(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By each of the nodes between which the sessions have moved."""
    nodes = await start("a", "b", "c", mesh=SETTINGS)
    clients = [f"hears {number}" for number in range(12)]
    for client in clients:
        (await nodes.join("b", client, (f"x/{client}", 2), clean=False, props=KEPT)).abort()
    await nodes.mesh.settle()
    await cut(nodes, ["ac", "bc"])
    says = await nodes.join("c", "says")
    for client in clients:
        await said(says, (1,), 2, f"x/{client}")
    hears = [await nodes.join("a", client, clean=False, props=KEPT) for client in clients]
    told: list[int] = []
    shell = nodes.meshes["c"].ownership._shell
    hand_over = shell.hand_over

    def hands_over(lates: list[Late]) -> None:
        told.append(len(lates))
        hand_over(lates)

    monkeypatch.setattr(shell, "hand_over", hands_over)
    for pair in ("bc", "ac"):
        await join(nodes, pair)
    for peer in hears:
        assert await numbers(peer, 1) == [1]
    await over(nodes)
    assert told == [len(clients)] * 2


async def test_what_does_not_wait_for_a_node_is_not_kept_back(start: Start) -> None:
    """QoS 0, and what a share group has chosen the session for."""
    nodes = await start("a", "b", "c", mesh=SETTINGS)
    (await subscribed(nodes, "x/#", "$share/g/y")).abort()
    await cut(nodes, ["ac", "bc"])
    hears = await comes(nodes, "a")
    session = nodes.brokers["a"].router.sessions["hears"]
    origin = nodes.brokers["a"].router.sessions["$node/from/c"]
    assert session.shut == {origin.client_id}
    publisher = nodes.brokers["a"].router.publisher
    for topic, qos, share in (("x/1", 0, ""), ("x/2", 1, ""), ("y", 2, "$share/g/y")):
        properties = with_share(b"", share) if share else b""
        publisher.from_node(Message(topic.encode(), b"1", qos, False, properties, 0.0, origin.client_id), origin)
    nodes.brokers["a"].after_batch()
    found = [await hears.message() for _ in range(2)]
    assert {each.topic for each in found} == {"x/1", "y"}
    assert [each for each in await hears.fence() if each.kind == wire.PUBLISH] == []


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_is_lost_and_found_meanwhile_each_message_comes_once(start: Start, seed: int) -> None:
    """A client goes from node to node of those that reach each other; d can be reached by some of them, or by none, and
    is lost and found while the session moves, too."""
    await wanders(start, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 160))
async def test_whatever_is_lost_and_found_meanwhile_each_message_comes_once_at_length(start: Start, seed: int) -> None:
    await wanders(start, seed)


async def wanders(start: Start, seed: int) -> None:
    chance = random.Random(seed)
    nodes = await start(*"abcd", mesh=SETTINGS)
    if chance.random() < 0.5:
        await nodes.join(chance.choice("abc"), "other", ("x/#", 2))
    (await subscribed(nodes, "x/#", "x/+")).abort()
    says = {node: await nodes.join(node, f"says {node}") for node in "abcd"}
    sent: dict[str, list[int]] = {node: [] for node in says}
    came: dict[str, list[int]] = {node: [] for node in says}
    lost: set[str] = set()
    saying: dict[str, asyncio.Task[None]] = {}

    async def more() -> None:
        node = chance.choice("addd")
        if node in saying:
            await saying.pop(node)
        sent[node].append(len(sent[node]))
        await said(says[node], sent[node][-1:], 2, f"x/{node}")

    async def moves(node: str) -> Peer:
        coming = asyncio.create_task(comes(nodes, node))
        slow = [*"abc"] if chance.random() < 0.5 else []
        for _ in range(chance.randrange(10)):
            for _ in range(chance.randrange(1, 40)):
                await asyncio.sleep(0)
            if chance.random() < 0.2:
                lose_or_find(chance.choice(("ad", "bd", "cd")))
            node = chance.choice("ad")
            if node not in saying or saying[node].done():
                sent[node].append(len(sent[node]))
                saying[node] = asyncio.create_task(said(says[node], sent[node][-1:], 2, f"x/{node}"))
            if slow and chance.random() < 0.3:
                nodes.mesh.hold("d", slow.pop())
        for other in "abc":
            nodes.mesh.release("d", other)
        return await coming

    def lose_or_find(pair: str) -> None:
        (nodes.mesh.join if pair in lost else nodes.mesh.cut)(*pair)
        lost.symmetric_difference_update({pair})

    async def takes(peer: Peer) -> None:
        while found := [each for each in await peer.fence() if each.kind != wire.PINGRESP]:
            for each in found:
                if each.kind == wire.PUBLISH:
                    came[each.topic.removeprefix("x/")].append(int(each.payload))
                assert each.packet_id is not None
                await peer.send(ack(wire.PUBREC if each.kind == wire.PUBLISH else wire.PUBCOMP, each.packet_id))

    for _ in range(chance.randrange(10, 30)):
        pair = chance.choice(("ad", "bd", "cd"))
        what = chance.choice(("lose or find", "publish", "publish", "move", "move and take"))
        if what == "lose or find":
            lose_or_find(pair)
            await until(lambda: connected(nodes, pair) == (0 if pair in lost else 2))  # noqa: B023
        elif what == "publish":
            await more()
        else:
            peer = await moves(chance.choice("abc"))
            assert peer.connack.session_present
            if what == "move and take":
                await takes(peer)
            peer.abort()
            await nodes.mesh.settle()
    for pair in sorted(lost):
        lose_or_find(pair)
    await until(lambda: all(connected(nodes, pair) == 2 for pair in ("ad", "bd", "cd")))
    await asyncio.gather(*saying.values())
    for node, publisher in says.items():
        sent[node].append(len(sent[node]))
        await said(publisher, sent[node][-1:], 2, f"x/{node}")
    hears = await comes(nodes, "a")
    await over(nodes)
    await takes(hears)
    assert came == sent


async def test_a_move_that_takes_longer_than_nodes_are_waited_for_shuts_nobody_out(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = await start("a", "b", "c", mesh={"node_expiry": 1.0})
    (await subscribed(nodes, "x/#")).abort()
    await cut(nodes, ["bc"])
    giver, room = nodes.meshes["b"].ownership.giver, nodes.meshes["a"].ownership
    parting = giver._parting

    def parts(giving: Giving) -> None:
        nodes.mesh.hold("b", "a")
        parting(giving)

    monkeypatch.setattr(giver, "_parting", parts)
    coming = asyncio.create_task(comes(nodes, "a"))
    await until(lambda: len(room.gates))
    await until(lambda: not len(room.gates))
    nodes.mesh.release("b", "a")
    hears = await coming
    await until(lambda: room.taker.moved)
    assert nodes.brokers["a"].router.sessions["hears"].shut is None
    await said(await nodes.join("c", "says"), (1,), 2)
    assert await numbers(hears, 1) == [1]
