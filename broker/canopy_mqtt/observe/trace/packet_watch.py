"""Splits what one connection reads and writes into packets for traces.

A `PacketWatch` stands between a transport and its connection from the start of a trace, or of the connection, until
the last trace ends. Connections that no trace watches have none. It passes everything on unchanged, in the same call;
an error in it ends the watch, and never the connection.

Promises: it keeps at most `most` bytes of a packet, and nothing of packets that no trace wants. Each trace is a bit of
a mask, so that one check serves all of them.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from mypy_extensions import i64, mypyc_attr

from canopy_mqtt.core.codec import packets
from canopy_mqtt.core.codec.framing import frame_body, topic_end
from canopy_mqtt.core.codec.primitives import Reader
from canopy_mqtt.core.codec.properties import TOPIC_ALIAS, PropertyReader
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.net.connections.ends import GONE

MAX_KNOWN_TOPICS: Final = 10_000
MAX_KNOWN_TOPIC_BYTES: Final = 256
"""Topics that are remembered with the traces that want them, and bytes of each: 4 MB in all."""

MARKED: Final = 1 << 61
"""The bit of packets that contain the marker, above the bits of the traces."""

MAX_MARKER_SEARCH_BYTES: Final = 8_192
"""Bytes of a PUBLISH that are searched for the marker: properties stand before the payload."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PacketSink:
    """Gets the packets of one connection."""

    def packet(self, inward: bool, data: bytes, size: int, mask: int) -> None:
        """Called for a packet of `size` bytes that the traces of `mask` want; `data` is its beginning."""
        raise NotImplementedError

    def wanting(self, topic: bytes) -> int:
        """Return the mask of the traces that want a PUBLISH to this topic."""
        raise NotImplementedError

    def asking(self, data: bytes) -> int:
        """Return the mask of the traces that want this SUBSCRIBE or UNSUBSCRIBE for its filters."""
        raise NotImplementedError

    def unreadable(self, inward: bool) -> None:
        """Called when the bytes in this direction are no MQTT packets; later ones are not split."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """Called when the watch has raised, which ends it. Must not raise."""
        raise NotImplementedError


class Direction:
    """The state of one direction of a connection: its incomplete packet, and the aliases and identifiers in use."""

    def __init__(self, inward: bool) -> None:
        self.inward = inward
        # The kept beginning of an incomplete packet; its size, 0: not known yet; the bytes of it that have come.
        self.part = bytearray()
        self.total: i64 = 0
        self.seen: i64 = 0
        self.over = False
        # Topic aliases of 5.0 (section 3.3.2.3.4), while a trace is about topics.
        self.aliases: dict[int, bytes] = {}
        # Packet identifiers of this direction, with the traces that want the answers to them.
        self.asked: dict[int, int] = {}


class PacketWatch:
    """Between the transport and the connection: an `asyncio.Protocol` by its methods, as `Connection` is."""

    def __init__(self, connection: Any, sink: PacketSink, known: dict[bytes, int], most: int) -> None:
        """`connection`: a `Connection`, or what a test has in its place. `known`: topic → mask, shared by all watches,
        and emptied when a trace begins or ends."""
        self.connection: Any = connection
        self.sink = sink
        self._known = known
        self._most: i64 = most
        # The traces that want every packet of this connection; True if there are traces of topics.
        self.every: i64 = 0
        self.topical = False
        # A trace wants each PUBLISH of 5.0 that contains these bytes; empty: no trace does.
        self.marker = b""
        self.version: i64 = 0
        """The protocol level; 0 before the CONNECT, or if its version is unknown."""
        self._in = Direction(True)
        self._out = Direction(False)
        self._transport: Any = None

    def begin(self) -> None:
        """Take the place of the connection at its transport. The bytes of its incomplete packet count as read now."""
        stream = self.connection.stream
        self._transport = stream.transport
        self.version = self.connection.protocol.version
        begun = self.connection.protocol.decoder.begun()
        if begun:
            self._look(self._in, begun)
        self._transport.set_protocol(self)
        stream.send = self._write

    def end(self) -> None:
        """Give the connection its place at the transport back."""
        transport = self._transport
        if transport is None:
            return
        self._transport = None
        stream = self.connection.stream
        stream.send = transport.write
        if self.connection.state != GONE:
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
        """Watch the data, then write it to the transport. `Stream.write` calls this in place of the transport."""
        transport = self._transport  # what the sink does may end this watch
        self._look(self._out, data)
        transport.write(data)

    # -- looking -------------------------------------------------------------------------------------------------------

    def _look(self, way: Direction, data: bytes) -> None:
        if way.over:
            return
        try:
            self._cut(way, data)
        except Exception as error:
            self._in.over = self._out.over = True
            self.sink.failed(error)

    def _cut(self, way: Direction, data: bytes) -> None:
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

    def _packet(self, way: Direction, data: bytes, start: i64, end: i64, size: i64) -> None:
        """Pass on the packet at `start`, of which `data` has only the bytes before `end`."""
        if data[start] >> 4 == packets.CONNECT and way.inward:
            self.version = protocol_level(data, start, end)
        mask: i64 = self.every
        if self.topical:
            mask |= self._by_topic(way, data, start, end)
        if (
            self.marker
            and data[start] >> 4 == packets.PUBLISH
            and self.version >= packets.V5
            and data.find(self.marker, start, min(end, start + MAX_MARKER_SEARCH_BYTES)) >= 0
        ):
            mask |= MARKED
        if mask != 0:
            self.sink.packet(way.inward, data[start : min(end, start + self._most)], size, mask)

    def _by_topic(self, way: Direction, data: bytes, start: i64, end: i64) -> i64:
        """Return the traces that want this packet for its topic, or for the topic of the packet that it answers."""
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
        # PUBREL has the direction of its PUBLISH, the other answers have the opposite one.
        asked = way.asked if kind == packets.PUBREL else self._in.asked if way is self._out else self._out.asked
        if not asked:
            return 0
        if kind == packets.PUBREC or kind == packets.PUBREL:
            return asked.get(packet_id, 0)
        return asked.pop(packet_id, 0)

    def _publish(self, way: Direction, data: bytes, start: i64, end: i64) -> i64:
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
            if len(topic) <= MAX_KNOWN_TOPIC_BYTES:
                if len(self._known) >= MAX_KNOWN_TOPICS:
                    self._known.clear()
                self._known[topic] = mask
        if qos > 0:
            _note(way.asked, data[stop] << 8 | data[stop + 1], mask)
        return mask


def _note(asked: dict[int, int], packet_id: int, mask: int) -> None:
    """Note that a packet which these traces want, or none, uses the identifier from now on."""
    if mask != 0:
        asked[packet_id] = mask
    elif asked:
        asked.pop(packet_id, None)


def packet_size(data: bytes, at: i64, end: i64) -> i64:
    """Return the size of the packet that begins at `at` (section 2.1.4); 0: its fixed header is incomplete, -1: it is
    no packet."""
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
    """Return the version that a CONNECT asks for (section 3.1.2.2); 0: an unknown one."""
    body = frame_body(data, start)
    if body + 2 > end:
        return 0
    at = topic_end(data, body)
    if at >= end:
        return 0
    level: i64 = data[at] & 0x7F
    return level if packets.V31 <= level <= packets.V5 else 0


def topic_alias(data: bytes, at: int, end: int) -> int:
    """Return the topic alias among the properties whose length stands at `at`; 0: there is none before `end`."""
    reader = Reader(data, at, end)
    try:
        length = reader.varint()
        section = PropertyReader(data, reader.position, min(reader.position + length, end), packets.PUBLISH)
        while section.next():
            if section.identifier == TOPIC_ALIAS:
                return section.number
    except ProtocolError:
        pass  # the broker ends the connection, or only the beginning of the packet is kept
    return 0
