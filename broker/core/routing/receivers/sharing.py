"""Chooses the member of a share group that gets a message (section 4.8.2).

Connected members with room come first, then connected ones, then any; in rotation. The cost grows neither with the
absent members of a group nor with those that may not have the message (`permitted`).
"""

from __future__ import annotations

from typing import Final, cast

from broker.core.queues.message import Message
from broker.core.routing.receivers.reach import Reach
from broker.core.session.session import Session
from broker.core.topics.subscription import SharedGroup, Subscription

TRIES: Final = 16
"""Connected members that are asked whether they have room, for one message."""


def choose(group: SharedGroup, message: Message, reach: Reach | None) -> Subscription | None:
    """The member that is to have a message; None: none may, or there is none. `reach`: who may; None: everybody."""
    size = message.size()
    for _ in range(min(group.connected.count, TRIES)):
        member = group.next_member() if reach is None else _connected(group, reach)
        if member is None:
            break
        session = cast(Session, member.session)
        outbox = session.outbox
        qos = message.qos if message.qos < member.qos else member.qos
        if (
            outbox is not None
            and outbox.has_room(size)
            and (qos == 0 or (session.window.quota > 0 and session.queue.pending is None))
        ):
            return member
    # No member is connected, or none has room: the next in turn takes it, so that each has its share of these.
    return _next(group, reach)


def _next(group: SharedGroup, reach: Reach | None) -> Subscription | None:
    """Whose turn it is, of those who may have the message: of the connected ones, or of the others if need be."""
    if reach is None:
        return group.next_member()
    member = _connected(group, reach)
    return reach.permitted(group, group.away).next_member(reach) if member is None else member


def _connected(group: SharedGroup, reach: Reach) -> Subscription | None:
    """Whose turn it is, of the connected ones who may have the message."""
    return None if group.connected.count == 0 else reach.permitted(group, group.connected).next_member(reach)
