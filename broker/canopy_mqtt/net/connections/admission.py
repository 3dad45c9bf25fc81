"""Limits on connections: in all, from one address, and new ones a second.

Owns `Admission`: the counts and the rate of connections of a broker, or of one of its listeners; `ListenerTerms`; and
`DoorPlaces` for connections of other nodes. A connection counts from its arrival until its protocol has ended
(`leave`). One above a limit is kept until its CONNECT only to be refused; at most `UNACCEPTED_ROOM` such connections
exist at a time, and further ones are closed at once, without an answer. Callers pass `now` in seconds of the loop's
time, and the IP address as `host` ("": a Unix socket, which has none and is not counted by address).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.hooks import NodeDoor, Origin
from canopy_mqtt.core.principal import network
from canopy_mqtt.core.protocol.publish_limit import TokenBucket
from canopy_mqtt.net.timers import WheelItem

UNACCEPTED_ROOM: Final = 128
"""Connections above the limit that may wait for their CONNECT, and connections that exist only to be refused; any more
are closed at once."""

MAX_ADDRESSES: Final = 10_000
"""Addresses with a token bucket at a time, about 2 MB: an attacker may own a whole IPv6 network."""

MAX_STRANGERS: Final = 32
"""Connections from addresses that are no node's: silent strangers take no more file descriptors than these."""

MAX_OF_STRANGER: Final = 4
"""Of these, connections from one address (IPv6: /64), so that one address does not have all places."""

MAX_OF_NODE: Final = 32
"""Connections from one address of a node: several nodes may have one, and other programs there."""

TURNED_AWAY: Final = -1
"""Answer of `arrive`: close the connection, there is no room even to refuse it."""


