"""The broker's totals since its start: plain integers, changed where things happen and read by reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.ledger import DROP_CAUSES
from canopy_mqtt.core.queue_totals import QueueTotals
from canopy_mqtt.core.refusals import Refusals

if TYPE_CHECKING:
    from mypy_extensions import i64


class Counters:
    """Totals since the start. `messages_*` count PUBLISH packets, `bytes_*` everything on the wire."""

    def __init__(self) -> None:
        self.connections: i64 = 0
        self.bytes_received: i64 = 0
        self.bytes_sent: i64 = 0
        self.packets_received: i64 = 0
        # Those of QoS 1 and 2 apart; the rest of `messages_*` is QoS 0.
        self.messages_received: i64 = 0
        self.received_qos1: i64 = 0
        self.received_qos2: i64 = 0
        self.messages_sent: i64 = 0
        self.sent_qos1: i64 = 0
        self.sent_qos2: i64 = 0
        # Whole PUBLISH packets, headers included.
        self.publish_bytes_received: i64 = 0
        self.publish_bytes_sent: i64 = 0
        # Packets that are no PUBLISH, as they are queued.
        self.control_sent: i64 = 0
        # CONNECT packets, accepted or not.
        self.connects: i64 = 0
        # Sessions that ended since no client came back to them in time.
        self.sessions_expired: i64 = 0
        self.dropped: list[int] = [0] * len(DROP_CAUSES)
        self.retained_refused: i64 = 0
        # Publishes that had been here before, or had come over too many links: they went nowhere.
        self.looped: i64 = 0
        # Publishes, wills among them, and subscriptions that access control has not allowed.
        self.denied_publishes: i64 = 0
        self.denied_subscriptions: i64 = 0
        # Messages that were not sent to subscribers which access control does not let receive them.
        self.denied_deliveries: i64 = 0
        # Who was refused what, and by which rule or setting.
        self.refusals: Final = Refusals()
        # Publishes with a payload larger than `limits.max_payload_size`: they went nowhere.
        self.oversized: i64 = 0
        # How often a queue of a connected client became half full: a publisher's turn ends when it moves, so that the
        # client's writer has one. Of those, the queues in sessions: acknowledgements should have time to come, too.
        self.half_full: i64 = 0
        self.backed_up: i64 = 0
        self.protocol_errors: i64 = 0
        # What waits in all queues together; and the time of the batch, which whatever counts needs too.
        self.totals: Final = QueueTotals()

    def dropped_in_all(self) -> int:
        """Messages dropped, over all causes."""
        return sum(self.dropped)
