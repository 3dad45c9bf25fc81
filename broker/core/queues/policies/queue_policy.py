"""The policies of a full queue and of messages that have waited too long.

Owns the policies, `QueueTerms` (the terms of one client's queues) and `QueueRule` (changes for some clients). Plain
data; the queues obey it, `queue_limits` and `queue_options` choose it.
"""

from __future__ import annotations

import fnmatch
import re
from typing import Final

DROP_NEWEST: Final = 0
"""What comes and does not fit is dropped."""
DROP_OLDEST: Final = 1
"""What has waited longest makes room. What is in flight stays."""
DISCONNECT: Final = 2
"""The peer is told 0x97 and disconnected; its session keeps what a session keeps."""
LATEST: Final = 3
"""Of each topic only the newest waits, in the place where its first one stood. Full of topics: as `DROP_NEWEST`."""

POLICIES: Final[tuple[str, ...]] = ("drop-newest", "drop-oldest", "disconnect", "latest")
"""Their names in settings and user properties; the index is the policy."""

UNSET: Final = -1
"""What a rule, or a client in its queue options, says nothing about."""


class QueueTerms:
    """The terms of one client's queues. `max_age` in seconds; 0 is unlimited for all but `policy`."""

    def __init__(
        self,
        policy: int,
        max_age: float,
        live_messages: int,
        live_bytes: int,
        session_messages: int,
        session_bytes: int,
    ) -> None:
        self.policy = policy
        self.max_age = max_age
        self.live_messages = live_messages
        self.live_bytes = live_bytes
        self.session_messages = session_messages
        self.session_bytes = session_bytes


class QueueRule:
    """One rule. Patterns are shell patterns for the whole text; an empty one matches anything.

    `topic_filter`: the rule is for subscriptions whose filter this one covers. Times in seconds; 0 is unlimited, and
    `UNSET` leaves what earlier rules or the settings say.
    """

    def __init__(
        self,
        client_id: str = "",
        user: str = "",
        topic_filter: str = "",
        policy: int = UNSET,
        max_age: float = -1.0,
        depth: int = UNSET,
        live_messages: int = UNSET,
        live_bytes: int = UNSET,
        session_messages: int = UNSET,
        session_bytes: int = UNSET,
    ) -> None:
        self.client_id = re.compile(fnmatch.translate(client_id)) if client_id else None
        self.user = re.compile(fnmatch.translate(user)) if user else None
        self.topic_filter = topic_filter
        self.policy = policy
        self.max_age = max_age
        self.depth = depth
        self.live_messages = live_messages
        self.live_bytes = live_bytes
        self.session_messages = session_messages
        self.session_bytes = session_bytes

    def applies_to(self, client_id: str, user_name: str | None) -> bool:
        """Whether the client matches the patterns. One without a user name matches no user pattern."""
        if self.client_id is not None and self.client_id.match(client_id) is None:
            return False
        return self.user is None or (user_name is not None and self.user.match(user_name) is not None)


class SubscriptionQueueTerms:
    """The terms of one subscription's messages. `max_age` in seconds, `depth` in messages; 0: unlimited."""

    def __init__(self, policy: int, max_age: float, depth: int) -> None:
        self.policy = policy
        self.max_age = max_age
        self.depth = depth


class QueueOptions:
    """The options that a subscriber requested (`queue_options`). `UNSET`, or -1.0 for `max_age`: not requested."""

    def __init__(self, policy: int = UNSET, max_age: float = -1.0, depth: int = UNSET) -> None:
        self.policy = policy
        self.max_age = max_age
        self.depth = depth
