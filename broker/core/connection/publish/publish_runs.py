"""Consecutive QoS 1 or 2 publishes that differ only in payload and packet identifier, and go to one receiver.

Owns what is done for all of them together: routing, sending and acknowledging.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.core.codec.decoder import Decoder
from broker.core.codec.publish_layout import head as frame_head
from broker.core.connection.publish.acknowledging import Acknowledger
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.message import Message
from broker.core.routing.router import Router
from broker.core.session.session import Session

IN_ONE_PIECE: Final = 12
"""Publishes in a row from which on one piece of all their frames costs less than each frame by itself."""


class RunPublisher:
    """Publishes the runs of one connection."""

    def __init__(self, router: Router, outbox: Outbox, decoder: Decoder, acknowledger: Acknowledger) -> None:
        self._router = router
        self._outbox = outbox
        self._decoder = decoder
        self._acknowledger = acknowledger

    def publish(
        self, session: Session, receiver: Session, topic: bytes, head: bytes, count: i64, payload_at: i64
    ) -> i64:
        """Route up to `count` frames that are alike, from the current one on, to the one who gets them.

        `head`: the bytes of the first before its packet identifier; `payload_at`: where its payload begins in it.
        Returns how many there were: fewer, and perhaps none, where an identifier is in use.
        """
        decoder = self._decoder
        buffer = decoder.buffer
        acknowledger = self._acknowledger
        qos: i64 = 1 if decoder.header == 0x32 else 2
        start: i64 = decoder.start
        length: i64 = decoder.end - start
        id_at: i64 = len(head)
        v5 = session.v5
        sent_v5 = receiver.v5
        sent_head = head
        if sent_v5 != v5:
            sent_head = frame_head(decoder.header, topic, length - payload_at + (1 if sent_v5 else 0))
        messages: list[Message] = []
        packet_ids: list[bytes] = []
        at: i64 = start
        while count > 0:
            if qos == 2:
                packet_id: i64 = (buffer[at + id_at] << 8) | buffer[at + id_at + 1]
                if acknowledger.knows(packet_id):
                    break
                acknowledger.remember(packet_id)
            message = Message(topic, buffer[at + payload_at : at + length], qos, False, b"", 0.0, session.client_id)
            message.adopt_head(sent_head, sent_v5)
            messages.append(message)
            packet_ids.append(buffer[at + id_at : at + id_at + 2])
            at += length
            count -= 1
        count = len(messages)
        if count > 0:
            decoder.end = at
            self._router.work += count
            if count < IN_ONE_PIECE:
                for message in messages:
                    receiver.send_now(message, qos)
                acknowledger.answer_run(qos, packet_ids)
                return count
            if sent_v5 == v5:
                frames = bytearray(buffer[start:at])
            else:
                # The packet identifiers follow; 5.0 has the length of no properties behind them.
                glue = sent_head + (b"\0\0\0" if sent_v5 else b"\0\0")
                frames = bytearray(glue + glue.join([message.payload() for message in messages]))
            receiver.send_run(messages, qos, frames, len(sent_head))
            acknowledger.answer_run(qos, packet_ids)
        return count
