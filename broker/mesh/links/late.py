"""What waits for one node, and is for sessions that have moved to another one: handed over, and the mark behind it.

Owns how it is found in the queue of a node's session, and what it becomes on its way to the other node. Promises: in
the order in which it was published; nothing of QoS 2 that the first node has had; nothing that a share group chose the
node for. What stands in the queue stays there: it is for other sessions, too. QoS 0 is not handed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from broker.core.queues.delivery import RELEASED, SENT, Delivery
from broker.core.queues.live.outbox import ACCEPTED
from broker.core.queues.message import Message, MessageCopy
from broker.core.routing.remote.node_tags import take_late, take_number, with_late, with_number
from broker.core.topics.trie import COMPACT, create
from broker.mesh.links.link import NodeLink
from broker.mesh.links.session import NodeSession
from broker.mesh.ownership.gates import MARK
from broker.mesh.ownership.messages import Missed

TOPIC: Final = b"$node/late"
"""The topic of a mark, which goes to nobody."""


MOST_MARKS: Final = 65_536
"""Marks that are remembered for a node, so that they are made once: the last ones."""


def hand_over(links: Mapping[str, NodeLink], name: str, to: NodeLink, missed: Missed, filters: list[str]) -> bool:
    """Put what is for the sessions of a move into the queue of their node, and the mark behind it.

    Nothing happens where that was done before. False: there was no room for all of it.
    """
    if name in to.marks:
        return True
    took = True
    for message in list(waiting(links, missed, filters)):
        # Without its number: the other node may have had it by that, for other sessions.
        properties = with_late(with_number(message.properties, 0), name)
        took = to.session.hand(MessageCopy(message, properties)) == ACCEPTED and took
    mark = Message(TOPIC, b"", 1, False, with_late(b"", name + MARK), 0.0, "")
    if to.session.hand(mark) != ACCEPTED:
        return False
    to.marks[name] = None
    if len(to.marks) > MOST_MARKS:
        del to.marks[next(iter(to.marks))]
    return took


def waiting(links: Mapping[str, NodeLink], missed: Missed, filters: list[str]) -> Iterator[Message]:
    """What waits for a session in the queue of the last of its nodes that it was to come to, as it was published."""
    for source in missed.sources:
        link, move = links.get(source.node), source.move
        if link is None:
            continue
        if move and move not in link.marks:
            continue  # it is still where the session was before
        received = set(missed.received) if source is missed.sources[0] else set()
        yield from _of(_on_the_way(link.session), move, received, filters)
        return


def _of(deliveries: list[Delivery], move: str, received: set[int], filters: list[str]) -> Iterator[Message]:
    if not deliveries:
        return
    trie = create(COMPACT)
    for topic_filter in filters:
        trie.insert(topic_filter)
    wanted: dict[bytes, bool] = {}
    passed = not move or all(_move_of(delivery) != move + MARK for delivery in deliveries)
    for delivery in deliveries:
        message = delivery.message
        if delivery.state == SENT and delivery.qos == 2 and delivery.packet_id in received:
            continue
        late = _move_of(delivery)
        if late:
            if late == move:
                yield _as_published(message)
            passed = passed or late == move + MARK
            continue
        if passed and filters:
            topic = message.topic
            if topic not in wanted:
                wanted[topic] = bool(trie.match(topic.decode()))
            if not wanted[topic]:
                continue
        if passed:
            yield _as_published(message)


def _as_published(message: Message) -> Message:
    if not message.properties:
        return message
    return MessageCopy(message, take_number(take_late(message.properties)[1])[1])


def _on_the_way(session: NodeSession) -> list[Delivery]:
    found = (*session.inflight.values(), *session.queue.waiting())
    return [each for each in found if each.qos > 0 and each.group is None and each.state != RELEASED]


def _move_of(delivery: Delivery) -> str:
    properties = delivery.message.properties
    return take_late(properties)[0] if properties else ""
