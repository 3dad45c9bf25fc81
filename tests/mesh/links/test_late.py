"""What waits for a node, and is for sessions that have moved."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from broker.core.queues.message import Message
from broker.core.queues.requests import NodeRequest, RequestMessage
from broker.mesh.links.late import waiting
from broker.mesh.ownership.messages import Missed, Source
from tests.mesh.links.link import Node


def test_what_another_node_has_given_up_comes_as_it_was_published() -> None:
    """Without the number, which is for nodes [MQTT-3.3.2-17]."""
    a = Node(store=False)
    message = Message(b"x/1", b"1", 2, False, b"", 0.0, "says")
    a.session.deliver(RequestMessage(message, NodeRequest(1, 2, 7)), 2, False, (), None)
    assert next(iter(a.session.queue.waiting())).message.properties != b""
    links: Any = {"c": SimpleNamespace(session=a.session, marks={})}
    found = list(waiting(links, Missed("a", [Source("c")], []), ["x/#"]))
    assert [(each.payload(), each.properties) for each in found] == [(b"1", b"")]
