"""The faults on the wire, one class for each kind.

Owns which packets a fault takes, and what it does with them; `proxy` moves the bytes and asks a `PacketFault` about
each packet. All of it runs in the broker's loop.
Promises: no fault makes a broker or a client look as if it broke the specification, by which a client may rely on order
and on DUP; each class names the sections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from canopy_mqtt.core.codec import encoder, packets, reason_codes
from canopy_mqtt.core.codec.packets import Ack, Connack, Connect, Publish, Suback, Subscribe
from canopy_mqtt.core.codec.topic_names import matches
from canopy_mqtt.testing.proxy import Flow, PacketFault, PacketInTransit

LOSABLE: Final = ("PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "SUBACK", "UNSUBACK", "PINGRESP", "CONNACK")
"""Packets that may be lost or delayed. No PUBLISH: TCP loses no message in the middle of a connection."""

DUP: Final = 0x08

# Nearest reason codes of 5.0 to the return codes of 3.1.1 (section 3.2.2.3 of its document).
_FROM_V3: Final = {1: 0x84, 2: 0x85, 3: 0x88, 4: 0x86, 5: 0x87}


def losable(name: str) -> Callable[[PacketInTransit], bool]:
    """Return a condition: the packet is of this type, which must be one that may be lost. Raises ValueError."""
    if name not in LOSABLE:
        raise ValueError(f"{name!r} cannot be lost or delayed; these can: {', '.join(LOSABLE)}")
    kind = packets.NAMES.index(name)
    return lambda passing: passing.packet.kind == kind


def _publish(topic_filter: str, least_qos: int = 0) -> Callable[[PacketInTransit], bool]:
    """Return a condition: the packet is a PUBLISH on one of these topics."""

    def found(passing: PacketInTransit) -> bool:
        packet = passing.packet
        if not isinstance(packet, Publish) or packet.qos < least_qos:
            return False
        flow = passing.flow
        return matches(topic_filter, packet.topic.decode() if flow.down else flow.link.topic_of(packet))

    return found


class Lost(PacketFault):
    """A packet that does not arrive."""

    def act(self, passing: PacketInTransit) -> int:
        """Lose the packet."""
        del passing
        return 1


class Delayed(PacketFault):
    """A packet that arrives later, and with it those of its kind that came after it: they stay in order (4.6)."""

    def __init__(
        self,
        client_id: str | None,
        down: bool,
        counts: Callable[[PacketInTransit], bool],
        nth: int,
        seconds: float | None,
    ) -> None:
        """`seconds` None: until `end`."""
        super().__init__(client_id, down, counts, nth)
        self._seconds = seconds
        self._flow: Flow | None = None
        self._held: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    def takes(self, passing: PacketInTransit) -> bool:
        """Take also the packets that must not overtake the delayed one."""
        if passing.flow is self._flow and self._counts(passing):
            self._held.append(passing.frame)
            return True
        return super().takes(passing)

    def act(self, passing: PacketInTransit) -> int:
        """Hold the packet for as long as was asked for."""
        flow, frame = passing.flow, passing.frame
        self._flow = flow
        self._held.append(frame)
        if self._seconds is not None:
            self._timer = flow.link.loop.call_later(self._seconds, self.end)
        return 1

    def end(self) -> None:
        """Pass the held packets."""
        if self._timer is not None:
            self._timer.cancel()
        flow, held, self._flow, self._held = self._flow, self._held, None, []
        if flow is not None and not flow.link.over:
            flow.put(b"".join(held))


class Duplicated(PacketFault):
    """A PUBLISH of QoS 1 or 2 that the client gets twice, the second time with DUP.

    To a 3.1.1 client both come at once, and the broker sees one acknowledgement. 5.0 allows a second one only on a new
    connection (4.4): the acknowledgement is lost and the connection reset, and the broker itself sends it again when
    the client comes back to its session.
    """

    def __init__(self, client_id: str | None, nth: int, topic_filter: str) -> None:
        super().__init__(client_id, True, _publish(topic_filter, least_qos=1), nth)
        self._flow: Flow | None = None
        self._packet_id = 0
        self._acks = 0

    def takes(self, passing: PacketInTransit) -> bool:
        """Take also the acknowledgement that must not arrive."""
        flow, packet = passing.flow, passing.packet
        if (
            self._flow is not None
            and flow is self._flow.link.up
            and isinstance(packet, Ack)
            and packet.packet_id == self._packet_id
            and packet.kind in (packets.PUBACK, packets.PUBREC)
        ):
            return self._acknowledged(flow)
        return super().takes(passing)

    def act(self, passing: PacketInTransit) -> int:
        """Pass the packet once or twice."""
        flow, packet, frame = passing.flow, passing.packet, passing.frame
        assert isinstance(packet, Publish)
        self._flow = flow
        self._packet_id = packet.packet_id
        flow.put(frame)
        if flow.link.version < packets.V5:
            flow.put(bytes((frame[0] | DUP,)) + frame[1:])
            return 1
        return 0

    def _acknowledged(self, flow: Flow) -> bool:
        if flow.link.version >= packets.V5:
            self._flow = None
            self.happened += 1
            flow.link.cut()
            return True
        self._acks += 1
        if self._acks == 2:
            self._flow = None
            return True
        return False


class RefusedConnect(PacketFault):
    """A CONNECT that the broker never sees: the client gets a CONNACK with the code, and the connection ends (3.2)."""

    def __init__(self, code: int, client_id: str | None, count: int) -> None:
        if code not in _FROM_V3 and not 0x80 <= code <= 0x9F:
            raise ValueError(f"{code:#04x} refuses nobody: 1 to 5 (3.1.1) or 0x80 to 0x9F (5.0)")
        super().__init__(client_id, False, lambda passing: isinstance(passing.packet, Connect), 1, count)
        self._code = code

    def act(self, passing: PacketInTransit) -> int:
        """Answer in the form of its version; what 3.1.1 has no code for is refused without one (3.1.4)."""
        flow = passing.flow
        link = flow.link
        if link.version >= packets.V5:
            code = _FROM_V3.get(self._code, self._code)
        else:
            code = self._code if self._code in _FROM_V3 else reason_codes.v3_connack(self._code)
        if code > 0:
            link.down.put(encoder.encode(Connack(False, code), link.version))
        link.cut(reset=False)
        return 1


class RefusedSubscribe(PacketFault):
    """A SUBSCRIBE that the broker never sees: each of its filters is refused (3.9)."""

    def __init__(self, code: int, client_id: str | None, topic_filter: str | None, nth: int, count: int) -> None:
        if code not in (0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2):
            raise ValueError(f"{code:#04x} is no reason code of a SUBACK that refuses")

        def counts(passing: PacketInTransit) -> bool:
            packet = passing.packet
            return isinstance(packet, Subscribe) and (
                topic_filter is None or topic_filter in [each.topic_filter for each in packet.requests]
            )

        super().__init__(client_id, False, counts, nth, count)
        self._code = code

    def act(self, passing: PacketInTransit) -> int:
        """Answer with a SUBACK; 3.1.1 knows only 0x80."""
        flow, packet = passing.flow, passing.packet
        assert isinstance(packet, Subscribe)
        answer = Suback(packet.packet_id, [self._code] * len(packet.requests))
        flow.link.down.put(encoder.encode(answer, flow.link.version))
        return 1


class RefusedPublish(PacketFault):
    """A PUBLISH that the broker never sees.

    5.0: PUBACK or PUBREC with the code (3.4, 3.5); at QoS 0 it is only gone. 3.1.1 has no such code: the connection is
    closed (3.3.5).
    """

    def __init__(self, code: int, client_id: str | None, topic_filter: str, nth: int, count: int) -> None:
        if code not in (0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99):
            raise ValueError(f"{code:#04x} is no reason code of a PUBACK or PUBREC that refuses")
        super().__init__(client_id, False, _publish(topic_filter), nth, count)
        self._code = code

    def act(self, passing: PacketInTransit) -> int:
        """Answer with the code, or close the connection."""
        flow, packet = passing.flow, passing.packet
        assert isinstance(packet, Publish)
        link = flow.link
        if link.version < packets.V5:
            link.cut(reset=False)
            return 1
        if packet.topic and packet.topic_alias:
            link.untold[packet.topic_alias] = packet.topic.decode()
        if packet.qos:
            kind = packets.PUBACK if packet.qos == 1 else packets.PUBREC
            link.down.put(encoder.encode(Ack(kind, packet.packet_id, self._code), link.version))
        return 1
