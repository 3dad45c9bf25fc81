"""The homes of share groups, where a broker has several workers.

Over several workers of one machine each share group lives at one of them, its *home*, which alone subscribes to the
filter for the group, chooses the members, and has the queue. The other workers tell it what members they have by
subscribing there to `$node/HOME/members/CONNECTED/NAME/FILTER`: that makes the session of the worker a member of the
group as well, whose turn comes CONNECTED times in a row, and which is as one that is away while that is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.codec.topic_names import parse_shared
from canopy_mqtt.core.routing.nodes import NODES
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import SharedGroup, Subscription

if TYPE_CHECKING:
    from canopy_mqtt.core.routing.subscription_table import SubscriptionTable

MEMBERS: Final = "members"
BUSY: Final = "busy"

MAX_NAME: Final = 65_535 - 64
"""Bytes of `$share/NAME/FILTER` at most: the members filter has it, with some levels before it, in one string."""

_LEVELS: Final = 5
"""Levels of a members filter before the filter of the group."""


class ShareHome:
    """The worker where a share group lives, if that is another one. `node`: its client identifier.

    Its messages say for which group they are (`node_messages.for_group`), and this worker gives each to one of its
    members, or sends it back if none is connected. What does not wait at the home while no member is connected anywhere
    is marked as for one that is away (`Mark.away`), and not sent back: else both workers would send it for ever. A
    members filter with `busy` in place of `members` says that no member has room: then the worker gets nothing from the
    queue, and other messages only if no other member has room either.

    The listener of the table of subscriptions tells it.
    """

    def __init__(self, table: SubscriptionTable, node: str) -> None:
        self.node = node
        # The filter that is subscribed to there for the members here; empty: there are none.
        self.told = ""
        # Whether no connected member here had room when the last message came.
        self.busy = False
        self._table = table

    def set_busy(self, group: SharedGroup, busy: bool) -> None:
        """Tell the home whether no member has room."""
        self.busy = busy
        self.changed(group)

    def changed(self, group: SharedGroup) -> None:
        """Tell the home what members there are now."""
        before, told = self.told, ""
        count = group.connected.count
        if group.size > 0:
            kind = BUSY if self.busy and count > 0 else MEMBERS
            told = members_filter(self.node, kind, count, group.name, group.topic_filter)
        if told == before:
            return
        self.told = told
        listener = self._table.listener
        if listener is None:
            return
        # The new filter comes first: without a member the group would end, with all that waits for it.
        if told:
            listener.wanted(told)
        if before:
            listener.unwanted(before)


def members_filter(node: str, kind: str, connected: int, name: str, topic_filter: str) -> str:
    """Return the filter by which the home of a group, with the client identifier `node`, is told of members."""
    return f"{node}/{kind}/{connected}/{name}/{topic_filter}"


def group_of(session: Session, name: str) -> tuple[str, str]:
    """Take the filter of a subscription apart, as `parse_shared`; also one by which a worker tells of its members."""
    levels = _levels(session, name)
    return parse_shared(name) if levels is None else (levels[4], levels[5])


def stand_for(group: SharedGroup, member: Subscription) -> None:
    """Let a member of a share group that is a worker stand for the members there."""
    levels = _levels(member.session, member.topic_filter)
    if levels is not None:
        group.stand_for(member, int(levels[3]), levels[2] == BUSY)


def _levels(session: Session, name: str) -> list[str] | None:
    if not session.upstream or not name.startswith(NODES) or not session.client_id.startswith(NODES):
        return None
    levels = name.split("/", _LEVELS)
    return levels if len(levels) > _LEVELS and levels[2] in (MEMBERS, BUSY) and levels[3].isdigit() else None
