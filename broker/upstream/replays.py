"""Retained messages of an upstream: each local subscription gets them once, and none outlives what it came for.

Owns, for one link, which retained messages are expected to come again (a broker sends them with every new
subscription), and which of those kept here have lost their source.

Promises:
- What comes again and is known already is not told again. What has changed meanwhile is.
- What the upstream had retained before it lost our session, and does not send again, is forgotten here too.
- When a topic filter is withdrawn, what was retained for it alone is forgotten: a later subscription gets the newest
  from the upstream, and nothing stale before it.
- A retained message of ours that still waits to go up is not undone by what the upstream had before.

What is expected is bounded (`MOST`); beyond that a message may be told twice. The work of a turn is bounded too.

Refuses: the wire, and the clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from broker.core.message import DROPPED, Message
from broker.core.retained import RetainedCursor
from broker.core.router import Router
from broker.core.trie_base import Trie
from broker.upstream.session import UplinkSession

if TYPE_CHECKING:
    from mypy_extensions import i64

MOST: Final = 65_536
"""Topics of which a replay is expected at most."""

QUIET: Final = 15.0
"""Seconds after the last sign of a replay until it counts as over."""

STEP: Final = 1_024
"""Topics that one turn looks at, when what was kept for a filter goes."""


class Replays:
    """What one link expects to come again."""

    def __init__(self, router: Router, session: UplinkSession) -> None:
        self._router = router
        self._session = session
        self._expected: dict[bytes, Message] = {}
        # Topics, as they are upstream, of what waits to go up.
        self._ours: set[bytes] = set()
        # The upstream has lost our session: what it does not send again is gone.
        self._anew = False
        self._over_at = 0.0
        self._going: list[RetainedCursor] = []

    def open(self, session_present: bool, now: float) -> None:
        """A connection is there; `expect` follows for the filters that are asked for."""
        self._expected.clear()
        self._ours.clear()
        self._anew = not session_present
        self._over_at = now + QUIET
        session = self._session
        for delivery in session.inflight.values():
            self._ours.add(delivery.message.topic)
        if session.pending is not None:
            for delivery in session.pending:
                if delivery.state != DROPPED:
                    self._ours.add(delivery.message.topic)

    def expect(self, topic_filter: str, now: float) -> None:
        """A filter (upstream's) is asked for: what is retained for it may come again."""
        left: i64 = MOST - len(self._expected)
        self._over_at = now + QUIET
        if left <= 0 or len(self._router.retained) == 0:
            return
        cursor = self._cursor(topic_filter)
        while left > 0 and not cursor.done:
            for node in cursor.take(STEP):
                message = node.value
                if isinstance(message, Message):
                    self._expected[message.topic] = message
                    left -= 1

    def knows(self, topic: bytes, remote: bytes, payload: bytes, now: float) -> bool:
        """Whether a message that came with RETAIN is nothing new here: not to be told, and not to be kept."""
        if self._over_at == 0.0:
            return False
        if remote in self._ours:
            # Ours is newer, and on its way.
            self._ours.discard(remote)
            return True
        expected = self._expected.pop(topic, None)
        if expected is None:
            return False
        self._over_at = now + QUIET
        return expected.payload() == payload

    def withdrawn(self, topic_filters: list[str]) -> None:
        """Filters (upstream's) are not held any more: `turn` forgets what was kept for them alone."""
        if len(self._router.retained) > 0:
            for topic_filter in topic_filters:
                self._going.append(self._cursor(topic_filter))

    @property
    def busy(self) -> bool:
        """Whether there is more to look at."""
        return bool(self._going)

    def turn(self, held: Trie, now: float) -> bool:
        """Do some of what is due; `held`: what the upstream still has. True when there is more to do soon."""
        router = self._router
        mine = self._session.client_id
        mapping = self._session.mapping
        left: i64 = STEP
        while self._going and left > 0:
            cursor = self._going[-1]
            nodes = cursor.take(left)
            left -= len(nodes) + 64
            for node in nodes:
                message = node.value
                if isinstance(message, Message) and message.publisher == mine:
                    remote = mapping.remote_topic(message.topic)
                    if remote is None or not held.match(remote.decode()):
                        router.drop_retained(message.topic.decode())
            if cursor.done:
                self._going.pop()
        if self._going:
            return True
        if self._over_at > 0.0 and now >= self._over_at:
            self._over()
        return self._over_at > 0.0

    def _over(self) -> None:
        """All that was to come again has come."""
        if self._anew:
            router = self._router
            mine = self._session.client_id
            for topic, message in self._expected.items():
                name = topic.decode()
                if message.publisher == mine and cast("Message | None", router.retained.get(name)) is message:
                    router.drop_retained(name)
        self._expected.clear()
        self._ours.clear()
        self._over_at = 0.0

    def _cursor(self, topic_filter: str) -> RetainedCursor:
        mapping = self._session.mapping
        return self._router.retained.walk(mapping.local + topic_filter[len(mapping.remote) :])
