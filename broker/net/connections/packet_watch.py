"""Splits what one connection reads and writes into packets for traces.

A `PacketWatch` is between a transport and its connection from the start of a trace, or of the connection, until the
last trace ends; other connections do not know of it. It passes everything on unchanged, in the same call; an error in
it ends the watch, and never the connection.

Promises: it keeps at most `most` bytes of a packet, and nothing of packets that no trace wants. A trace is a bit of a
mask, so one check serves all of them.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from mypy_extensions import i64, mypyc_attr

from broker.core.codec import packets
from broker.core.codec.framing import frame_body
from broker.core.codec.primitives import Reader
from broker.core.codec.properties import BYTE, FOUR_BYTES, STRING_PAIR, TABLE, TOPIC_ALIAS, TWO_BYTES, VARINT
from broker.core.codec.publish_layout import topic_end

MOST_KNOWN: Final = 10_000
LONGEST_KNOWN: Final = 256
"""Topics that are remembered with the traces that want them, and bytes of the longest: 4 MB in all."""


MARKED: Final = 1 << 61
"""The bit of whoever wants the messages with a mark; above those of traces."""

MARK_WITHIN: Final = 8_192
"""Bytes of a PUBLISH in which the mark is looked for: properties stand before the payload."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PacketSink:
    """Who gets the packets of one connection."""

    def packet(self, inward: bool, data: bytes, size: int, mask: int) -> None:
        """A packet of `size` bytes, of which `data` is the beginning, which the traces of `mask` want."""
        raise NotImplementedError

    def wanting(self, topic: bytes) -> int:
        raise NotImplementedError

    def asking(self, data: bytes) -> int:
        raise NotImplementedError

    def unreadable(self, inward: bool) -> None:
        """What comes in this direction are no packets (any more): nothing more of it is told."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """The looking has raised, and is over. Must not raise."""
        raise NotImplementedError


class Way:
    """One direction of a connection: what of a packet has come, and what its packets refer to."""

    def __init__(self, inward: bool) -> None:
        self.inward = inward
        # The beginning of a packet whose rest has not come, as much of it as is kept; its size, 0: not known yet;
        # how much of it has come.
        self.part = bytearray()
        self.total: i64 = 0
        self.seen: i64 = 0
        self.over = False
        # Topic aliases of 5.0 (section 3.3.2.3.4), while a trace is about topics.
        self.aliases: dict[int, bytes] = {}
        # Packet identifiers that are answered in the other direction → the traces that want the answers.
        self.asked: dict[int, int] = {}


class PacketWatch:
    """Between the transport and the connection: an `asyncio.Protocol` by its methods, as `Connection` is."""

    def __init__(self, connection: Any, sink: PacketSink, known: dict[bytes, int], most: int) -> None:
        """`connection`: a `Connection`, or what a test has in its place. `known`: topic → mask, shared by all watches,
        and emptied by whoever begins or ends a trace."""
        self.connection: Any = connection
        self.sink = sink
        self._known = known
        self._most: i64 = most
        # The traces that want every packet of this connection; whether there are some about topics.
        self.every: i64 = 0
        self.topical = False
        # What a PUBLISH of 5.0 has in it that somebody wants for that; empty: nobody does.
        self.marker = b""
        self.version: i64 = 0
        """The protocol level; 0: no CONNECT has come, or one of a version that nobody knows."""
        self._in = Way(True)
        self._out = Way(False)
        self._transport: Any = None

    def begin(self) -> None:
        """Take the place of the connection at its transport. What it holds of unfinished packets counts as read now."""
        stream = self.connection.stream
        self._transport = stream.transport
        self.version = self.connection.protocol.version
        begun = self.connection.protocol.decoder.begun()
        if begun:
            self._look(self._in, begun)
        self._transport.set_protocol(self)
        stream.send_by(self._write)

    def end(self) -> None:
        transport = self._transport
        if transport is None:
            return
        self._transport = None
        stream = self.connection.stream
        stream.send_by(transport.write)
        if not stream.lost:
            transport.set_protocol(self.connection)

    # -- what the transport calls --------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._look(self._in, data)
        self.connection.data_received(data)

    def eof_received(self) -> bool:
        return bool(self.connection.eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self.connection.pause_writing()

    def resume_writing(self) -> None:
        self.connection.resume_writing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Never called: the connection was made before."""

    def _write(self, data: bytes) -> None:
        """What `Stream.write` calls in place of the transport."""
        transport = self._transport  # the look may be the last
        self._look(self._out, data)
        transport.write(data)

    # -- looking -------------------------------------------------------------------------------------------------------

    def _look(self, way: Way, data: bytes) -> None:
        if way.over:
            return
        try:
            self._cut(way, data)
        except Exception as error:
            self._in.over = self._out.over = True
            self.sink.failed(error)

    def _cut(self, way: Way, data: bytes) -> None:
        at: i64 = 0
        most = self._most
        if way.total > 0:
            step: i64 = min(way.total - way.seen, len(data))
            room: i64 = min(step, most - len(way.part))
            if room > 0:
                way.part += data[:room]
            way.seen += step
            if way.seen < way.total:
                return
            total: i64 = way.total
            whole = bytes(way.part)
            way.part = bytearray()
            way.total = 0
            self._packet(way, whole, 0, len(whole), total)
            at = step
        elif way.part:
            # The beginning of a fixed header.
            data = bytes(way.part) + data
            way.part = bytearray()
        size: i64 = len(data)
        while at < size and not way.over:
            length = packet_size(data, at, size)
            if length < 0:
                way.over = True
                self.sink.unreadable(way.inward)
            elif length == 0:
                way.part += data[at:]
                return
            elif length > size - at:
                way.total = length
                way.seen = size - at
                way.part += data[at : min(size, at + most)]
                return
            else:
                self._packet(way, data, at, at + length, length)
                at += length

    def _packet(self, way: Way, data: bytes, start: i64, end: i64, size: i64) -> None:
        """The packet at `start`, of which `data` has no more than up to `end`."""
        if data[start] >> 4 == packets.CONNECT and way.inward:
            self.version = protocol_level(data, start, end)
        mask: i64 = self.every
        if self.topical:
            mask |= self._by_topic(way, data, start, end)
        if (
            self.marker
            and data[start] >> 4 == packets.PUBLISH
            and self.version >= packets.V5
            and data.find(self.marker, start, min(end, start + MARK_WITHIN)) >= 0
        ):
            mask |= MARKED
        if mask != 0:
            self.sink.packet(way.inward, data[start : min(end, start + self._most)], size, mask)

    def _by_topic(self, way: Way, data: bytes, start: i64, end: i64) -> i64:
        """The traces that want this packet for its topic, or for that of the packet which it answers."""
        kind: i64 = data[start] >> 4
        if kind == packets.PUBLISH:
            return self._publish(way, data, start, end)
        body = frame_body(data, start)
        if kind < packets.PUBACK or kind > packets.UNSUBACK or end - body < 2:
            return 0
        packet_id = data[body] << 8 | data[body + 1]
        if kind == packets.SUBSCRIBE or kind == packets.UNSUBSCRIBE:
            mask = self.sink.asking(data[start:end])
            _note(way.asked, packet_id, mask)
            return mask
        # PUBREL goes the way of its PUBLISH, the others against it.
        asked = way.asked if kind == packets.PUBREL else self._in.asked if way is self._out else self._out.asked
        if not asked:
            return 0
        if kind == packets.PUBREC or kind == packets.PUBREL:
            return asked.get(packet_id, 0)
        return asked.pop(packet_id, 0)

    def _publish(self, way: Way, data: bytes, start: i64, end: i64) -> i64:
        body = frame_body(data, start)
        if end - body < 2:
            return 0
        stop = topic_end(data, body)
        qos: i64 = data[start] >> 1 & 3
        behind: i64 = stop + 2 if qos > 0 else stop
        if behind > end:
            return 0
        topic = data[body + 2 : stop]
        if self.version >= packets.V5 and behind < end and data[behind] != 0:
            alias = topic_alias(data, behind, end)
            if alias > 0 and topic:
                way.aliases[alias] = topic
            elif alias > 0:
                topic = way.aliases.get(alias, b"")
        mask: i64 = self._known.get(topic, -1)
        if mask < 0:
            mask = self.sink.wanting(topic)
            if len(topic) <= LONGEST_KNOWN:
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()
                self._known[topic] = mask
        if qos > 0:
            _note(way.asked, data[stop] << 8 | data[stop + 1], mask)
        return mask


