"""Finds the message because of which the upstream closes the connection, and decides when to drop it.

Some brokers answer a message that is not permitted or not valid by closing the connection. At QoS 1 and 2 it is sent
again on the next one, and again. Owns `PoisonMessageDetector`: whether messages are sent one by one, which are
*doubtful*, how often the connection ended with each of them, and the topics of dropped ones.

Promises: bounded, at most `MOST` doubtful messages and `TOPICS` topics. Without trouble it costs nothing.

Queues and packets are in `session` and `uplink`; callers pass the times, in seconds.
"""

from __future__ import annotations

from typing import Final

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.queues.delivery import DONE, SENT, Delivery

SOON: Final = 10.0
"""Seconds after a message in which the end of the connection is an answer to it."""

ENDINGS: Final = 3
"""Connections that end with a message alone on its way before it is given up."""

DEPTH: Final = 256
"""Answers before a message that are counted; the next time one more has to come before it."""

ALIKE: Final = 3
"""Doubtful messages beyond which one of the same topic is not tried in their place."""

MOST: Final = 16
"""Doubtful messages."""

PAUSE: Final = 15.0
"""Seconds until a doubtful message is tried again for which no other one can vouch; twice as many each time …"""

MAX_PAUSE: Final = 120.0
"""… up to this."""

TOPICS: Final = 1_024
"""Topics that are known."""

IN_A_ROW: Final = 3
"""Messages of a topic that are given up before it is barred."""

BARRED: Final = 300.0
"""Seconds for which a topic is barred."""

OF_THE_MESSAGE: Final = frozenset(
    {
        reason_codes.TOPIC_NAME_INVALID,
        reason_codes.PACKET_TOO_LARGE,
        reason_codes.PAYLOAD_FORMAT_INVALID,
        reason_codes.RETAIN_NOT_SUPPORTED,
        reason_codes.QOS_NOT_SUPPORTED,
    }
)
"""With these a DISCONNECT says that a message is the reason."""

PERHAPS: Final = frozenset(
    {
        reason_codes.SUCCESS,
        reason_codes.UNSPECIFIED_ERROR,
        reason_codes.MALFORMED_PACKET,
        reason_codes.PROTOCOL_ERROR,
        reason_codes.IMPLEMENTATION_SPECIFIC_ERROR,
        reason_codes.NOT_AUTHORIZED,
    }
)
"""With these, or without a word (0), it may be. Every other one gives another reason."""


