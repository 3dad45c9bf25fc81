"""One connection of a simulated client: bytes in, judgements out.

Owns: the asyncio protocol, the acknowledgements that QoS 1 and 2 ask for, and reading slowly. Compiled.

Promises: a read is taken apart by the broker's own decoder, strictly: a packet that the specification forbids ends the
connection with the reason in `fault`. All acknowledgements of a read go out in one write.

Packets other than PUBLISH and acknowledgements are handed on to ``client``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from canopy_load.engine.clients.sending import Outlet, Sender, Session
from canopy_load.ledger.counters import Tally
from canopy_load.ledger.deliveries import Judge, Streams
from canopy_mqtt.core.codec import encoder
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, Ack, Packet, Publish
from canopy_mqtt.core.codec.properties import decode_forward
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.ledger import LOST_NAME

if TYPE_CHECKING:
    from mypy_extensions import i64

MAX_PACKET: Final = 268_435_460
WRITE_HIGH: Final = 1 << 18


def clock() -> int:
    """Microseconds of the monotonic clock, which all processes of the system share."""
    return time.monotonic_ns() // 1000


class ClientConnection(Outlet):
    """A connection: an `asyncio.Protocol` by its methods, not by inheritance (it is compiled)."""

    def __init__(
        self,
        version: int,
        judge: Judge | None,
        streams: Streams,
        tally: Tally,
        session: Session,
        on_packet: Callable[[Packet], None],
        on_closed: Callable[[str], None],
    ) -> None:
        super().__init__()
        self.version = version
        self.judge = judge
        self.streams = streams
        self.tally = tally
        self.session = session
        self.on_packet = on_packet
        self.on_closed = on_closed
        self.on_made: Callable[[], None] | None = None
        self.senders: list[Sender] = []
        self.decoder = Decoder(MAX_PACKET, False, version)
        self.transport: asyncio.Transport | None = None
        self.fault = ""
        self.answered: Callable[[bytes, int], bool] | None = None
        """Takes the properties of a PUBLISH that answers a request."""
        self.asked: Callable[[Publish], None] | None = None
        """Takes a PUBLISH that may be a request."""
        self.behind: i64 = 0
        """Bytes of answers to the requests in the present read."""
        self.read_rate = 0.0
        """PUBLISH packets a second; 0: as they come."""
        self.frozen = False
        self._acks: list[bytes] = []
        # What stood before the payload of the last PUBLISH with QoS 0, its topic, and how long it was in all.
        self._head = b""
        self._head_topic = b""
        self._whole: i64 = 0
        self._reading = True

    # -- what asyncio calls --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH)
        if self.on_made is not None:
            self.on_made()

    def data_received(self, data: bytes) -> None:
        now: i64 = time.monotonic_ns() // 1000
        self.tally.bytes_received += len(data)
        decoder = self.decoder
        publishes: i64 = 0
        try:
            decoder.feed(data)
            while decoder.next_frame():
                header: i64 = decoder.header
                if header == 0x30:
                    publishes += self._plain_publishes(decoder, now)
                    continue
                if header >> 4 == 3:
                    publishes += 1
                    self._publish(decoder.publish(), now)
                    continue
                identifier = decoder.short_ack()
                if identifier >= 0:
                    self._acked(header >> 4, identifier, 0)
                else:
                    self._other(decoder.packet())
        except ProtocolError as error:
            self.fail(f"the broker broke the protocol: {error}")
            return
        if self._acks:
            self.write(b"".join(self._acks))
            self._acks = []
            self.behind = 0
        if self.read_rate > 0.0 and publishes and not self.frozen:
            self._rest(float(publishes) / self.read_rate)
        if self.streams.woken:
            pump_woken(self.streams)
        for sender in self.senders:
            if sender.qos > 0:
                sender.pump(now)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.on_closed(self.fault or (f"connection lost: {exc}" if exc else "the broker closed the connection"))

    def pause_writing(self) -> None:
        """The transport has more than it can send. A client that answers requests stops reading meanwhile."""
        self.paused = True
        if self.asked is not None:
            self._pause()

    def resume_writing(self) -> None:
        self.paused = False
        if self.asked is not None and not self.frozen:
            self._resume()
        now: i64 = time.monotonic_ns() // 1000
        for sender in self.senders:
            sender.pump(now)

    # -- what the client calls -----------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        transport = self.transport
        if transport is not None:
            self.tally.bytes_sent += len(data)
            transport.write(data)

    def write_behind(self, data: bytes) -> None:
        """Send with the acknowledgements of the present read; `behind` grows by it."""
        self.behind += len(data)
        self._acks.append(data)

    def fail(self, why: str) -> None:
        """End the connection, at once and without a word."""
        if not self.fault:
            self.fault = why
        if self.transport is not None:
            self.transport.abort()

    def freeze(self) -> None:
        self.frozen = True
        self._pause()

    def read_freely(self) -> None:
        self.frozen = False
        self.read_rate = 0.0
        self._resume()

    def _rest(self, seconds: float) -> None:
        self._pause()
        asyncio.get_running_loop().call_later(seconds, self._rested)

    def _rested(self) -> None:
        if not self.frozen:
            self._resume()

    def _pause(self) -> None:
        if self._reading and self.transport is not None:
            self._reading = False
            self.transport.pause_reading()

    def _resume(self) -> None:
        if not self._reading and self.transport is not None:
            self._reading = True
            self.transport.resume_reading()

    # -- packets -------------------------------------------------------------------------------------------------------

    def _plain_publishes(self, decoder: Decoder, now: i64) -> i64:
        """A PUBLISH with QoS 0, and those right behind it that are the same bytes up to the payload: how many.

        The decoder is asked about the first alone. It is of another compile unit, where each call costs as much as all
        that is done here with a message.
        """
        data: bytes = decoder.buffer
        at: i64 = decoder.start
        count: i64 = 0
        if not self._head or data[at : at + len(self._head)] != self._head:
            end: i64 = decoder.end
            packet: Publish = decoder.publish()
            self._publish(packet, now)
            if packet.properties or self.judge is None:
                self._head = b""
                return 1
            self._head = data[at : end - len(packet.payload)]
            self._head_topic = packet.topic
            self._whole = end - at
            at = end
            count = 1
        head = self._head
        judge = self.judge
        assert judge is not None  # or there were no head
        size: i64 = len(head)
        whole = self._whole
        # The head says how long the packet is.
        while data[at : at + size] == head and at + whole <= len(data):
            judge.receive(self._head_topic, data[at + size : at + whole], 0, False, False, now)
            at += whole
            count += 1
        decoder.end = at
        return count

    def _publish(self, packet: Publish, now: i64) -> None:
        qos = packet.qos
        if qos == 1:
            self._acks.append(encoder.ack(PUBACK, packet.packet_id, 0, self.version))
        elif qos == 2:
            self._acks.append(encoder.ack(PUBREC, packet.packet_id, 0, self.version))
            if packet.packet_id in self.session.taken:
                return
            self.session.taken.add(packet.packet_id)
        if packet.properties and self.answered is not None and self.answered(packet.properties, now):
            return
        judge = self.judge
        if judge is None:
            self.streams.foreign += 1
            return
        if packet.properties:
            judge.told_lost += told(packet.properties)
        judge.receive(packet.topic, packet.payload, qos, packet.retain, packet.dup, now)
        if self.asked is not None and packet.properties:
            self.asked(packet)

    def _acked(self, kind: int, identifier: int, reason: int) -> None:
        if kind == PUBREL:
            self.session.taken.discard(identifier)
            self._acks.append(encoder.ack(PUBCOMP, identifier, 0, self.version))
            return
        outgoing = self.session.unacked.get(identifier)
        if outgoing is None:
            if identifier in self.session.replying:
                self.session.replying.discard(identifier)
                self.session.reserved.discard(identifier)
            elif kind == PUBREC:
                self._acks.append(encoder.ack(PUBREL, identifier, 0, self.version))
            return
        if kind == PUBREC and reason < 0x80:
            outgoing.received = True
            outgoing.frame = b""
            self._acks.append(encoder.ack(PUBREL, identifier, 0, self.version))
            return
        del self.session.unacked[identifier]
        outgoing.sender.done(outgoing, reason)

    def _other(self, packet: Packet) -> None:
        if isinstance(packet, Ack):
            self._acked(packet.kind, packet.packet_id, packet.reason_code)
        else:
            self.on_packet(packet)


def pump_woken(streams: Streams) -> None:
    """Let publishers go on whose messages have come back."""
    woken = streams.woken
    streams.woken = []
    now = clock()
    for source in woken:
        source.waiting = False
        if isinstance(source, Sender):
            source.pump(now)


def told(properties: bytes) -> int:
    """Return the number of losses in the user properties `canopy-lost` (`count;cause`) of a PUBLISH."""
    if LOST_NAME not in properties:
        return 0
    total = 0
    for name, value in decode_forward(properties).user:
        if name == "canopy-lost":
            count, _, _ = value.partition(";")
            if count.isdecimal():
                total += int(count)
    return total