class AddressBuckets:
    """A token bucket for each IP address (IPv6: /64). The address that took none for longest is forgotten first, and
    begins with a full bucket when it comes again."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self.by_address: dict[str, TokenBucket] = {}

    def take(self, address: str, now: float, count: float = 1.0) -> bool:
        """Take tokens of a `network`. False, and nothing was taken, if not all of them are there."""
        buckets = self.by_address
        bucket = buckets.pop(address, None)
        if bucket is None:
            if len(buckets) >= MAX_ADDRESSES:
                del buckets[next(iter(buckets))]
            bucket = TokenBucket(self._rate, self._burst)
        buckets[address] = bucket
        return bucket.try_take(now, count)


class Admission:
    """The connections of a broker, or of a listener, against limits; each limit of 0 is none.

    Only a broker's counts refused connections, and has a limit with them (`in_all`) and a `rate`; only a listener's has
    a limit without them (`most`), and a rate for each address.
    """

    def __init__(
        self, most: int = 0, most_of_one: int = 0, rate: float = 0.0, rate_of_one: float = 0.0, in_all: int = 0
    ) -> None:
        """`most_of_one`: connections from one address; rates: new connections a second."""
        self._most = most
        self._most_of_one = most_of_one
        self._rate = _bucket(rate)
        self._rates = AddressBuckets(rate_of_one, max(rate_of_one, 1.0)) if rate_of_one > 0.0 else None
        self._in_all = in_all
        # Connections that arrived and whose protocol is not over, the refused among them.
        self.open = 0
        # Connections that were refused and have a socket still.
        self.refused = 0
        # Connections that were closed at once, since the monitor last read this (and set it to 0).
        self.turned_away = 0
        # The connections of each address (`network`) that count; where they are limited.
        self.by_address: dict[str, int] = {}

    def change(self, most: int, most_of_one: int, rate: float, hosts: Iterable[str]) -> None:
        """Set other limits of a broker. `hosts`: the addresses of the connections that count now; those over a limit
        stay."""
        self._in_all = most + UNACCEPTED_ROOM if most > 0 else 0
        self._rate = _bucket(rate)
        self._most_of_one = most_of_one
        self.by_address.clear()
        for host in hosts:
            self._add(host)

    @property
    def full(self) -> bool:
        """True if one more connection has to be turned away, since there are too many in all."""
        return 0 < self._in_all <= self.open

    def arrive(
        self, host: str, now: float, own: Admission | None = None, code: int = reason_codes.SUCCESS, rated: bool = True
    ) -> int:
        """Count a new connection, `own`: with its listener.

        `code`: that with which another process has refused it. Not `rated`: it was counted against the rates before.

        Returns 0 if it is accepted: it counts until `leave`. TURNED_AWAY: close it, it does not count. Else the reason
        code for its CONNACK (0x97 too many of this address, 0x9F too many a second): it counts as refused, until
        `readmit`, or until `leave_refused` and `refused_gone`.
        """
        if self.full:
            code = TURNED_AWAY
        else:
            if code == reason_codes.SUCCESS and own is not None:
                code = own.check(host, now, rated)
            if code == reason_codes.SUCCESS:
                code = self.check(host, now, rated)
            if code != reason_codes.SUCCESS and self.refused >= UNACCEPTED_ROOM:
                code = TURNED_AWAY
        if code == TURNED_AWAY:
            self.turned_away += 1
            return code
        if code != reason_codes.SUCCESS:
            self.open += 1
            self.refused += 1
            return code
        self.count(host, own)
        return code

    def check(self, host: str, now: float, rated: bool = True) -> int:
        """Return the reason code for the CONNACK of a new connection, 0 to accept it."""
        if rated and self._rates is not None and host and not self._rates.take(network(host), now):
            return reason_codes.CONNECTION_RATE_EXCEEDED
        if not self.has_place(host):
            return reason_codes.QUOTA_EXCEEDED
        if rated and self._rate is not None and not self._rate.try_take(now):
            return reason_codes.CONNECTION_RATE_EXCEEDED
        return reason_codes.SUCCESS

    def has_place(self, host: str) -> bool:
        """Return whether one more connection from this address is within the limits."""
        if 0 < self._most <= self.open:
            return False
        return self._most_of_one == 0 or not host or self.by_address.get(network(host), 0) < self._most_of_one

    def readmit(self, host: str, own: Admission | None = None) -> bool:
        """Accept a refused connection that took the place of another one of its address. False: there is no room."""
        if not self.has_place(host) or (own is not None and not own.has_place(host)):
            return False
        self.refused -= 1
        self._add(host)
        if own is not None:
            own.count(host)
        return True

    def leave(self, host: str, own: Admission | None = None) -> None:
        """Count an accepted connection no more, since its protocol is over."""
        self.open -= 1
        if self._most_of_one > 0 and host:
            address = network(host)
            count = self.by_address.pop(address) - 1
            if count > 0:
                self.by_address[address] = count
        if own is not None:
            own.leave(host)

    def leave_refused(self) -> None:
        """Count a refused connection no more, since its protocol is over."""
        self.open -= 1

    def refused_gone(self) -> None:
        self.refused -= 1

    def count(self, host: str, own: Admission | None = None) -> None:
        """Count a connection from here on, whatever the limits say."""
        self.open += 1
        self._add(host)
        if own is not None:
            own.count(host)

    def _add(self, host: str) -> None:
        if self._most_of_one > 0 and host:
            address = network(host)
            self.by_address[address] = self.by_address.get(address, 0) + 1


@dataclass(eq=False)
class ListenerTerms:
    """The settings of a connection that come from its listener.

    `admission` are limits of that listener's own, if any; `tls` says whether a connection began with a handshake.
    `max_packet_size`, `mount`, `max_delay` and `door` are those of `Origin`. With a door, connections count against no
    limit of clients.
    """

    name: str
    tls: bool
    max_packet_size: int
    mount: str
    admission: Admission | None
    max_delay: float = -1.0
    door: NodeDoor | None = None

    def origin(self) -> Origin:
        """Make the origin of a connection, whose address is not known yet."""
        origin = Origin(listener=self.name)
        origin.max_packet_size = self.max_packet_size
        origin.mount = self.mount
        origin.max_delay = self.max_delay
        origin.door = self.door
        return origin


class DoorPlaces:
    """The places of connections at the listener for other nodes that are not accepted yet, TLS handshakes among them.

    Strangers have few places together, and those of one address fewer; the addresses of nodes have places of their own,
    which no stranger can take. Nodes send their CONNECT at once, so that the oldest connection of those that compete
    gives way to a new one. A connection gives its place back when it is accepted, or its socket is closed.
    """

    def __init__(self) -> None:
        # The addresses of each node, by where they are known from.
        self._known: dict[str, frozenset[str]] = {}
        self._address: dict[WheelItem, str] = {}
        # The oldest first: those of each address, and those of strangers.
        self._of_address: dict[str, dict[WheelItem, None]] = {}
        self._strangers: dict[WheelItem, None] = {}

    def __len__(self) -> int:
        return len(self._address)

    def know(self, source: str, hosts: Iterable[str]) -> None:
        """Set the IP addresses of a node, in place of those from the same source."""
        self._known[source] = frozenset(network(host) for host in hosts if host)

    def take(self, connection: WheelItem, host: str) -> WheelItem | None:
        """Give a place to a connection from an IP address ("": a Unix socket, which is the user's own).

        Return the connection that has lost its place for it; None: there was room.
        """
        address = network(host) if host else ""
        of_node = not address or any(address in each for each in self._known.values())
        own = self._of_address.get(address, {})
        giving: WheelItem | None = None
        if len(own) >= (MAX_OF_NODE if of_node else MAX_OF_STRANGER):
            giving = next(iter(own))
        elif not of_node and len(self._strangers) >= MAX_STRANGERS:
            giving = next(iter(self._strangers))
        if giving is not None:
            self.leave(giving)
        self._address[connection] = address
        self._of_address.setdefault(address, {})[connection] = None
        if not of_node:
            self._strangers[connection] = None
        return giving

    def leave(self, connection: WheelItem) -> None:
        """Take the place back, if the connection has one."""
        address = self._address.pop(connection, None)
        if address is None:
            return
        own = self._of_address[address]
        del own[connection]
        if not own:
            del self._of_address[address]
        self._strangers.pop(connection, None)


def of_listener(most: int, most_of_one: int, rate_of_one: float) -> Admission | None:
    """Return the admission control of a listener; None where no limit asks for it."""
    if most > 0 or most_of_one > 0 or rate_of_one > 0.0:
        return Admission(most, most_of_one, rate_of_one=rate_of_one)
    return None


def _bucket(rate: float) -> TokenBucket | None:
    return TokenBucket(rate, max(rate, 1.0)) if rate > 0.0 else None


def admission(most: int, most_of_one: int, rate: float, listeners: bool = False) -> Admission | None:
    """Return the admission control of a broker; None where no limit asks for it, so that a connect pays nothing for it.

    `listeners`: one of its listeners has limits.
    """
    if listeners or most > 0 or most_of_one > 0 or rate > 0.0:
        in_all = most + UNACCEPTED_ROOM if most > 0 else 0
        return Admission(most_of_one=most_of_one, rate=rate, in_all=in_all)
    return None