class Suspect:
    """A doubtful message: the connections that ended with it alone, after how many answers the last of them did, and
    whether another one was acknowledged since."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.endings = 0
        self.depth = 0
        self.vouched = False
        self.again_at = 0.0


class Known:
    """A topic: messages given up with none acknowledged between them; and until when (s) it is barred, 0.0: not."""

    def __init__(self) -> None:
        self.given_up = 0
        self.until = 0.0


class PoisonMessageDetector:
    """Rules and state of one link. `on`: messages go one by one. `alone`: the one that is on its way.

    The rules:
    - Messages go one by one when two connections in a row were ended by the upstream with the same oldest message
      unacknowledged, or one was for a message of a topic that is known. Nothing else is then sent beside the one: it
      goes after the answer to a PINGREQ, or to the one before it.
    - A message that was alone on its way when the upstream ended the connection, within `SOON` seconds, becomes
      doubtful. A network that cannot be reached, an end of ours, and a DISCONNECT that gives another reason say
      nothing.
    - While there is a doubtful one, the next message of another topic goes in its place; one of the same topic only
      after `ENDINGS` connections ended with each doubtful one alone, so that a network that flaps mixes up no topic. If
      it is acknowledged, the upstream takes messages, and the doubtful ones are tried after it, on the same connection.
    - A doubtful one is tried again only after more answers than the last time. A connection that ends after some time,
      or some packets, whatever they are, then ends with something else.
    - A doubtful message that is acknowledged is none any more. It is given up after `ENDINGS` connections that ended
      with it alone, but never before another message was acknowledged in the meantime; at once if a DISCONNECT says
      that it is the message. So where nothing is acknowledged, nothing is lost: an upstream, or a network, that ends
      each connection has no message of its own that it ends it for.
    - Of a topic of which one was given up, and none acknowledged since, the next needs one such ending. After
      `IN_A_ROW` of them the topic is barred for `BARRED` seconds: its messages are not sent then.
    """

    def __init__(self) -> None:
        self.on = False
        self.doubtful: list[Suspect] = []
        self.alone: Delivery | None = None
        # Of this connection: whether the upstream has answered everything, how often it did while messages go one by
        # one, and whether it has acknowledged a message.
        self.proved = False
        self.answers = 0
        self.vouched = False
        self._attempts = 0
        self._sent_at = 0.0
        # Before that no other message is tried in place of the doubtful ones: there are too many.
        self._others_at = 0.0
        self._oldest: Delivery | None = None
        self._known: dict[bytes, Known] = {}

    def opened(self) -> None:
        self.alone = None
        self.proved = False
        self.answers = 0
        self.vouched = False

    def answered(self) -> None:
        self.proved = True
        self.answers += 1

    def sent(self, delivery: Delivery, now: float) -> None:
        """This one is sent, and nothing else until it is acknowledged."""
        self.alone = delivery
        self._attempts = delivery.attempts
        self._sent_at = now

    def acknowledged(self) -> None:
        """The one that was alone has been, to the end, whatever the acknowledgement says."""
        alone = self.alone
        if alone is None:
            return
        self.alone = None
        self.vouched = True
        if self._known:
            self._known.pop(alone.message.topic, None)
        left: list[Suspect] = []
        for suspect in self.doubtful:
            if suspect.delivery is not alone:
                suspect.vouched = True
                left.append(suspect)
        self.doubtful = left

    def ended(self, code: int, quiet: bool, inflight: list[Delivery], now: float) -> Delivery | None:
        """The upstream has ended the connection. The message that is given up, if one is.

        `code`: of its DISCONNECT, 0: without one. `quiet`: nothing waits for an answer but messages. `inflight`: the
        unacknowledged ones, oldest first.
        """
        says = code in OF_THE_MESSAGE
        if not says and code not in PERHAPS:
            return None
        if not self.on:
            oldest = inflight[0] if inflight else None
            known = any(each.message.topic in self._known for each in inflight) if self._known else False
            self.on = oldest is not None and (says or known or oldest is self._oldest)
            self._oldest = oldest
            return None
        alone = self.alone
        if (
            alone is None
            or alone.state != SENT
            or alone.attempts == self._attempts
            or not quiet
            or now > self._sent_at + SOON
        ):
            return None
        suspect = self._suspect(alone, now)
        if suspect is None:
            return None
        suspect.endings += 1
        suspect.depth = min(self.answers, DEPTH)
        over = suspect.endings - ENDINGS
        if over >= 0:
            suspect.again_at = now + min(PAUSE * 2.0 ** min(over, 16), MAX_PAUSE)
        known = alone.message.topic in self._known
        if not says and not (over >= 0 and (known or suspect.vouched)) and not (known and suspect.vouched):
            return None
        self.doubtful.remove(suspect)
        self._give_up(alone.message.topic, now)
        return alone

    def _suspect(self, delivery: Delivery, now: float) -> Suspect | None:
        for suspect in self.doubtful:
            if suspect.delivery is delivery:
                return suspect
        if len(self.doubtful) >= MOST:
            self._others_at = now + PAUSE
            return None
        suspect = Suspect(delivery)
        suspect.vouched = self.vouched
        self.doubtful.append(suspect)
        return suspect

    def _give_up(self, topic: bytes, now: float) -> None:
        known = self._known.pop(topic, None)
        if known is None:
            known = Known()
            while len(self._known) >= TOPICS:
                del self._known[next(iter(self._known))]
        self._known[topic] = known
        known.given_up += 1
        if known.given_up >= IN_A_ROW:
            known.until = now + BARRED

    def bars(self, topic: bytes, now: float) -> bool:
        """Return whether a message of this topic (its upstream name) must not be sent now."""
        if not self._known:
            return False
        known = self._known.get(topic)
        return known is not None and now < known.until

    # -- who is next ---------------------------------------------------------------------------------------------------

    def forget_finished(self) -> None:
        """Drop the deliveries that are no longer in flight from the doubtful ones."""
        self.doubtful = [suspect for suspect in self.doubtful if suspect.delivery.state == SENT]
        if self.alone is not None and self.alone.state == DONE:
            self.alone = None

    def wants_another(self, now: float) -> bool:
        """Return whether another message has to be sent in place of the doubtful ones."""
        return bool(self.doubtful) and not self.vouched and now >= self._others_at

    def passes(self, delivery: Delivery, alike: bool) -> bool:
        """Return whether this message may be sent in their place. `alike`: it may be of the same topic as a doubtful
        one."""
        for suspect in self.doubtful:
            if suspect.delivery is delivery or (not alike and suspect.delivery.message.topic == delivery.message.topic):
                return False
        # Of one topic they stay in order [MQTT-4.6.0-1], until it is all but sure that the doubtful one never goes.
        return not alike or (
            len(self.doubtful) < ALIKE and all(suspect.endings >= ENDINGS for suspect in self.doubtful)
        )

    def _due(self, now: float) -> Suspect | None:
        for suspect in self.doubtful:
            if self.vouched or suspect.endings < ENDINGS or suspect.again_at <= now:
                return suspect
        return None

    def retried(self, now: float) -> Delivery | None:
        """The doubtful message that is tried now; None: none of them, or not before another answer."""
        suspect = self._due(now)
        return None if suspect is None or self.answers <= suspect.depth else suspect.delivery

    def asks(self, now: float) -> bool:
        suspect = self._due(now)
        return suspect is not None and self.answers <= suspect.depth

    def over(self) -> None:
        """Nothing is doubtful, and all that was in flight has been acknowledged."""
        self.on = False
        self.alone = None
        self._oldest = None

    def reset(self) -> None:
        """Another upstream, which has nothing to do with what was."""
        self.over()
        self.doubtful = []
        self._known = {}
        self._others_at = 0.0