def _note(asked: dict[int, int], packet_id: int, mask: int) -> None:
    """The identifier is in use by a packet that these traces want, or by one that none does."""
    if mask != 0:
        asked[packet_id] = mask
    elif asked:
        asked.pop(packet_id, None)


def packet_size(data: bytes, at: i64, end: i64) -> i64:
    """The size of the packet that begins at `at` (section 2.1.4); 0: its fixed header is not whole, -1: it is none."""
    here: i64 = at + 1
    length: i64 = 0
    shift: i64 = 0
    while here < end:
        digit: i64 = data[here]
        here += 1
        length |= (digit & 127) << shift
        if digit < 128:
            return here - at + length
        shift += 7
        if shift > 21:
            return -1
    return 0


def protocol_level(data: bytes, start: i64, end: i64) -> i64:
    """The version that a CONNECT asks for (section 3.1.2.2); 0: none that is known."""
    body = frame_body(data, start)
    if body + 2 > end:
        return 0
    at = topic_end(data, body)
    if at >= end:
        return 0
    level: i64 = data[at] & 0x7F
    return level if packets.V31 <= level <= packets.V5 else 0


def topic_alias(data: bytes, at: int, end: int) -> int:
    """The topic alias among the properties whose length stands at `at`; 0: there is none.

    Raises:
        MalformedPacket: they cannot be parsed.
    """
    reader = Reader(data, at, end)
    length = reader.varint()
    reader.end = min(reader.position + length, end)
    while reader.position < reader.end:
        identifier = reader.varint()
        row = TABLE.get(identifier)
        if row is None:
            return 0
        kind = row.wire_type
        if identifier == TOPIC_ALIAS:
            return reader.two_bytes()
        if kind == BYTE:
            reader.byte()
        elif kind == TWO_BYTES:
            reader.two_bytes()
        elif kind == FOUR_BYTES:
            reader.four_bytes()
        elif kind == VARINT:
            reader.varint()
        else:
            reader.binary()
            if kind == STRING_PAIR:
                reader.binary()
    return 0
