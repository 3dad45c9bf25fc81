"""The client's side of MQTT on one connection, as whoever has the network connection sees it.

Owns what the protocol of a link to an upstream broker and that of one to another node of a mesh have in common: the
interface to `ClientConnection`, and the turns in which a read is acted on.
"""

from __future__ import annotations

from typing import Final

from broker.core.codec.decoder import Decoder
from broker.core.codec.encoder import PINGREQ
from broker.core.codec.errors import ProtocolError
from broker.core.queues.outbox import Outbox
from broker.core.queues.peer import Peer
from broker.core.routing.router import Router

CONNECTING: Final = 0
CONNECTED: Final = 1
CLOSED: Final = 2


class ClientProtocol(Peer):
    """The protocol state of one connection. Times in seconds of the loop's clock."""

    def __init__(self, router: Router, outbox: Outbox, decoder: Decoder) -> None:
        self.router = router
        self.outbox = outbox
        self.decoder = decoder
        self.state = CONNECTING
        # Whether the other side has accepted us.
        self.accepted = False
        self.keep_alive = 0
        # Written last, if anything.
        self.final_packet = b""
        # A read is not through: the shell calls `go_on`.
        self.unfinished = False
        # That is because somebody here has fallen behind: a little later, then.
        self.hurried = False
        self.last_received = 0.0
        self.ping_sent = 0.0
        outbox.peer = self

    def hello(self, clean_start: bool) -> bytes:
        """The CONNECT."""
        raise NotImplementedError

    def receive(self, data: bytes, now: float) -> None:
        """Take a read and act on it, or on as much as one turn allows (`unfinished`)."""
        self.router.counters.bytes_received += len(data)
        self.last_received = now
        self.decoder.feed(data)
        self.go_on(now)

    def go_on(self, now: float) -> None:
        """A turn: what happened to others first, then what the other side sent."""
        if self.state == CLOSED:
            return
        router = self.router
        router.fanout.drain(router, now)
        try:
            self.run(now)
        except ProtocolError as error:
            self.fail(error)
        router.fanout.drain(router, now)

    def run(self, now: float) -> None:
        """Act on the packets that are there, or on as many as one turn allows. Raises ProtocolError."""
        raise NotImplementedError

    def fail(self, error: ProtocolError) -> None:
        """The other side broke the protocol: end the connection."""
        raise NotImplementedError

    def refill(self, now: float) -> bool:
        """After the writer took a batch: queue what waited for room. True when it should take another."""
        raise NotImplementedError

    def ping(self, now: float) -> None:
        """Ask the other side whether it is there."""
        self.ping_sent = now
        self.outbox.control(PINGREQ)

    def close(self, reason_code: int, text: str, forget: bool, now: float) -> None:
        """End the connection from this side, with a DISCONNECT. `forget`: the other need not keep our session."""
        raise NotImplementedError

    def lost(self, text: str, now: float, closed: bool = False) -> None:
        """The connection is gone, or given up. `closed`: the other side has closed it, by all that can be seen."""
        raise NotImplementedError

    @property
    def answer_due(self) -> float:
        """When `hurry` has something to do; 0.0: never, as things stand."""
        return 0.0

    def hurry(self, now: float) -> None:
        """Wait no longer for what the acknowledgements wait for that are due."""

    @property
    def looks(self) -> bool:
        """Whether `look` is to be called now and then."""
        return False

    def look(self, now: float) -> None:
        """Time has passed."""
