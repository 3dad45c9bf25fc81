"""A broker that a test plays by hand, without a socket: packets on its side, the client's machine on the other."""

from __future__ import annotations

from typing import TypeVar

from canopy_mqtt.client.machine import ClientMachine, Event, connect_packet
from canopy_mqtt.core.codec import encoder
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.framing import MAX_PACKET
from canopy_mqtt.core.codec.packets import Connack, Connect, Packet, Publish
from canopy_mqtt.core.codec.properties import Properties

P = TypeVar("P", bound=Packet)


def bag(integers: dict[int, int] | None = None, strings: dict[int, str] | None = None) -> Properties:
    """Properties with these."""
    held = Properties()
    held.integers.update(integers or {})
    held.strings.update(strings or {})
    return held


class Scene:
    """A machine, and what it says. `now`: its clock, which a test moves; `bytewise`: each byte is a read of its own."""

    def __init__(self, connect: Connect | None = None, *, bytewise: bool = False, **options: object) -> None:
        self.machine = ClientMachine(connect or connect_packet("c"), **options)  # type: ignore[arg-type]
        self.now = 1000.0
        self.bytewise = bytewise
        self._decoder = Decoder(MAX_PACKET)

    def open(self) -> Connect:
        """A network connection is there: the CONNECT."""
        self._decoder = Decoder(MAX_PACKET)
        self.machine.open(self.now)
        return self.only(Connect)

    def connect(self, integers: dict[int, int] | None = None, *, present: bool = False) -> list[Event]:
        """CONNECT, and a CONNACK of success that grants these."""
        self.open()
        return self.say(Connack(present, 0, bag(integers)))

    def say(self, *each: Packet | bytes) -> list[Event]:
        """The broker sends these in one read: the events."""
        version = self.machine.connect.version
        data = b"".join(one if isinstance(one, bytes) else encoder.encode(one, version) for one in each)
        if not self.bytewise:
            return self.machine.receive(data, self.now)
        return [event for at in range(len(data)) for event in self.machine.receive(data[at : at + 1], self.now)]

    def deliver(self, packet: Publish) -> Publish:
        """The broker sends a message: the one that is told."""
        (event,) = self.say(packet)
        assert isinstance(event, Publish)
        return event

    def sent(self) -> list[Packet]:
        """The packets that went to the broker since the last time."""
        found = []
        self._decoder.feed(self.machine.take())
        while self._decoder.next_frame():
            found.append(self._decoder.packet())
        return found

    def only(self, kind: type[P]) -> P:
        """The one packet that went to the broker, which has to be of this class."""
        (packet,) = self.sent()
        assert isinstance(packet, kind), packet
        return packet

    def failure(self) -> str:
        """Why the connection is over, which it has to be."""
        assert self.machine.failure is not None
        assert not self.machine.connected
        return str(self.machine.failure)
