"""What was published for the sessions of a dead node comes to the node that has them out of its store."""

from __future__ import annotations

import pytest

from broker.core.codec.packets import SubscriptionRequest
from broker.core.persistence.journal import SessionRecord, SubscriptionRecord
from broker.core.persistence.pages import Page
from broker.core.principal import Principal
from broker.core.queues.message import Message
from broker.mesh.ownership.moves.giving import Giving
from broker.store.adoptions import Estate
from tests.mesh.brokers import Nodes, Start
from tests.mesh.ownership.test_third_node import SETTINGS, comes, cut, join, numbers, over, said, subscribed
from tests.support.waiting import until


class Store(Estate):
    """What b kept of the client, who had subscribed to `x/#` and `y`."""

    def __init__(self, nodes: Nodes) -> None:
        super().__init__("b", nodes.brokers["a"].loop.time())
        record = SessionRecord("hears", 1_000, 0.0, Principal(client_id="hears"))
        for topic_filter in ("x/#", "y"):
            record.subscriptions.append(
                SubscriptionRecord(SubscriptionRequest(topic_filter, 2, False, False, 0), 0, False)
            )
        self.sessions.append((1, record))

    async def more(self) -> bool:
        raise AssertionError

    async def prepare(self, most: int) -> None:
        raise AssertionError(most)

    def place(self, number: int, page: Page | None) -> None:
        """Nothing waits on disk alone."""

    def page(self, number: int, client_id: str, page: Page) -> Page:
        raise AssertionError(number, client_id, page)

    def took(self, number: int) -> None:
        """One session was put there."""

    def end(self) -> None:
        """That was all."""

    async def kept(self) -> None:
        raise AssertionError

    async def close(self) -> None:
        raise AssertionError


def adopt(nodes: Nodes, store: Store) -> None:
    """a has the sessions."""
    assert nodes.meshes["a"].ownership.adopter.adopt(store, 100) == ["hears"]
    nodes.brokers["a"].after_batch()


@pytest.mark.parametrize("others", [False, True], ids=["alone", "not alone"])
@pytest.mark.parametrize("apart", [False, True], ids=["there", "cannot be reached"])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("node", ["a", "c"])
async def test_what_waits_for_a_dead_node_comes_once_and_in_order(
    start: Start, node: str, qos: int, apart: bool, others: bool
) -> None:
    nodes = await start("a", "b", "c", mesh=SETTINGS)
    if others:
        await nodes.join("a", "other", ("x/#", 2))
    (await subscribed(nodes, "x/#", "y")).abort()
    says = await nodes.join(node, "says")
    await cut(nodes, ["ab", "bc"])
    await said(says, (1, 2), qos)
    if apart:
        await cut(nodes, ["ac"])
        await said(says, (3,), qos)
    adopt(nodes, Store(nodes))
    await said(says, (4, 5), qos)
    if apart:
        await join(nodes, "ac")
    await said(says, (6,), qos)
    hears = await comes(nodes, "a")
    expected = [1, 2, 3, 4, 5, 6] if apart else [1, 2, 4, 5, 6]
    assert await numbers(hears, len(expected)) == expected
    await over(nodes)


async def test_what_the_dead_node_had_received_is_in_its_store(start: Start) -> None:
    """[MQTT-4.3.3-10] It is not handed over, though it was not acknowledged."""
    nodes = await start("a", "b", "c", mesh=SETTINGS)
    (await subscribed(nodes, "x/#", "y")).abort()
    says = await nodes.join("c", "says")
    nodes.mesh.hold("b", "c")
    await said(says, (1, 2), 2)
    store = Store(nodes)
    received = nodes.brokers["b"].router.sessions["$node/from/c"].incoming_qos2
    assert received is not None
    assert len(received) == 2
    store.received["c"] = sorted(received)
    nodes.mesh.cut("b", "c")
    nodes.mesh.release("b", "c")
    await cut(nodes, ["ab", "bc"])
    await said(says, (3,), 2)
    adopt(nodes, store)
    hears = await comes(nodes, "a")
    await said(says, (4,), 2)
    assert await numbers(hears, 2) == [3, 4]
    await over(nodes)


async def test_a_node_that_never_knew_the_dead_one_is_not_waited_for(start: Start) -> None:
    """It has nothing that comes another way."""
    nodes = await start("a", "b", "c", mesh=SETTINGS)
    (await subscribed(nodes, "x/#", "y")).abort()
    await cut(nodes, ["ab", "bc"])
    nodes.meshes["a"].ownership.gates.left("c")
    nodes.meshes["a"].ownership.gates.knows("c", ["a"])
    adopt(nodes, Store(nodes))
    assert nodes.brokers["a"].router.sessions["hears"].shut is None
    await over(nodes)
    await until(lambda: nodes.meshes["c"].links["a"].session.subscriptions)
    hears = await comes(nodes, "a")
    await said(await nodes.join("c", "says"), (1,), 2)
    assert await numbers(hears, 1) == [1]


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_session_goes_on_at_once_to_a_node_that_has_messages_for_it(
    start: Start, monkeypatch: pytest.MonkeyPatch, qos: int
) -> None:
    """It has not been asked for them yet; what it publishes meanwhile comes once, too."""
    nodes = await start("a", "b", "c", mesh=SETTINGS)
    (await subscribed(nodes, "x/#", "y")).abort()
    says = await nodes.join("c", "says")
    await cut(nodes, ["ab", "bc"])
    await said(says, (1, 2), qos)
    room = nodes.meshes["a"].ownership
    monkeypatch.setattr(room.gates, "ask", lambda _: None)
    going = room.giver._going

    def goes(giving: Giving) -> None:
        broker = nodes.brokers["c"]
        for number in (3, 4):
            broker.router.publish(Message(b"x/1", b"%d" % number, qos, False, b"", 0.0, "says"), None)
        broker.after_batch()
        going(giving)

    monkeypatch.setattr(room.giver, "_going", goes)
    adopt(nodes, Store(nodes))
    hears = await comes(nodes, "c")
    await said(says, (5,), qos)
    assert await numbers(hears, 5) == [1, 2, 3, 4, 5]
    assert len(room.gates) == 0
