"""One network connection of a client, from the CONNECT that it begins with.

Owns: `Wire`. Promises: one that was given up is read to its end, but answers nothing.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, cast

from canopy_load.ledger.history import Connect, Ping
from canopy_load.ledger.packet_log import PacketLog
from canopy_load.prove.ground import Ground
from canopy_mqtt.client.failures import HUNG_UP, describe
from canopy_mqtt.core.codec import encoder, packets
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.framing import MAX_PACKET
from canopy_mqtt.core.codec.packets import Disconnect
from canopy_mqtt.core.codec.reason_codes import ProtocolError

LINGER: Final = 10.0
"""Seconds for which a broker may keep a connection after a DISCONNECT: longer than it is stopped, so that it reads the
DISCONNECT before it sees the end."""


class Owner(Protocol):
    """A client, as its connections see it."""

    version: int
    ground: Ground
    log: PacketLog

    def begin(self, wire: Wire) -> None: ...

    def read(self, wire: Wire, data: bytes) -> None: ...

    def lost(self, wire: Wire, why: str, code: int | None) -> None: ...


class Wire(asyncio.Protocol):
    """A network connection, from the CONNECT that it begins with. `given_up`: another connection is the present one,
    or the client has left; what comes is read for the end alone."""

    def __init__(self, client: Owner, connect: Connect) -> None:
        self.connect = connect
        self.written = False
        """True if there was a connection to write the CONNECT to."""
        self.ended = False
        """True if the history has its end."""
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._decoder: Decoder | None = None
        self._ping: Ping | None = None
        self._code: int | None = None
        self._now = client.ground.now
        self.over = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.written = True
        self._client.begin(self)

    def data_received(self, data: bytes) -> None:
        self._client.log.note(self._now(), self.connect.number, False, data)
        if self._decoder is None:
            self._client.read(self, data)
        else:
            self._read_on(self._decoder, data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.over.set()
        self._client.lost(self, describe(exc) if exc is not None else HUNG_UP, self._code)

    def write(self, data: bytes) -> None:
        if data and self._transport is not None:
            self._client.log.note(self._now(), self.connect.number, True, data)
            self._transport.write(data)

    def freeze(self, on: bool) -> None:
        """Stop or resume reading."""
        if self._transport is not None and not self._transport.is_closing():
            if on:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def give_up(self) -> None:
        """Answer nothing any more. Raises nothing."""
        self._decoder = Decoder(MAX_PACKET, False, self._client.version)
        self.freeze(False)

    def ask(self, ping: Ping) -> None:
        """Send PINGREQ on a connection that was given up, and note whether it is answered."""
        self._ping = ping
        self.write(encoder.PINGREQ)

    def linger(self) -> None:
        """Give up, and leave the end to the broker for a moment."""
        self.give_up()
        asyncio.get_running_loop().call_later(LINGER, self.abort)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _read_on(self, decoder: Decoder, data: bytes) -> None:
        try:
            decoder.feed(data)
            while decoder.next_frame():
                kind = decoder.header >> 4
                if kind == packets.PINGRESP and self._ping is not None:
                    self._ping.ok(self._now())
                elif kind == packets.DISCONNECT:
                    packet = decoder.packet()
                    assert isinstance(packet, Disconnect)
                    self._code = packet.reason_code
        except ProtocolError:
            self.abort()
