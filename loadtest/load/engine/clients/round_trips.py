"""Requests and their answers (MQTT 5.0, 4.10): response topics, correlation data, round trips.

Owns: what a client that asks knows of its answers, and what one that answers writes. A request's correlation data is
its mark, so that whoever answers it, our own client or a service, sends back which one it was and when it was due.

Promises: each request counts as answered once; further answers are counted apart. Memory is bounded as it is for
deliveries (``ledger.deliveries.Gaps``). A client that answers keeps no request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.core.codec import encoder
from broker.core.codec.errors import ProtocolError
from broker.core.codec.packets import Publish
from broker.core.codec.properties import CORRELATION_DATA, RESPONSE_TOPIC, decode_forward, encode_forward
from loadtest.load.engine.clients.connection import Wire
from loadtest.load.engine.clients.sending import Session
from loadtest.load.ledger.counters import Tally, add
from loadtest.load.ledger.deliveries import Gaps
from loadtest.load.ledger.mark import SIZE, Mark
from loadtest.load.scenario.plan import Plan
from loadtest.load.scenario.schema import Reply

MOST_BEHIND: Final = 16_777_216
"""Bytes of answers to what one read brings; while the broker does not take them, nothing more is read."""

TAG: Final = b"answer"
"""What stands in the payloads of answers, again and again, behind their number."""


class Asked:
    """What one client knows of the answers to its requests. `first` and `end`: its streams."""

    def __init__(self, run: int, first: int, end: int, tally: Tally) -> None:
        self.answered = 0
        self._mark = Mark(run)
        self._first = first
        self._end = end
        self._tally = tally
        self._next: dict[int, int] = {}
        self._gaps: dict[int, Gaps] = {}

    def take(self, properties: bytes, now: int) -> bool:
        """Whether a PUBLISH with these properties is an answer to one of its requests; it is counted then."""
        try:
            correlation = decode_forward(properties).binaries.get(CORRELATION_DATA, b"")
        except ProtocolError:
            return False
        mark = self._mark
        if len(correlation) != SIZE or not mark.read(correlation) or not self._first <= mark.stream < self._end:
            return False
        if self._is_first(int(mark.stream), int(mark.sequence)):
            self.answered += 1
            self._tally.answered += 1
            add(self._tally.round_trips, now - int(mark.time), 1)
        else:
            self._tally.answered_again += 1
        return True

    def _is_first(self, stream: int, sequence: int) -> bool:
        following = self._next.get(stream, 0)
        if sequence >= following:
            self._next[stream] = sequence + 1
            if sequence > following:
                self._gaps.setdefault(stream, Gaps()).add(following, sequence)
            return True
        gaps = self._gaps.get(stream)
        return gaps is not None and gaps.fill(sequence)


def asked(plan: Plan, group: int, number: int, tally: Tally) -> Asked | None:
    streams = [
        entry.stream(number, at)
        for entry in plan.published[group]
        if entry.publish is not None and entry.publish.reply_to is not None
        for at in (0, entry.topics - 1)
    ]
    return Asked(plan.mark_run, min(streams), max(streams) + 1, tally) if streams else None


class Answers:
    """What one client answers to requests."""

    def __init__(self, reply: Reply, version: int, session: Session, error: Callable[[str], None]) -> None:
        self.wire: Wire | None = None
        self.maximum = 65_535
        """Messages with QoS 1 and 2 that the broker lets be under way."""
        self._qos = reply.qos
        self._size = reply.size
        self._filler = TAG * (reply.size // len(TAG) + 1)
        self._number = 0
        self._version = version
        self._session = session
        self._error = error

    def hear(self, packet: Publish) -> None:
        """Answer a PUBLISH that has a response topic, with the acknowledgements of what was read with it."""
        wire, session = self.wire, self._session
        try:
            held = decode_forward(packet.properties)
        except ProtocolError:
            return
        topic = held.strings.get(RESPONSE_TOPIC)
        if wire is None or not topic:
            return
        if wire.behind >= MOST_BEHIND:
            self._error("answers that were not sent: too many requests at once")
            return
        identifier = 0
        if self._qos:
            if len(session.replying) + len(session.unacked) >= self.maximum:
                self._error("answers that were not sent: the broker has not acknowledged enough of them")
                return
            identifier = session.identifier()
            session.reserved.add(identifier)
            session.replying.add(identifier)
        # Each has its number, so that no two of them are alike.
        payload = (b"%d " % self._number + self._filler)[: self._size]
        self._number += 1
        properties = encode_forward(correlation_data=held.binaries.get(CORRELATION_DATA))
        answer = Publish(topic.encode(), payload, self._qos, False, False, identifier, properties, 0, -1)
        wire.write_behind(encoder.publish(answer, self._version))
