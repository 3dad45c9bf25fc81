"""A client's connection without a socket."""

from __future__ import annotations

from canopy_load.engine.clients.connection import ClientConnection
from canopy_load.engine.clients.sending import Session
from canopy_load.ledger.counters import Tally
from canopy_load.ledger.deliveries import Streams
from canopy_load.ledger.mark import Mark
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.packets import V5, Publish

RUN = 0x81


class Paper:
    """Under a connection's name, what was written to it, and whether somebody reads from it. (It is compiled, and
    nothing here may inherit from it.)"""

    def __init__(self) -> None:
        self.data = b""
        self.reading = True
        self.session = Session(False)
        self.wire = ClientConnection(V5, None, Streams(RUN, lambda _: b""), Tally(), self.session, print, print)
        self.wire.connection_made(self)  # type: ignore[arg-type]

    def set_write_buffer_limits(self, high: int) -> None: ...

    def write(self, data: bytes) -> None:
        self.data += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def packets(self) -> list[Publish]:
        """What was written since the last call."""
        decoder = Decoder(1 << 28, True, V5)
        decoder.feed(self.data)
        self.data = b""
        found = []
        while decoder.next_frame():
            found.append(decoder.publish())
        return found

    def marks(self) -> list[tuple[int, int, int]]:
        """Stream, sequence number and intended time of what was written since the last call."""
        read = Mark(RUN)
        found = []
        for packet in self.packets():
            assert read.read(packet.payload)
            found.append((read.stream, read.sequence, read.time))
        return found
