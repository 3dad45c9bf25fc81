"""Requests and their answers (MQTT 5.0, 4.10): response topics, correlation data, round trips.

Owns: the account of a client that asks, and the answers of one that is asked. A request's correlation data is its mark,
so that the answer, of our own client or of a service, says which request it was and when it was due.

Promises: each request counts as answered once; further answers are counted apart. Memory is bounded as it is for
deliveries (``ledger.deliveries.Gaps``). A client that answers keeps no request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from canopy_load.engine.clients.connection import ClientConnection
from canopy_load.engine.clients.sending import Session
from canopy_load.ledger.counters import Tally, add
from canopy_load.ledger.deliveries import Gaps
from canopy_load.ledger.mark import SIZE, Mark
from canopy_load.scenario.plan import Plan
from canopy_load.scenario.scenario_schema import Reply
from canopy_mqtt.core.codec import encoder
from canopy_mqtt.core.codec.packets import Publish
from canopy_mqtt.core.codec.properties import CORRELATION_DATA, RESPONSE_TOPIC, decode_forward, encode_forward
from canopy_mqtt.core.codec.reason_codes import ProtocolError

MAX_ANSWER_BYTES: Final = 16_777_216
"""Bytes of answers to the requests of one read; while the broker does not take them, the client reads no more."""

TAG: Final = b"answer"
"""The bytes that fill the payloads of answers behind their number."""


class Requester:
    """One client's account of the answers to its requests. `first` and `end`: its streams."""

    def __init__(self, run: int, first: int, end: int, tally: Tally) -> None:
        self.answered = 0
        self._mark = Mark(run)
        self._first = first
        self._end = end
        self._tally = tally
        self._next: dict[int, int] = {}
        self._gaps: dict[int, Gaps] = {}

    def take(self, properties: bytes, now: int) -> bool:
        """Count a PUBLISH with these properties if it answers one of the client's requests; return True if it does."""
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


def asked(plan: Plan, group: int, number: int, tally: Tally) -> Requester | None:
    streams = [
        entry.stream(number, at)
        for entry in plan.published[group]
        if entry.publish is not None and entry.publish.reply_to is not None
        for at in (0, entry.topics - 1)
    ]
    return Requester(plan.mark_run, min(streams), max(streams) + 1, tally) if streams else None


class Responder:
    """One client's answers to requests."""

    def __init__(self, reply: Reply, version: int, session: Session, error: Callable[[str], None]) -> None:
        self.wire: ClientConnection | None = None
        self.maximum = 65_535
        """The broker's Receive Maximum: messages with QoS 1 and 2 under way."""
        self._qos = reply.qos
        self._size = reply.size
        self._filler = TAG * (reply.size // len(TAG) + 1)
        self._number = 0
        self._version = version
        self._session = session
        self._error = error

    def hear(self, packet: Publish) -> None:
        """Answer a PUBLISH that has a response topic, in one write with the acknowledgements of the same read."""
        wire, session = self.wire, self._session
        try:
            held = decode_forward(packet.properties)
        except ProtocolError:
            return
        topic = held.strings.get(RESPONSE_TOPIC)
        if wire is None or not topic:
            return
        if wire.behind >= MAX_ANSWER_BYTES:
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
