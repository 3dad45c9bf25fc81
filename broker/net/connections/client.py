"""The interface to a client for the parts that accept, count, log and end connections.

Only `Connection` implements it. A connection is in the table of connections, which therefore imports this instead.
"""

from __future__ import annotations

from broker.core.connection.protocol import ServerProtocol
from broker.core.queues.live.outbox import Outbox
from broker.net.listening.terms import ListenerTerms
from broker.net.scheduling.hub import Link
from broker.net.stream import Stream


class Client(Link):
    """One client and its socket. Times in seconds of the loop's clock."""

    def __init__(self, terms: ListenerTerms, stream: Stream) -> None:
        super().__init__()
        # First what each read and each write touches: side by side it takes few lines of the processor's cache.
        self.stream = stream
        # By connection_made.
        self.outbox: Outbox
        self.protocol: ServerProtocol
        self.terms = terms
        self.opened_at = 0.0
        # The peer for the log, and its IP address ("": none): of the socket, unless a proxy has told before.
        self.address = ""
        self.host = ""

    def close(self, cause: str, reason_code: int, text: str) -> None:
        """End the connection from this side, with a DISCONNECT where the protocol has one."""
        raise NotImplementedError

    def admitted(self, reason_code: int) -> None:
        """Access control that answers late has made up its mind (`Ticket.answer`)."""
        raise NotImplementedError

    def was_suspended(self) -> None:
        """The machine was suspended: that time is not the client's, who could not send or read in it."""
        raise NotImplementedError

    def abort(self, cause: str) -> None:
        raise NotImplementedError
