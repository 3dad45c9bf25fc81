"""Passes a client's PUBACK, PUBREC, PUBREL and PUBCOMP packets to the part that handles them."""

from __future__ import annotations

from mypy_extensions import i64

from broker.core.codec import reasons
from broker.core.codec.decoder import Decoder
from broker.core.codec.packets import PUBREL, Ack
from broker.core.connection.publish.acknowledging import Acknowledger
from broker.core.session.session import Session


class AckHandler:
    """Handles one connection's acknowledgements: those of the session's deliveries, and PUBREL of the client's own."""

    def __init__(self, decoder: Decoder, acknowledger: Acknowledger) -> None:
        self._decoder = decoder
        self._acknowledger = acknowledger

    def take(self, session: Session, kind: i64, now: float) -> i64:
        """Take the decoder's current frame, of that packet type, and those of four bytes behind it. How many in all."""
        decoder = self._decoder
        start: i64 = decoder.start
        stop: i64 = start
        if kind == PUBREL:
            stop = self._acknowledger.released_run(decoder.buffer, start)
        else:
            stop = session.on_acks(kind, decoder.buffer, start, now)
        if stop > start:
            decoder.end = stop
            return (stop - start) // 4
        packet_id = decoder.short_ack()
        reason_code = reasons.SUCCESS
        if packet_id <= 0:
            packet = decoder.packet()
            assert isinstance(packet, Ack)
            packet_id = packet.packet_id
            reason_code = packet.reason_code
        if kind == PUBREL:
            self._acknowledger.released(packet_id)
        else:
            session.on_ack(kind, packet_id, reason_code, now)
        return 1
