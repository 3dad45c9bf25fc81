"""How many members of each share group are connected at this node, as it is declared to other nodes.

Owns which groups are to be looked at again. A count is declared as the power of two that it reaches, so that a group
whose members come and go is seldom declared anew; and a look takes no longer for a large group than for one of 255.
"""

from __future__ import annotations

from itertools import islice
from typing import Final, cast

from broker.core.session.session import Session
from broker.core.topics.subscription import SharedGroup, Subscription
from broker.core.topics.trie_base import Trie
from broker.mesh.interest.room import InterestRoom
from broker.mesh.interest.wire import MOST_CONNECTED

LOOKS: Final = 256
"""Groups that are looked at in a turn."""

SPARE: Final = 64
"""Nodes among a group's members that do not shorten a look: 255 clients are found all the same."""


class LocalGroups:
    """The share groups of this node's clients. `turn` declares what `moved` has noted."""

    def __init__(self, trie: Trie, interest: InterestRoom) -> None:
        self._trie = trie
        self._interest = interest
        self._moved: dict[tuple[str, str], None] = {}

    @property
    def busy(self) -> bool:
        """Whether `turn` has something to do."""
        return bool(self._moved)

    def look(self, share: str, topic_filter: str) -> None:
        """Declare at once what there is of a group: who subscribes waits for the other nodes to know."""
        self._moved.pop((share, topic_filter), None)
        entry = self._trie.find(topic_filter)
        group = None if entry is None else entry.groups.get(share)
        connected, away = (0, 0) if group is None else count(group)
        self._interest.put_group(share, topic_filter, connected, away)

    def moved(self, share: str, topic_filter: str) -> None:
        """A member of a group has connected, or its connection has ended."""
        self._moved[share, topic_filter] = None

    def turn(self) -> None:
        """Look at some of the groups whose members have moved."""
        for share, topic_filter in list(islice(self._moved, LOOKS)):
            self.look(share, topic_filter)


def count(group: SharedGroup) -> tuple[int, int]:
    """How many members are clients here and connected, as a power of two or 255; 1 where some are away, or 0."""
    there = sum(map(_is_client, islice(group.connected.members, MOST_CONNECTED + SPARE)))
    connected = MOST_CONNECTED if there >= MOST_CONNECTED else 1 << there.bit_length() - 1 if there > 0 else 0
    return connected, int(any(map(_is_client, islice(group.away.members, SPARE))))


def _is_client(member: Subscription) -> bool:
    session = cast(Session, member.session)
    return not session.node and not session.ended
