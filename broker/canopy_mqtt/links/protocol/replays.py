"""Retained messages of an upstream: each local subscription gets them once, and none outlives its source.

Owns, for one link, which retained messages are expected again (a broker sends them with every new subscription), and
which of those kept here have lost their source.

The expected ones are bounded (`MOST`, `WORK`); above that a message may be delivered twice. The work of a turn is
bounded too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from canopy_mqtt.core.codec.topic_names import matches
from canopy_mqtt.core.queues.delivery import DROPPED
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.topics.topic_tree import TopicCursor
from canopy_mqtt.core.topics.trie import Trie, create
from canopy_mqtt.links.protocol.session import UplinkSession

if TYPE_CHECKING:
    from mypy_extensions import i64

MOST: Final = 65_536
"""Topics of which a replay is expected at most."""

QUIET: Final = 15.0
"""Seconds after the last sign of a replay until it counts as over."""

LONGEST: Final = 120.0
"""Seconds for which filters that are asked for, one after the other, can put that off."""

STEP: Final = 1_024
"""Topics, or levels of them, that one turn looks at, when what was kept for a filter goes."""

WORK: Final = 131_072
"""Levels of topics that are looked at for what may come again, until all of it counts as over."""

GOING: Final = 1_024
"""Filters that were withdrawn and not looked at yet; where there are more, everything is looked at once."""


class Replays:
    """The retained messages that one link expects the upstream to send again.

    Promises:
    - A message that comes again unchanged is not published again; one that has changed meanwhile is. Live messages come
      with the same flag: while a replay is expected, a live message that repeats the known one cannot be told from it,
      and is not published.
    - What the upstream had retained before it lost our session, and does not send again, is forgotten here too.
    - When a topic filter is withdrawn, what was retained for it alone is forgotten: a later subscription gets the
      newest from the upstream, and nothing stale before it.
    - A retained message of ours that still waits to go up, or goes up since the upstream has lost our session, is not
      undone by what the upstream had before.
    """

    def __init__(self, router: Router, session: UplinkSession) -> None:
        self._router = router
        self._session = session
        self._expected: dict[bytes, Message] = {}
        # Levels that may still be looked at for it.
        self.work: i64 = WORK
        # Topics, as they are upstream, of retained messages that wait to go up, and what was asked for since.
        self._ours: set[bytes] = set()
        self._asked = create("nodes")
        # Whether copies for other filters are told apart before they come here; else, how often each topic has come.
        self._identifies = True
        self._came: dict[bytes, int] = {}
        # Topics of which the upstream's older message was left out, or has been replaced there by ours.
        self._undone: set[bytes] = set()
        # The upstream has lost our session: what it does not send again is gone.
        self._anew = False
        # When the replay counts as over (0.0: it is), and what asking for more cannot put off.
        self._over_at = 0.0
        self._latest = 0.0
        # Filters that were withdrawn, and how far the work on the first of them is; whether there are too many.
        self._going: dict[str, None] = {}
        self._cursor: TopicCursor | None = None
        self._sweep = False
        # What has not come again, and goes.
        self._leaving: list[Message] = []

    def open(self, session_present: bool, identifies: bool, now: float) -> None:
        """A connection is there; `expect` follows for the filters that are asked for.

        `identifies`: copies that come for other filters are told apart before they come here.
        """
        self._clear()
        self._identifies = identifies
        self._leaving.clear()
        self._anew = not session_present
        self._over_at = now + QUIET
        self._latest = now + LONGEST
        session = self._session
        for delivery in session.inflight.values():
            if delivery.retain:
                self._ours.add(delivery.message.topic)
        if session.queue.pending is not None:
            for delivery in session.queue.pending:
                if delivery.retain and delivery.state != DROPPED:
                    self._ours.add(delivery.message.topic)

    def expect(self, topic_filter: str, now: float) -> None:
        """A filter (upstream's) is asked for: what is retained for it may come again."""
        if self._over_at == 0.0:
            self._latest = now + LONGEST
        self._over_at = max(self._over_at, min(now + QUIET, self._latest))
        if self._ours or not self._identifies:
            if len(self._asked) >= MOST:
                self._ours.clear()
            elif self._asked.find(topic_filter) is None:
                self._asked.insert(topic_filter)
        left: i64 = MOST - len(self._expected)
        if left <= 0 or len(self._router.retained) == 0:
            return
        cursor = self._walk(topic_filter)
        self.work -= cursor.steps
        while left > 0 and self.work > 0 and not cursor.done:
            before = cursor.steps
            for node in cursor.take(STEP):
                message = node.value
                if isinstance(message, Message):
                    self._expected[message.topic] = message
                    left -= 1
            self.work -= cursor.steps - before

    def knows(self, message: Message, remote: bytes, now: float) -> bool:
        """Return whether a message that came with RETAIN is known here: it is then neither published nor retained.

        `remote`: its topic as it is upstream.
        """
        if self._over_at == 0.0:
            return False
        if remote in self._ours and self._asked.match(remote.decode()):
            # Ours is newer, and on its way.
            self._ours.discard(remote)
            return True
        if self._anew and self._goes_up(message.topic, remote):
            return True
        expected = self._expected.pop(message.topic, None)
        if not self._identifies and self._one_of_several(remote):
            expected = cast("Message | None", self._router.retained.get(message.topic.decode()))
        if expected is None:
            return False
        self._over_at = now + QUIET
        if expected.payload() != message.payload():
            return False
        if expected.expires_at != message.expires_at and message.retain and expected.publisher == message.publisher:
            # The same, for a longer or shorter time.
            name = message.topic.decode()
            if cast("Message | None", self._router.retained.get(name)) is expected:
                self._router.retained_store.retain(message)
        return True

    def _goes_up(self, topic: bytes, remote: bytes) -> bool:
        """True if the retained message here is ours and is sent to the new session; each topic counts once."""
        name = topic.decode()
        kept = self._router.retained.get(name)
        if not isinstance(kept, Message) or kept.publisher == self._session.client_id or remote in self._undone:
            return False
        for topic_filter in self._session.subscriptions:
            if matches(topic_filter, name):
                self._undone.add(remote)
                return len(self._undone) <= MOST
        return False

    def _one_of_several(self, remote: bytes) -> bool:
        """Return whether a topic's message may still come for another filter: it comes once for each that was
        subscribed to."""
        came = self._came.get(remote, 0)
        if came >= len(self._asked.match(remote.decode())) or len(self._came) >= MOST:
            return False
        self._came[remote] = came + 1
        return True

    @property
    def guards(self) -> bool:
        """True if the arrival of a message of ours has to be noted (`arrived`)."""
        return bool(self._ours) or self._anew

    def arrived(self, remote: bytes) -> None:
        """The upstream has a message of ours (its topic as it is there): what comes for it now is newer."""
        self._ours.discard(remote)
        if self._anew and len(self._undone) < MOST:
            self._undone.add(remote)

    def withdrawn(self, topic_filters: list[str]) -> None:
        """Filters (upstream's) are not held any more: `turn` forgets what was kept for them alone."""
        if len(self._router.retained) == 0:
            return
        for topic_filter in topic_filters:
            if len(self._going) >= GOING:
                self._going.clear()
                self._sweep = True
            self._going[topic_filter] = None

    @property
    def busy(self) -> bool:
        return self._cursor is not None or self._sweep or bool(self._going) or bool(self._leaving)

    @property
    def waits(self) -> bool:
        """True if `turn` will have work: at once (`busy`), or when all expected messages have come."""
        return self._over_at > 0.0 or self.busy

    def turn(self, held: Trie, now: float) -> bool:
        """Do some of what is due; `held`: what the upstream still has. True when there is more to do soon."""
        router = self._router
        mine = self._session.client_id
        left: i64 = STEP
        while left > 0:
            if self._leaving:
                left -= 8
                self._leave(self._leaving.pop())
                continue
            cursor = self._cursor
            if cursor is None:
                topic_filter = self._next()
                if not topic_filter:
                    break
                cursor = self._walk(topic_filter)
                self._cursor = cursor
                left -= cursor.steps + 8
            before = cursor.steps
            for node in cursor.take(STEP):
                message = node.value
                if isinstance(message, Message) and message.publisher == mine:
                    remote = self._session.mapping.remote_topic(message.topic)
                    if remote is None or not held.match(remote.decode()):
                        router.retained_store.drop(message.topic.decode())
            left -= cursor.steps - before
            if cursor.done:
                self._cursor = None
        if self.busy:
            return True
        if self._over_at > 0.0 and now >= self._over_at:
            self._over()
        return self.waits

    def _next(self) -> str:
        """The next filter whose topics are looked at; "": none."""
        if self._sweep:
            self._sweep = False
            return self._session.mapping.remote + "#"
        for topic_filter in self._going:
            del self._going[topic_filter]
            return topic_filter
        return ""

    def _over(self) -> None:
        if self._anew:
            self._leaving = list(self._expected.values())
        self._clear()

    def _clear(self) -> None:
        self._expected.clear()
        self._ours.clear()
        self._came.clear()
        self._undone.clear()
        self._asked = create("nodes")
        self._anew = False
        self._over_at = 0.0
        self.work = WORK

    def _leave(self, message: Message) -> None:
        """The upstream has this no more. What was kept in its place since is news."""
        router = self._router
        name = message.topic.decode()
        if (
            message.publisher == self._session.client_id
            and cast("Message | None", router.retained.get(name)) is message
        ):
            router.retained_store.drop(name)

    def _walk(self, topic_filter: str) -> TopicCursor:
        mapping = self._session.mapping
        return self._router.retained.walk(mapping.local + topic_filter[len(mapping.remote) :])


class NoReplays(Replays):
    """Those of a link to another node of the cluster: it expects none, and keeps what has come whatever is wanted."""

    def open(self, session_present: bool, identifies: bool, now: float) -> None:
        """Expect nothing."""

    def expect(self, topic_filter: str, now: float) -> None:
        """Expect nothing."""

    def knows(self, message: Message, remote: bytes, now: float) -> bool:
        """Leave it to the times of the messages (`Downlink`)."""
        del message, remote, now
        return False

    def withdrawn(self, topic_filters: list[str]) -> None:
        """Forget nothing."""
