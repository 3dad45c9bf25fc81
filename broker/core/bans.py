"""Clients that an operator has banned, by client identifier, user name, IP address or network.

Owns the table. Promises: at most `most` bans; a CONNECT costs a look-up in three tables, and one comparison for each
network. Times are those of the router's clock.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from broker.core.addresses import network

CLIENT_ID: Final = "clientid"
USER: Final = "username"
ADDRESS: Final = "peerhost"
NETWORK: Final = "peerhost_net"
KINDS: Final = (CLIENT_ID, USER, ADDRESS, NETWORK)

MOST_NETWORKS: Final = 1_000
"""Bans of networks: each is compared with the address of each CONNECT."""


class Ban:
    """One ban. `until`: when it ends; 0.0: when an operator lifts it."""

    def __init__(self, kind: str, who: str, until: float, since: float, by: str, reason: str) -> None:
        self.kind = kind
        self.who = who
        self.until = until
        self.since = since
        self.by = by
        self.reason = reason


class Bans:
    """All bans of one broker."""

    def __init__(self, most: int = 10_000) -> None:
        self.most = most
        self.refused = 0
        """CONNECTs that were refused for one."""
        self._by_name: dict[str, Ban] = {}
        self._networks: dict[str, ipaddress.IPv4Network | ipaddress.IPv6Network] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def all(self) -> list[Ban]:
        """All of them, those among them that are over and that nobody has come upon yet."""
        return list(self._by_name.values())

    def get(self, kind: str, who: str, now: float) -> Ban | None:
        """One of them. Raises ValueError: not an address or network."""
        return self._holds(_key(kind, who), now)

    def add(self, ban: Ban, now: float) -> bool:
        """Ban somebody; a ban that is there already is replaced. False: there are too many.

        Raises:
            ValueError: `who` is no address or network.
        """
        key = _key(ban.kind, ban.who)
        if key not in self._by_name and (len(self._by_name) >= self.most or self._full(ban)):
            self._sweep(now)
            if len(self._by_name) >= self.most or self._full(ban):
                return False
        self._by_name[key] = ban
        if ban.kind == NETWORK:
            self._networks[key] = ipaddress.ip_network(ban.who, False)
        return True

    def lift(self, kind: str, who: str) -> bool:
        """End a ban. Whether there was one. Raises ValueError."""
        key = _key(kind, who)
        self._networks.pop(key, None)
        return self._by_name.pop(key, None) is not None

    def bars(self, client_id: str, user: str | None, host: str, now: float) -> Ban | None:
        """The ban that keeps a client out; None: it may come."""
        found = self._holds(CLIENT_ID + client_id, now)
        if found is None and user is not None:
            found = self._holds(USER + user, now)
        if found is None and host:
            found = self._holds(ADDRESS + network(host), now)
            if found is None and self._networks:
                found = self._in_a_network(host, now)
        return found

    def _full(self, ban: Ban) -> bool:
        return ban.kind == NETWORK and len(self._networks) >= MOST_NETWORKS

    def _holds(self, key: str, now: float) -> Ban | None:
        found = self._by_name.get(key)
        if found is None or found.until == 0.0 or found.until > now:
            return found
        del self._by_name[key]
        self._networks.pop(key, None)
        return None

    def _in_a_network(self, host: str, now: float) -> Ban | None:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return None
        for key, banned in list(self._networks.items()):
            if address in banned:
                found = self._holds(key, now)
                if found is not None:
                    return found
        return None

    def _sweep(self, now: float) -> None:
        for key in list(self._by_name):
            self._holds(key, now)


def _key(kind: str, who: str) -> str:
    """Under which name a ban stands. Raises ValueError."""
    if kind == ADDRESS:
        ipaddress.ip_address(who)
        return ADDRESS + network(who)
    if kind == NETWORK:
        return NETWORK + str(ipaddress.ip_network(who, False))
    return kind + who
