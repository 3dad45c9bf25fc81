"""Reads the topic filters of a SUBSCRIBE or UNSUBSCRIBE one at a time (sections 3.8.3 and 3.10.3).

A packet may contain a quarter of a million filters. They are read in turns, first to validate them and then to act on
them, without an object for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from canopy_mqtt.core.codec.packets import SUBSCRIBE, V5, SubscriptionRequest
from canopy_mqtt.core.codec.primitives import utf8
from canopy_mqtt.core.codec.properties import Properties
from canopy_mqtt.core.codec.reason_codes import MalformedPacket, ProtocolViolation
from canopy_mqtt.core.codec.topic_names import SHARE_PREFIX, has_control, parse_shared, scan_filter, validate_filter

if TYPE_CHECKING:
    from mypy_extensions import i64


class FilterList:
    """The payload of one packet of the given `kind`, and a cursor over it.

    After `next` said True the current filter is `data[filter_at:filter_end]`, with its subscription options in
    `options` (SUBSCRIBE alone). The packet's bytes stay as they are while this lasts: it refers to them.
    """

    def __init__(
        self, kind: int, version: int, packet_id: int, properties: Properties, data: bytes, start: i64, end: i64
    ) -> None:
        if start >= end:  # [MQTT-3.8.3-2] [MQTT-3.10.3-2]
            raise ProtocolViolation("SUBSCRIBE or UNSUBSCRIBE without a topic filter")
        self.packet_id = packet_id
        self.properties = properties
        self.subscribes = kind == SUBSCRIBE
        # Whether all filters that were checked are printable ASCII, and none begins with "$".
        self.plain = True
        self.filter_at: i64 = 0
        self.filter_end: i64 = 0
        self.options: i64 = 0
        # Where the next filter is, and the last one ends. Set `position` back to `start` to begin again.
        self.start: i64 = start
        self.position: i64 = start
        self.end: i64 = end
        self._v5 = version == V5
        self._data = data

    def next(self) -> bool:
        """Go to the next filter; False behind the last one.

        Raises:
            MalformedPacket: a filter or its options run past the end of the packet.
        """
        at: i64 = self.position
        end: i64 = self.end
        if at >= end:
            return False
        if at + 2 > end:
            raise MalformedPacket("a field runs past the end of the packet")
        data = self._data
        high: i64 = data[at]
        low: i64 = data[at + 1]
        at += 2
        stop: i64 = at + (high << 8) + low
        behind: i64 = stop
        if self.subscribes:
            behind += 1
            if behind <= end:
                self.options = data[stop]
        if behind > end:
            raise MalformedPacket("a field runs past the end of the packet")
        self.filter_at = at
        self.filter_end = stop
        self.position = behind
        return True

    def check(self, controls: bool = True) -> None:
        """Check the current filter and its options against the grammar.

        `controls`: whether it may hold control characters, which a server may take for malformed (section 1.5.4).

        Raises:
            MalformedPacket: the filter is no topic filter [MQTT-3.8.3-1] [MQTT-3.10.3-1], or reserved bits are set.
            ProtocolViolation: options that do not exist, or No Local on a shared subscription.
        """
        options: i64 = self.options
        if self.subscribes:
            if not self._v5:
                if options > 2:  # [MQTT3-3.8.3-4]
                    raise MalformedPacket(f"SUBSCRIBE with the requested QoS byte {options:#04x}")
            elif options & 0xC0:  # [MQTT-3.8.3-5]
                raise MalformedPacket("reserved bits in the subscription options")
            elif options & 3 == 3 or options & 0x30 == 0x30:  # section 3.8.3.1
                raise ProtocolViolation("subscription options with QoS 3 or retain handling 3")
        if scan_filter(self._data, self.filter_at, self.filter_end) == 0:
            self.plain = False
            name = utf8(self._data[self.filter_at : self.filter_end])
            if not controls and has_control(name):
                raise MalformedPacket("a topic filter with a control character")
            validate_filter(parse_shared(name)[1])
            if self.subscribes and options & 4 and name.startswith(SHARE_PREFIX):  # [MQTT-3.8.3-4]
                raise ProtocolViolation("No Local on a shared subscription")

    def topic_filter(self) -> str:
        """Return the current filter, once it was checked."""
        return self._data[self.filter_at : self.filter_end].decode()

    def request(self) -> SubscriptionRequest:
        """Return the current filter of a SUBSCRIBE with its options, once it was checked."""
        options: i64 = self.options
        topic_filter = self._data[self.filter_at : self.filter_end].decode()
        return SubscriptionRequest(topic_filter, options & 3, options & 4 != 0, options & 8 != 0, options >> 4 & 3)
