"""Whether a client may publish to a topic name: the limits, the broker's own topics, access control.

Owns `TopicJudge`, which says the reason code, and what decided. Nothing is routed or answered here.
"""

from __future__ import annotations

from typing import Final

from broker.core.codec import reasons
from broker.core.codec.errors import MalformedPacket
from broker.core.codec.topic_names import has_control
from broker.core.connection.connect.identity import is_reserved
from broker.core.routing.router import Router
from broker.core.session.session import Session

RESERVED: Final = "the topic is the broker's own"


class TopicJudge:
    """Judges the topic names of one connection. `why`: what refused the last one; empty: access control did."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.why = ""

    def judge(self, topic: bytes, session: Session, qos: int, retain: bool) -> int:
        """0, or the reason code with which a topic name is refused to this client.

        Raises:
            MalformedPacket: it holds control characters, and the settings let none in (section 1.5.4).
        """
        router = self._router
        limits = router.limits
        self.why = ""
        if limits.max_topic_levels > 0 and topic.count(b"/") >= limits.max_topic_levels:
            self.why = "limits.max_topic_levels"
            return reasons.TOPIC_NAME_INVALID
        # What the cache knows holds none: it is asked once for a topic, not for each message.
        if not limits.control_characters and not router.cache.knows(topic) and has_control(topic.decode()):
            raise MalformedPacket("a topic name with a control character")
        if is_reserved(topic, session.link, router, session):
            self.why = RESERVED
            return reasons.NOT_AUTHORIZED
        access_control = router.access_control
        if (
            access_control is not None
            and not session.own
            and not access_control.may_publish(session.principal, topic.decode(), qos, retain)
        ):
            router.counters.denied_publishes += 1
            return reasons.NOT_AUTHORIZED
        return 0
