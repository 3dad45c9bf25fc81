"""What is asked, and what of it stands before any receiver is looked at.

Owns `Question` and `Case`. Promises: making a case changes nothing in the router, and its size is that of the route.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.core.queues.message import Message
from broker.core.routing.in_turns.broadcasts import listeners
from broker.core.routing.receivers.reach import Reach
from broker.core.routing.router import Router
from broker.core.topics.subscription import FilterEntry


@dataclass(frozen=True, slots=True)
class Question:
    """A message that was not published. `size`: bytes of its payload; `publisher`: a client identifier; None: nobody's.

    `client`: the one that is asked about; empty: everybody.
    """

    topic: str
    publisher: str | None = None
    qos: int = 0
    retain: bool = False
    size: int = 1
    client: str = ""


class Case:
    """A question as the router meets it: the message, its route as it is now, and who may have it."""

    def __init__(self, router: Router, question: Question, now: float) -> None:
        self.now = now
        topic = question.topic.encode()
        # Zeroes that nobody looks at: the system gives them when they are touched, which they are not.
        payload = bytes(question.size)
        self.message = Message(topic, payload, question.qos, question.retain, b"", 0.0, question.publisher or "")
        self.origin = None if question.publisher is None else router.sessions.get(question.publisher)
        self.remembered = router.cache.knows(topic)
        self.route = route = router.cache.peek(topic)
        self.entries: list[FilterEntry] = [entry for entry in route.entries if not entry.retired]
        permissions = router.permissions
        # Access control is asked as for a message; nothing is remembered with the route.
        self.reach: Reach | None = None
        if permissions is not None and permissions.filters:
            self.reach = Reach(topic, permissions)
            if isinstance(route.reach, Reach):
                self.reach.follow(route.reach)
        # One for each receiver: whether all queues together have room for them.
        self.listeners = listeners(route)
        copies = self.listeners + sum(len(entry.groups) for entry in self.entries)
        load, size = router.counters.load, self.message.size()
        self.roomy = (
            load.has_room(copies, copies * size)
            and load.inflight + copies <= load.max_messages // 2
            and load.inflight_bytes + copies * size <= load.max_bytes // 2
        )
