"""What waits for a node, and is for sessions that have moved."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.core.queues.delivery import Delivery
from broker.core.queues.message import Message
from broker.core.queues.requests import NodeRequest, RequestMessage
from broker.core.routing.remote.node_tags import take_late
from broker.mesh.links import late
from broker.mesh.links.late import hand_over, waiting
from broker.mesh.links.session import NodeSession
from broker.mesh.ownership.messages import Late, Missed, Source
from tests.core.harness import Network
from tests.mesh.links.link import Node


class Links(dict[str, Any]):
    """Those of a node c to others, which are away."""

    def __init__(self, *nodes: str) -> None:
        super().__init__()
        counters = Network().router.counters
        for node in nodes:
            session = NodeSession(node, 0, 1 << 26, counters)
            self[node] = SimpleNamespace(session=session, marks={})

    def publish(self, topic: str, payload: bytes, *nodes: str) -> None:
        """c publishes what these want."""
        message = Message(topic.encode(), payload, 1, False, b"", 0.0, "says")
        for node in nodes:
            self[node].session.deliver(message, 1, False, (), None)

    def late(self, node: str) -> list[tuple[str, bytes]]:
        """What waits for a node by the name of a move."""
        found = ((take_late(each.message.properties)[0], each.message.payload()) for each in self._waiting(node))
        return [(move, payload) for move, payload in found if move]

    def _waiting(self, node: str) -> Any:
        return self[node].session.queue.waiting()


def moved(name: str, to: str, *sources: Source, filters: tuple[str, ...] = ("x/#",)) -> Late:
    return Late(name, to, Missed("c", list(sources)), list(filters))


def test_what_another_node_has_given_up_comes_as_it_was_published() -> None:
    """Without the number, which is for nodes [MQTT-3.3.2-17]."""
    a = Node(store=False)
    message = Message(b"x/1", b"1", 2, False, b"", 0.0, "says")
    a.session.deliver(RequestMessage(message, NodeRequest(1, 2, 7)), 2, False, (), None)
    assert next(iter(a.session.queue.waiting())).message.properties != b""
    links: Any = {"c": SimpleNamespace(session=a.session, marks={})}
    found = list(waiting(links, Missed("a", [Source("c")]), ["x/#"]))
    assert [(each.payload(), each.properties) for each in found] == [(b"1", b"")]


def test_a_queue_is_looked_through_once_for_all_that_is_named_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each session has its own, in order, and its mark behind that."""
    links = Links("a", "b")
    for number in range(40):
        links.publish(f"x/{number % 20}", b"%d" % number, "b")
    looked = []
    look = late._on_the_way

    def looks(session: NodeSession) -> list[Delivery]:
        looked.append(session.name)
        return look(session)

    monkeypatch.setattr(late, "_on_the_way", looks)
    assert hand_over(links, [moved(f"m{each}", "a", Source("b"), filters=(f"x/{each}/#",)) for each in range(20)]) == []
    assert looked == ["b"]
    handed = links.late("a")
    for each in range(20):
        mine = [payload for move, payload in handed if move in {f"m{each}", f"m{each}!"}]
        assert mine == [b"%d" % each, b"%d" % (each + 20), b""]


def test_what_is_named_twice_is_handed_over_once() -> None:
    links = Links("a", "b")
    links.publish("x/1", b"1", "b")
    named = moved("m1", "a", Source("b"))
    for lates in ([named, named], [named]):
        assert hand_over(links, lates) == []
        assert links.late("a") == [("m1", b"1"), ("m1!", b"")]


def test_a_session_that_has_moved_on_by_then_has_what_is_behind_its_mark_alone() -> None:
    """Both moves are named together: from b to a, and from there to d."""
    links = Links("a", "b", "d")
    links.publish("x/1", b"1", "a", "b")
    on = moved("m2", "d", Source("a", "m1", "b"), Source("b"))
    assert hand_over(links, [moved("m1", "a", Source("b")), on]) == []
    assert links.late("d") == [("m2", b"1"), ("m2!", b"")]


def test_a_move_without_room_for_all_is_named() -> None:
    links = Links("a", "b")
    for number in range(10):
        links.publish("x/1", b"%d" % number, "b")
    links["a"].session.queue.limit(links["a"].session.queue.policy, 5, 0)
    lates = [moved("m1", "a", Source("b")), moved("m2", "a", Source("b"), filters=("y",))]
    assert hand_over(links, lates) == lates
    assert "m1" not in links["a"].marks
