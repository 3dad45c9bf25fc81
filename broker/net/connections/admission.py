"""Limits on connections: in all, from one address, and new ones a second.

`Admission` counts connections by address and in all, and the rate of new ones; `ListenerAdmission` has the further
limits of one listener. A connection counts from its arrival until its protocol has ended (`leave`). One above a limit
is kept until its CONNECT only to be refused; at most `HALF_OPEN_ROOM` such connections exist at a time, and further
ones are closed at once, without an answer. Callers pass `now` in seconds of the loop's time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.core.addresses import network
from broker.core.codec import reasons
from broker.core.connection.publish.holding import TokenBucket

HALF_OPEN_ROOM: Final = 128
"""Connections above the limit that may wait for their CONNECT, and connections that exist only to be refused; any more
are closed at once."""

MOST_RATES: Final = 10_000
"""Addresses whose rate of connecting one listener remembers, about 2 MB: an attacker may own many IPv6 networks. An
address that is forgotten may connect as often as one that never came."""

TURNED_AWAY: Final = -1
"""Answer of `arrive`: close the connection, there is no room even to refuse it."""


class AddressCounts:
    """The connections of each IP address ("": from none, which is not counted), where their number is limited.

    IPv6 counts by /64, as for bans (`core.addresses`).
    """

    def __init__(self, most: int) -> None:
        """`most` connections of one address; 0: no limit, and nothing is counted."""
        self._most = most
        self.by_address: dict[str, int] = {}

    def change(self, most: int, hosts: Iterable[str]) -> None:
        """Another limit; `hosts`: where the connections that count come from."""
        self._most = most
        self.by_address.clear()
        for host in hosts:
            self.add(host)

    def has_place(self, host: str) -> bool:
        """Whether one more from this address is within the limit."""
        return self._most == 0 or not host or self.by_address.get(network(host), 0) < self._most

    def add(self, host: str) -> None:
        if self._most > 0 and host:
            address = network(host)
            self.by_address[address] = self.by_address.get(address, 0) + 1

    def remove(self, host: str) -> None:
        if self._most > 0 and host:
            address = network(host)
            left = self.by_address[address] - 1
            if left > 0:
                self.by_address[address] = left
            else:
                del self.by_address[address]


class Admission:
    """The connections of one broker against the limits of the settings; each limit of 0 is none."""

    def __init__(self, most: int, most_of_one: int, rate: float) -> None:
        """`most` connections in all, `most_of_one` from one address, `rate` new ones a second."""
        self._most = most + HALF_OPEN_ROOM if most > 0 else 0
        self._rate = _bucket(rate)
        # Connections that arrived and whose protocol is not over, the refused among them.
        self.open = 0
        # Connections that were refused and have a socket still.
        self.refused = 0
        # Connections that were closed at once, since somebody last asked (and set it to 0).
        self.turned_away = 0
        # Connections of an address that count; where addresses are limited.
        self._addresses = AddressCounts(most_of_one)
        self.by_address = self._addresses.by_address

    def change(self, most: int, most_of_one: int, rate: float, hosts: Iterable[str]) -> None:
        """Other limits. `hosts`: where the connections come from that count now; those over a limit stay."""
        self._most = most + HALF_OPEN_ROOM if most > 0 else 0
        self._rate = _bucket(rate)
        self._addresses.change(most_of_one, hosts)

    @property
    def full(self) -> bool:
        """Whether one more has to be turned away: there are too many in all."""
        return 0 < self._most <= self.open

    def arrive(self, host: str, now: float, code: int = reasons.SUCCESS) -> int:
        """A connection has come from an IP address ("": from none, as over a Unix socket). `code`: why its listener
        refuses it, if it does.

        0: it counts, until `leave`. TURNED_AWAY: close it, it does not count. Else the reason code for its CONNACK
        (0x97 too many of this address, 0x9F too many a second): it counts as refused, until `readmit`, or until
        `leave_refused` and `refused_gone`.
        """
        if self.full:
            self.turned_away += 1
            return TURNED_AWAY
        if code != reasons.SUCCESS:
            pass
        elif not self._addresses.has_place(host):
            code = reasons.QUOTA_EXCEEDED
        elif self._rate is not None and not self._rate.take_one(now):
            code = reasons.CONNECTION_RATE_EXCEEDED
        if code == reasons.SUCCESS:
            self._addresses.add(host)
        elif self.refused >= HALF_OPEN_ROOM:
            self.turned_away += 1
            return TURNED_AWAY
        else:
            self.refused += 1
        self.open += 1
        return code

    def leave(self, host: str) -> None:
        self.open -= 1
        self._addresses.remove(host)

    def leave_refused(self) -> None:
        """The protocol is over for a connection that was refused."""
        self.open -= 1

    def refused_gone(self) -> None:
        self.refused -= 1

    def readmit(self, host: str) -> bool:
        """A refused connection has taken the place of another one of its address; False when there is none for it."""
        if not self._addresses.has_place(host):
            return False
        self.refused -= 1
        self._addresses.add(host)
        return True


class ListenerAdmission:
    """The connections of one listener against limits of its own, each of 0 none. It counts whom `Admission` counts."""

    def __init__(self, most: int, most_of_one: int, rate_of_one: float) -> None:
        """`most` connections, `most_of_one` from one address, `rate_of_one` new ones a second from one address."""
        self._most = most
        self._rate_of_one = rate_of_one
        self.open = 0
        self._addresses = AddressCounts(most_of_one)
        self.by_address = self._addresses.by_address
        # What the addresses may still have of their rate, those that came last at the end; bounded.
        self._rates: dict[str, TokenBucket] = {}

    def arrive(self, host: str, now: float) -> int:
        """A connection has come: the reason code for its CONNACK, 0 to let it on. It counts from `count` on."""
        if self._rate_of_one > 0.0 and host and not self._rate(network(host)).take_one(now):
            return reasons.CONNECTION_RATE_EXCEEDED
        return reasons.SUCCESS if self.has_place(host) else reasons.QUOTA_EXCEEDED

    def has_place(self, host: str) -> bool:
        """Whether one more from this address is within the limits."""
        if 0 < self._most <= self.open:
            return False
        return self._addresses.has_place(host)

    def count(self, host: str) -> None:
        """It counts, until `leave`."""
        self.open += 1
        self._addresses.add(host)

    def leave(self, host: str) -> None:
        self.open -= 1
        self._addresses.remove(host)

    def _rate(self, address: str) -> TokenBucket:
        """What the address has left. Of too many addresses, the one that has not come for longest is forgotten."""
        rates = self._rates
        bucket = rates.pop(address, None)
        if bucket is None:
            if len(rates) >= MOST_RATES:
                del rates[next(iter(rates))]
            bucket = TokenBucket(self._rate_of_one, max(self._rate_of_one, 1.0))
        rates[address] = bucket
        return bucket


def _bucket(rate: float) -> TokenBucket | None:
    return TokenBucket(rate, max(rate, 1.0)) if rate > 0.0 else None


def admission(most: int, most_of_one: int, rate: float, listeners: bool = False) -> Admission | None:
    """The admission control of a broker; None where no limit asks for any, so that a connect pays nothing for it.

    `listeners`: one of its listeners has limits.
    """
    if listeners or most > 0 or most_of_one > 0 or rate > 0.0:
        return Admission(most, most_of_one, rate)
    return None
