"""Late messages: they wait in the queue for one node, and are for sessions that have moved from it to another one.

Owns how they are found there, how they stand in the queue for the other node, and the mark behind them, which says that
no more come (`mesh.ownership.gates` waits for it). Promises: the order in which they were published; nothing of QoS 2
that the first node has had; nothing that a share group chose the node for. They stay in the first queue, too, for its
other sessions. QoS 0 is not handed over. However many moves are named together, a queue is looked through once for
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from broker.core.queues.delivery import RELEASED, SENT, Delivery
from broker.core.queues.live.outbox import ACCEPTED
from broker.core.queues.message import Message, MessageCopy
from broker.core.routing.remote.node_tags import take_late, take_number, with_late, with_number
from broker.core.topics.trie import COMPACT, create
from broker.mesh.links.link import NodeLink
from broker.mesh.links.session import NodeSession
from broker.mesh.ownership.gates import MARK
from broker.mesh.ownership.messages import Late, Missed

TOPIC: Final = b"$node/late"
"""The topic of a mark, which goes to nobody."""


MOST_MARKS: Final = 65_536
"""Marks that are remembered for a node, so that they are made once: the last ones."""


class _Wanted:
    """What is wanted of one queue: what matches the filters, or all where there are none.

    `move`: by it the sessions came to that node. Before its mark only what it names is for them. "": all may be.
    """

    def __init__(self, node: str, move: str, received: Iterable[int], filters: list[str]) -> None:
        self.node = node
        self.move = move
        self.received = frozenset(received)
        self.filters = filters
        self.passed = not move


def hand_over(links: Mapping[str, NodeLink], lates: Iterable[Late]) -> list[Late]:
    """Put what is for the sessions of some moves into the queues of their nodes, and the marks behind it.

    Nothing happens where that was done before, or nothing is for the node. Returns those without room for all of it.
    """
    lost: list[Late] = []
    together: dict[str, Late] = {}
    for late in lates:
        if any(source.move in together for source in late.missed.sources):
            # It is looked for behind the mark of that one.
            lost += _hand_over(links, together)
            together = {}
        link = links.get(late.to)
        if link is not None and late.name not in link.marks:
            together[late.name] = late
    return lost + _hand_over(links, together)


def _hand_over(links: Mapping[str, NodeLink], lates: Mapping[str, Late]) -> list[Late]:
    wanted: dict[str, dict[_Wanted, Late]] = {}
    for late in lates.values():
        its = _wanted(links, late.missed, late.filters)
        if its is not None:
            wanted.setdefault(its.node, {})[its] = late
    lost: dict[str, Late] = {}
    for node, of_node in wanted.items():
        for message, by in _find(_on_the_way(links[node].session), list(of_node)):
            # Without its number: the other node may have had it by that, for other sessions.
            properties = with_number(message.properties, 0)
            for each in by:
                late = of_node[each]
                copy = MessageCopy(message, with_late(properties, late.name))
                if links[late.to].session.hand(copy) != ACCEPTED:
                    lost[late.name] = late
    for name, late in lates.items():
        if not _mark(links[late.to], name):
            lost[name] = late
    return list(lost.values())


def _mark(link: NodeLink, name: str) -> bool:
    mark = Message(TOPIC, b"", 1, False, with_late(b"", name + MARK), 0.0, "")
    if link.session.hand(mark) != ACCEPTED:
        return False
    link.marks[name] = None
    if len(link.marks) > MOST_MARKS:
        del link.marks[next(iter(link.marks))]
    return True


def waiting(links: Mapping[str, NodeLink], missed: Missed, filters: list[str]) -> Iterator[Message]:
    """What waits for a session in the queue of the last of its nodes that it was to come to, as it was published."""
    wanted = _wanted(links, missed, filters)
    if wanted is not None:
        for message, _ in _find(_on_the_way(links[wanted.node].session), [wanted]):
            yield message


def _wanted(links: Mapping[str, NodeLink], missed: Missed, filters: list[str]) -> _Wanted | None:
    for source in missed.sources:
        link = links.get(source.node)
        # Where it is not marked, it is still where the session was before.
        if link is not None and (not source.move or source.move in link.marks):
            return _Wanted(source.node, source.move, source.received, filters)
    return None


def _find(deliveries: list[Delivery], wanted: list[_Wanted]) -> Iterator[tuple[Message, list[_Wanted]]]:
    """The messages that anybody wants, as they were published, in their order, and who wants each."""
    if not deliveries:
        return
    trie = create(COMPACT)
    by_filter: dict[str, list[_Wanted]] = {}
    by_move: dict[str, list[_Wanted]] = {}
    marked = {_move_of(delivery) for delivery in deliveries}
    for each in wanted:
        for topic_filter in each.filters:
            trie.insert(topic_filter)
            by_filter.setdefault(topic_filter, []).append(each)
        if each.move:
            by_move.setdefault(each.move, []).append(each)
            each.passed = each.move + MARK not in marked
    everything = [each for each in wanted if not each.filters]
    by_topic: dict[bytes, list[_Wanted]] = {}
    for delivery in deliveries:
        late = _move_of(delivery)
        if late.endswith(MARK):
            for each in by_move.get(late.removesuffix(MARK), ()):
                each.passed = True
            continue
        if late:
            found = by_move.get(late, [])
        else:
            topic = delivery.message.topic
            matching = by_topic.get(topic)
            if matching is None:
                matches = (each for entry in trie.match(topic.decode()) for each in by_filter[entry.topic_filter])
                matching = by_topic[topic] = [*dict.fromkeys(matches), *everything]
            found = [each for each in matching if each.passed]
        if delivery.state == SENT and delivery.qos == 2:
            found = [each for each in found if delivery.packet_id not in each.received]
        if found:
            yield _as_published(delivery.message), found


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
