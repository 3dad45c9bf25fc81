"""Clients that lost messages last, or were refused something; also disconnected ones.

Owns `RecentClients`. Promises: it holds `KEPT` clients, about 100 kB, and names are cut; adding one costs the same for
any number of clients. A user with many client identifiers cannot displace the others: when there is no room, the
account (`Principal.account_name`) with most entries loses its oldest one.
"""

from __future__ import annotations

from typing import Final

from canopy_mqtt.core.principal import Principal
from canopy_mqtt.net.connections.connection_log import cut, named

KEPT: Final = 100
"""Clients that are remembered."""


class RecentClient:
    """A client and its losses or refusals. Times in seconds of the loop's clock; `counts` by cause, since `first`."""

    def __init__(self, client_id: str, principal: Principal | None, now: float) -> None:
        self.client_id = client_id
        self.user_name = None if principal is None else named(principal.user_name)
        self.address = "" if principal is None else principal.host
        self.first = now
        self.last = now
        self.counts: dict[str, int] = {}
        # Of a refusal: the last topic, and its reason.
        self.topic = ""
        self.reason = ""


class RecentClients:
    """The last `KEPT` clients."""

    def __init__(self) -> None:
        # By account, then by client identifier, the one with the latest event at the end.
        self._places: dict[str, dict[str, RecentClient]] = {}
        self._count = 0

    def add(self, client_id: str, principal: Principal | None, counts: dict[str, int], now: float) -> RecentClient:
        """Add an event of a client. `principal` None: its user is not known."""
        place = "" if principal is None else cut(principal.account_name())
        mine = self._places.setdefault(place, {})
        client_id = cut(client_id)
        client = mine.pop(client_id, None)
        if client is None:
            client = RecentClient(client_id, principal, now)
            self._count += 1
        mine[client.client_id] = client
        client.last = now
        for name, count in counts.items():
            client.counts[name] = client.counts.get(name, 0) + count
        if self._count > KEPT:
            self._give_way()
        return client

    def _give_way(self) -> None:
        place = max(self._places, key=self._size)
        mine = self._places[place]
        del mine[next(iter(mine))]
        self._count -= 1
        if not mine:
            del self._places[place]

    def _size(self, place: str) -> int:
        return len(self._places[place])

    def newest(self) -> list[RecentClient]:
        return sorted((each for mine in self._places.values() for each in mine.values()), key=_last, reverse=True)


def _last(client: RecentClient) -> float:
    return client.last
