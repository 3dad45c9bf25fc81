"""The connections of one broker: which may join, which are not accepted yet, whose packets are incomplete, and whose
sockets are closing.

Owns the set of connections and the orders in which they are closed for others. It is compiled: every CONNECT calls
each of its methods once. Promises: a connection that joined counts until its protocol has ended (`ended`)
and is in the set until its socket is closed (`left`); an exception in reporting one affects no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from mypy_extensions import i64, mypyc_attr

from canopy_mqtt.core import causes
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.guards.log import Faults
from canopy_mqtt.net.connections.admission import TURNED_AWAY, UNACCEPTED_ROOM, Admission, DoorPlaces
from canopy_mqtt.net.connections.by_account import ByAccount, account_of
from canopy_mqtt.net.connections.connection_log import OF_THE_CLIENT
from canopy_mqtt.net.connections.ends import ABORT, CLOSE, OPEN
from canopy_mqtt.net.timers import WheelItem

if TYPE_CHECKING:
    from canopy_mqtt.net.connections.connection import Connection
    from canopy_mqtt.net.rounds import Rounds

MAX_EVICTED: Final = 16
"""Connections that are ended for one read when all clients together hold too much of incomplete packets."""

LITTLE: Final = 4
"""A connection that holds less than the average by this many powers of two is skipped."""

MAX_SKIPPED: Final = 1_024
"""Connections that are skipped for one read: 0.2 milliseconds. After them the oldest is taken."""


class PartialPackets:
    """The connections with incomplete packets. `limit` in bytes for all of them; 0: none.

    A single connection holds at most one packet and one read, but there are many connections. Above the limit, the
    broker ends a connection of the account that holds most: of a user, or of an address (IPv6: /64) without a user and
    before CONNECT. Of that account's, it ends the connection whose packet has been incomplete for longest: a client at
    an ordinary pace completes its packet within moments and is never the oldest; one that sends slowly on purpose is.
    Clients with very few bytes are skipped: they may be waiting for the broker, for example for the answer to their
    CONNECT.
    """

    def __init__(self, limit: int) -> None:
        self.limit: i64 = limit
        # Connections that were ended because of the bound.
        self.evicted: i64 = 0
        self._held = ByAccount()

    @property
    def bytes(self) -> int:
        """The bytes of all connections."""
        return int(self._held.size)

    def __len__(self) -> int:
        return len(self._held)

    def update(self, connection: WheelItem, held: int, completed: bool, name: str) -> None:
        """Count the `held` bytes of a connection after a read. `completed`: another packet begins there than before.
        `name`: of its account now, which counts from the beginning of a packet on."""
        if completed or held == 0:
            self._held.remove(connection)
        if held > 0:
            self._held.set(connection, held, name)

    def remove(self, connection: WheelItem) -> None:
        self._held.remove(connection)

    def take_oldest(self) -> list[WheelItem]:
        """Return the connections to end because all together hold too much, at most `MAX_EVICTED`; uncount them."""
        oldest: list[WheelItem] = []
        left = MAX_SKIPPED
        while 0 < self.limit < self._held.size and len(oldest) < MAX_EVICTED:
            account = self._held.largest()
            line = account.held
            connection = next(iter(line))
            held = line[connection]
            if left > 0 and held < int(account.size) // len(line) >> LITTLE:
                left -= 1
                # To the end of the line, behind the others.
                del line[connection]
                line[connection] = held
                continue
            oldest.append(connection)
            self.evicted += 1
            self._held.remove(connection)
        return oldest


@mypyc_attr(allow_interpreted_subclasses=True)
class ConnectionObserver:
    """Observes every connection, from its first moment to its last. Its methods must not raise."""

    def joined(self, connection: Connection) -> None:
        """Called before the first read of a new connection."""
        raise NotImplementedError

    def left(self, connection: Connection) -> None:
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class ConnectionCounter:
    """Tells another process, which accepts connections and counts them (`Connection.number`), what becomes of them.

    Its methods must not raise.
    """

    def ended(self, connection: Connection) -> None:
        """Called when the protocol of a connection is over."""
        raise NotImplementedError

    def readmitted(self, connection: Connection) -> None:
        """Called for one that was to be refused, and is accepted in place of another one of its address."""
        raise NotImplementedError


class ConnectionTable:
    """Connections with a socket, accepted or not."""

    def __init__(
        self,
        faults: Faults,
        tune: Callable[[Any], None] | None,
        most: int,
        admission: Admission | None,
        opened: Callable[[Connection], None],
        ended: Callable[[Connection], None],
    ) -> None:
        """`tune` sets the options of an accepted socket; None: it inherits them. `most`: connections in all; 0: no
        limit. `admission`: None where no limit asks for it. `opened` is called for a client that was accepted, `ended`
        when a connection's protocol is over; `faults` gets what either raises.
        """
        self.faults = faults
        self.tune = tune
        self.most = most
        self._admission = admission
        self._report_open = opened
        self._report_end = ended
        self.connections: set[Connection] = set()
        # Those of them that other nodes have made.
        self.of_nodes = 0
        self.partial = PartialPackets(0)
        # How many connections ended, by cause (`core.causes`).
        self.ends: dict[str, int] = dict.fromkeys(causes.ALL, 0)
        # From the server's start on.
        self.rounds: Rounds
        # True if clients that come, and those that go by themselves, are reported. Set by the server.
        self.reporting = True
        # While a trace runs.
        self.observer: ConnectionObserver | None = None
        # Where another process counts them.
        self.counter: ConnectionCounter | None = None
        # True when no client may join any more; when no other node may; and called when the last connection has left.
        self.closed = False
        self.door_closed = False
        self.emptied: Callable[[], None] | None = None
        # Connections that have not been accepted yet; where connections are limited.
        self._unaccepted = ByAccount()
        # Connections at the listener for other nodes that have not been accepted yet.
        self.at_door = DoorPlaces()
        # Connections whose protocol is over and whose sockets are not closed, the oldest first; where they are limited.
        self._closing: dict[Connection, None] = {}

    def counted(self) -> list[str]:
        """Return the addresses of the connections that count against the limits now."""
        return [
            each.origin.host
            for each in self.connections
            if each.state == OPEN and not each.protocol.refused and each.terms.door is None
        ]

    def joined(self, connection: Connection) -> bool:
        """Add a new connection. Returns False if it has to be closed at once; else its CONNECT decides."""
        admission = self._admission
        if connection.terms.door is not None:
            admitted = not self.door_closed
            if admitted:
                # None takes the place of a client: where there are too many of these, one of them is closed.
                giving = self.at_door.take(connection, connection.origin.host)
                if giving is not None:
                    cast("Connection", giving).end(ABORT, causes.CONNECTION_LOST)
            self.of_nodes += 1
        else:
            admitted = not self.closed and (admission is None or self._admit(connection, admission))
        self.connections.add(connection)
        if not admitted:
            return False
        if self.observer is not None:
            self.observer.joined(connection)
        return True

    def _admit(self, connection: Connection, admission: Admission) -> bool:
        """Count a connection against the limits; its protocol gets the reason code for the answer to its CONNECT."""
        self._make_room(admission)
        answer = admission.arrive(
            connection.origin.host, connection.opened_at, connection.terms.admission, connection.answered
        )
        if answer == reason_codes.CONNECTION_RATE_EXCEEDED and connection.terms.tls:
            # A handshake costs more than all else: closing is cheaper than a reason code.
            admission.leave_refused()
            admission.refused_gone()
            admission.turned_away += 1
            answer = TURNED_AWAY
        if answer == TURNED_AWAY:
            return False
        connection.protocol.refused = answer
        self._unaccepted.set(connection, 1, account_of(connection.host))
        return True

    def _make_room(self, admission: Admission) -> None:
        """Close a socket if too many are open: first one whose last packet is on its way.

        Otherwise one without a CONNECT is closed: of the address that has most of these, the one that has waited for
        longest. A client sends it at once, so silent connections keep no client out.
        """
        if self._closing and 0 < self.most <= len(self.connections) - UNACCEPTED_ROOM:
            oldest = next(iter(self._closing))
            del self._closing[oldest]
            oldest.end(ABORT)
        if admission.full and len(self._unaccepted) > 0:
            admission.turned_away += 1
            oldest = cast("Connection", next(iter(self._unaccepted.largest().held)))
            oldest.end(ABORT, causes.CONNECTION_LOST)

    def end_unaccepted(self, most: int) -> None:
        """Close the connections that have waited for longest to be accepted, beyond as many as this."""
        for connection in list(self._unaccepted.accounts)[: max(0, len(self._unaccepted) - most)]:
            if self._admission is not None:
                self._admission.turned_away += 1
            cast("Connection", connection).end_later(ABORT, causes.CONNECTION_LOST)

    def _readmit(self, connection: Connection) -> bool:
        """Admit a refused connection that took over another of its address. False if there is still no room for it."""
        # The core has ended the other one, which may have to leave this table first.
        self.rounds.after_batch()
        admission = self._admission
        if connection.ended_at > 0.0:
            # Its client has sent DISCONNECT behind its CONNECT: the connection counts no more.
            return False
        if admission is None or not admission.readmit(connection.origin.host, connection.terms.admission):
            return False
        connection.protocol.refused = 0
        if self.counter is not None and connection.number > 0:
            self.counter.readmitted(connection)
        return True

    def opened(self, connection: Connection) -> bool:
        """Mark a connection as accepted. False if it has no place after all, and ends."""
        if connection.protocol.refused != 0 and not self._readmit(connection):
            connection.end(CLOSE, causes.REFUSED, reason_codes.QUOTA_EXCEEDED, "too many connections from this address")
            return False
        if connection.terms.door is not None:
            self.at_door.leave(connection)
        elif self._admission is not None:
            self._unaccepted.remove(connection)
        if self.reporting:
            try:
                self._report_open(connection)
            except Exception as error:
                self.faults.broke("report", error)
        return True

    def hold(self, connection: Connection, held: int, completed: bool) -> None:
        """Count the bytes of incomplete packets that a connection holds, and end those that all are over the limit."""
        session = connection.protocol.session
        name = account_of(connection.host) if session is None else session.principal.account_name()
        self.partial.update(connection, held, completed, name)
        for oldest in self.partial.take_oldest():
            code, text = reason_codes.QUOTA_EXCEEDED, "too many incomplete packets"
            cast("Connection", oldest).end(CLOSE, causes.PARTIAL_PACKETS, code, text)

    def ended(self, connection: Connection) -> None:
        """Count a connection no more, since its protocol is over; its socket may take a while. Called once for each
        that joined."""
        protocol = connection.protocol
        cause = protocol.close_cause
        self.ends[cause] = self.ends.get(cause, 0) + 1
        if self.counter is not None and connection.number > 0:
            self.counter.ended(connection)
        admission = self._admission
        if admission is not None and connection.terms.door is None:
            if connection in self._unaccepted.accounts:
                self._unaccepted.remove(connection)
            if protocol.refused:
                admission.leave_refused()
            else:
                admission.leave(connection.origin.host, connection.terms.admission)
            if connection in self.connections:
                self._closing[connection] = None
        if self.reporting or not protocol.accepted or protocol.close_cause not in OF_THE_CLIENT:
            try:
                self._report_end(connection)
            except Exception as error:
                self.faults.broke("report", error)

    def left(self, connection: Connection) -> None:
        """Forget a connection whose socket is closed."""
        if connection.terms.door is not None and connection in self.connections:
            self.of_nodes -= 1
        self.connections.discard(connection)
        # Else it was turned away.
        if connection.ended_at > 0.0:
            if self.observer is not None:
                self.observer.left(connection)
            admission = self._admission
            if connection.terms.door is not None:
                self.at_door.leave(connection)
            elif admission is not None:
                self._closing.pop(connection, None)
                if connection.protocol.refused:
                    admission.refused_gone()
        if not self.connections and self.emptied is not None:
            self.emptied()
