"""Chooses the member of a share group that gets a message (section 4.8.2).

Connected members with room come first, then connected ones, then any; in rotation, or clients of this broker before
other nodes of a mesh. The cost does not grow with the absent members of a group, and at most a fixed number of members
without permission is skipped.
"""

from __future__ import annotations

from typing import Final, cast

from broker.core.queues.message import Message
from broker.core.routing.receivers.reach import Reach
from broker.core.session.session import Session
from broker.core.topics.subscription import SharedGroup, Subscription

PASSED_OVER: Final = 1_024
"""Members who may not have a message and are passed over, before it is given up."""

TRIES: Final = 16
"""Connected members that are asked whether they have room, for one message."""


def choose(group: SharedGroup, message: Message, reach: Reach | None, local_first: bool) -> Subscription | None:
    """The member that is to have a message; None: none may, or there is none. `reach`: who may; None: everybody.

    `local_first`: a node gets it only where no client of this broker does that is connected and has room.
    """
    size = message.size()
    node: Subscription | None = None
    for _ in range(min(len(group.connected), TRIES)):
        member = _next(group, reach)
        if member is None:
            return None
        session = cast(Session, member.session)
        outbox = session.outbox
        qos = message.qos if message.qos < member.qos else member.qos
        if (
            outbox is not None
            and outbox.has_room(size)
            and (qos == 0 or (session.window.quota > 0 and session.queue.pending is None))
        ):
            if not local_first or not session.node:
                return member
            node = member
        # A node may have several turns in a row.
        group.pass_on()
    if node is not None:
        return node
    # No member is connected, or none has room: the next in turn takes it, so that each has its share of these.
    return _next(group, reach)


def member_here(group: SharedGroup, reach: Reach | None) -> Subscription | None:
    """Whose turn it is of those who are no nodes, and may have it: of the connected ones, or else of the others."""
    for _ in range(min(group.size, PASSED_OVER)):
        member = _next(group, reach)
        if member is None:
            break
        if not cast(Session, member.session).node:
            return member
        group.pass_on()
    for member in group.away[:PASSED_OVER]:
        session = cast(Session, member.session)
        if not session.node and not session.ended and (reach is None or reach.may(session)):
            return member
    return None


def _next(group: SharedGroup, reach: Reach | None) -> Subscription | None:
    """Whose turn it is, of those who may have the message: of the connected ones, or of the others if need be."""
    if reach is None:
        return group.next_member()
    for tried in range(min(group.size, PASSED_OVER)):
        member = group.next_member()
        if member is not None and reach.may(cast(Session, member.session)):
            return member
        group.pass_on()
        if tried + 1 >= len(group.connected) > 0:
            break
    if group.connected:
        for member in group.away[:PASSED_OVER]:
            if not member.session.ended and reach.may(cast(Session, member.session)):
                return member
    return None
