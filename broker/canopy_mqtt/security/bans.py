"""Keeps out the clients that an operator has banned, by client identifier, user name, IP address or network.

Owns the table of bans. Promises: it has at most `max_bans` bans. While there are some, each CONNECT costs three
look-ups in it, and one comparison for each banned network. Times are those of the router's clock.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from mypy_extensions import mypyc_attr

from canopy_mqtt.core.hooks import BanHook
from canopy_mqtt.core.principal import network

CLIENT_ID: Final = "clientid"
USER: Final = "username"
ADDRESS: Final = "peerhost"
NETWORK: Final = "peerhost_net"
KINDS: Final = (CLIENT_ID, USER, ADDRESS, NETWORK)

MAX_NETWORKS: Final = 1_000
"""Bans of networks: each is compared with the address of each CONNECT."""


class Ban:
    """One ban. `until`: the time at which it ends; 0.0: it has no end."""

    def __init__(self, kind: str, who: str, until: float, since: float, by: str, reason: str) -> None:
        self.kind = kind
        self.who = who
        self.until = until
        self.since = since
        self.by = by
        self.reason = reason


@mypyc_attr(allow_interpreted_subclasses=True)
class Bans(BanHook):
    """All bans of one broker."""

    def __init__(self, max_bans: int = 10_000) -> None:
        super().__init__()
        self.max_bans = max_bans
        self._by_name: dict[str, Ban] = {}
        self._networks: dict[str, ipaddress.IPv4Network | ipaddress.IPv6Network] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def all(self) -> list[Ban]:
        """Return all bans; some of them may have ended."""
        return list(self._by_name.values())

    def add(self, ban: Ban, now: float) -> bool:
        """Add a ban, or replace the ban of the same client. Return False if there are too many.

        Raises:
            ValueError: `who` is no address or network.
        """
        key = _key(ban.kind, ban.who)
        if key not in self._by_name and (len(self._by_name) >= self.max_bans or self._full(ban)):
            self._sweep(now)
            if len(self._by_name) >= self.max_bans or self._full(ban):
                return False
        self._by_name[key] = ban
        if ban.kind == NETWORK:
            self._networks[key] = ipaddress.ip_network(ban.who, False)
        return True

    def lift(self, kind: str, who: str) -> bool:
        """End a ban. Return True if there was one. Raises ValueError: no address or network."""
        key = _key(kind, who)
        self._networks.pop(key, None)
        return self._by_name.pop(key, None) is not None

    def bars(self, client_id: str, user: str | None, host: str, now: float) -> bool:
        return self.find(client_id, user, host, now) is not None

    def find(self, client_id: str, user: str | None, host: str, now: float) -> Ban | None:
        """Return the ban that keeps a client out; None: there is none."""
        found = self._holds(CLIENT_ID + client_id, now)
        if found is None and user is not None:
            found = self._holds(USER + user, now)
        if found is None and host:
            found = self._holds(ADDRESS + network(host), now)
            if found is None and self._networks:
                found = self._in_a_network(host, now)
        return found

    def _full(self, ban: Ban) -> bool:
        return ban.kind == NETWORK and len(self._networks) >= MAX_NETWORKS

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
    """Return the key of a ban in the table. Raises ValueError: no address or network."""
    if kind == ADDRESS:
        ipaddress.ip_address(who)
        return ADDRESS + network(who)
    if kind == NETWORK:
        return NETWORK + str(ipaddress.ip_network(who, False))
    return kind + who
