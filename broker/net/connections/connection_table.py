"""The connections of one broker: which may join, which are not accepted yet, and whose sockets are closing.

Owns the set of connections and, if connections are limited, the order in which they are closed for others. It is
compiled, because each of its calls is made once for every CONNECT. Promises: a connection that joined is counted until
its protocol has ended (`ended`) and is in the set until its socket is closed (`left`); an exception in reporting one
affects no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mypy_extensions import mypyc_attr

from broker.core import causes
from broker.core.causes import CONNECTION_LOST
from broker.core.codec import reasons
from broker.net.connections.admission import HALF_OPEN_ROOM, TURNED_AWAY, Admission
from broker.net.connections.client import Client
from broker.net.connections.connection_log import OF_THE_CLIENT
from broker.net.log import Faults
from broker.net.scheduling.hub import FlushScheduler
from broker.net.scheduling.timers import Checked


@mypyc_attr(allow_interpreted_subclasses=True)
class Onlooker:
    """Who is told of every connection, from its first moment to its last. Must not raise."""

    def joined(self, connection: Client) -> None:
        """A connection was made; nothing was read of it."""
        raise NotImplementedError

    def left(self, connection: Client) -> None:
        raise NotImplementedError


class ConnectionTable:
    """Connections with a socket, accepted or not."""

    def __init__(
        self,
        faults: Faults,
        tune: Callable[[Any], None] | None,
        most: int,
        admission: Admission | None,
        opened: Callable[[Client], None],
        ended: Callable[[Client], None],
    ) -> None:
        """`tune` sets the options of an accepted socket; None: it has those of the socket that listens.

        `most` connections in all, 0: no limit; `admission`: None where no limit asks for it.

        `opened` is called for a client that was accepted, `ended` when a connection's protocol is over; what either
        raises is told to `faults`.
        """
        self.faults = faults
        self.tune = tune
        self.most = most
        self._admission = admission
        self._report_open = opened
        self._report_end = ended
        self.connections: set[Client] = set()
        # How many connections ended, by cause (`core.causes`).
        self.ends: dict[str, int] = dict.fromkeys(causes.ALL, 0)
        # From the server's start on.
        self.hub: FlushScheduler
        # Whether anybody hears of clients that come, and of those that go by themselves. The shell's to change.
        self.reporting = True
        # While a trace runs.
        self.onlooker: Onlooker | None = None
        # Nobody may join any more; and who is told when none is left.
        self.closed = False
        self.emptied: Callable[[], None] | None = None
        # Connections that have not been accepted yet, the oldest first; where connections are limited.
        self._half_open: dict[Client, None] = {}
        # Connections whose protocol is over and whose sockets are not closed, the oldest first; where they are limited.
        self._closing: dict[Client, None] = {}

    def counted(self) -> list[str]:
        """Where the connections come from that count against the limits now."""
        return [each.host for each in self.connections if each.stream.closing_at == 0.0 and not each.protocol.refused]

    def joined(self, connection: Client) -> bool:
        """A connection was made. Its CONNECT decides whether it may stay; one of far too many is to be closed at once.

        That is told by False.
        """
        admission = self._admission
        if self.closed or (admission is not None and not self._admit(connection, admission)):
            self.connections.add(connection)
            return False
        self.connections.add(connection)
        if self.onlooker is not None:
            self.onlooker.joined(connection)
        return True

    def _admit(self, connection: Client, admission: Admission) -> bool:
        """Count a connection against the limits; what its CONNECT is to be told stands with its protocol."""
        self._make_room(admission)
        host = connection.host
        now = connection.opened_at
        own = connection.terms.admission
        code = own.arrive(host, now) if own is not None else reasons.SUCCESS
        answer = admission.arrive(host, now, code)
        if answer == reasons.CONNECTION_RATE_EXCEEDED and connection.terms.tls:
            # A handshake costs more than all else that the connection could do: not to be told a reason code.
            admission.leave_refused()
            admission.refused_gone()
            admission.turned_away += 1
            return False
        if answer == TURNED_AWAY:
            return False
        if own is not None and answer == reasons.SUCCESS:
            own.count(host)
        connection.protocol.refused = answer
        self._half_open[connection] = None
        return True

    def _make_room(self, admission: Admission) -> None:
        """Let no more sockets pile up than may be open: those whose last packet is on its way go first.

        Then who has been silent for longest since it connected: a client sends its CONNECT at once, and so connections
        that say nothing keep nobody out.
        """
        if self._closing and 0 < self.most <= len(self.connections) - HALF_OPEN_ROOM:
            oldest = next(iter(self._closing))
            del self._closing[oldest]
            oldest.stream.abort()
        if admission.full and self._half_open:
            admission.turned_away += 1
            next(iter(self._half_open)).abort(CONNECTION_LOST)

    def _readmit(self, connection: Client) -> bool:
        """A refused connection took over another of its address. False when there is no room for it all the same."""
        # The core has ended that one; here it may have to leave first.
        self.hub.after_batch()
        admission = self._admission
        own = connection.terms.admission
        if admission is None or (own is not None and not own.has_place(connection.host)):
            return False
        if not admission.readmit(connection.host):
            return False
        if own is not None:
            own.count(connection.host)
        connection.protocol.refused = 0
        return True

    def opened(self, connection: Client) -> bool:
        """A client was accepted. False when it has no place after all, and was told so."""
        if connection.protocol.refused != 0 and not self._readmit(connection):
            connection.close(causes.REFUSED, reasons.QUOTA_EXCEEDED, "too many connections from this address")
            return False
        if self._admission is not None:
            self._half_open.pop(connection, None)
        if self.reporting:
            try:
                self._report_open(connection)
            except Exception as error:
                self.faults.broke("report", error)
        return True

    def give_way(self, connections: list[Checked]) -> None:
        """These end: all clients together hold too much of unfinished packets."""
        hub = self.hub
        for connection in connections:
            assert isinstance(connection, Client)
            before = hub.router.work
            text = "all clients together hold too much unfinished"
            connection.close(causes.PARTIAL_PACKETS, reasons.QUOTA_EXCEEDED, text)
            hub.turns.did(hub.router.work - before)

    def ended(self, connection: Client) -> None:
        """A connection's protocol is over; its socket may take a while. Called once for each that joined."""
        protocol = connection.protocol
        cause = protocol.close_cause
        self.ends[cause] = self.ends.get(cause, 0) + 1
        admission = self._admission
        if admission is not None:
            self._half_open.pop(connection, None)
            if protocol.refused:
                admission.leave_refused()
            else:
                admission.leave(connection.host)
                own = connection.terms.admission
                if own is not None:
                    own.leave(connection.host)
            if connection in self.connections:
                self._closing[connection] = None
        if self.reporting or not protocol.accepted or protocol.close_cause not in OF_THE_CLIENT:
            try:
                self._report_end(connection)
            except Exception as error:
                self.faults.broke("report", error)

    def left(self, connection: Client) -> None:
        self.connections.discard(connection)
        if self.onlooker is not None:
            self.onlooker.left(connection)
        admission = self._admission
        if admission is not None:
            self._closing.pop(connection, None)
            if connection.protocol.refused:
                admission.refused_gone()
        if not self.connections and self.emptied is not None:
            self.emptied()
