"""The interest tables of a node, both sides: what the broker and the bus speak to.

Owns `InterestRoom`: the node's own `Interest`, a `RemoteInterest` for each other node, and the order in which they get
their turns. It takes no time of its own: `wake` asks the shell for a `turn`, soon and once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from broker.mesh.bus import INTEREST, Bus, ProtocolFault, Room
from broker.mesh.interest import wire
from broker.mesh.interest.confirmations import Waiter
from broker.mesh.interest.declaring import Interest
from broker.mesh.interest.receiving import RemoteInterest, Sink

UNITS: Final = 512
"""Keys of other nodes that are applied in one turn: each may go into the trie, which takes some microseconds."""


class InterestRoom(Room):
    """Both sides. `sink_of`: makes what a node's filters go to, when it is first there. `wake`: have `turn` called.

    `most`, `most_bytes`: what is taken from each other node. `interest`: this node's own. `units`: keys of other nodes
    that are applied in one turn.

    What a node wants stands until the node says otherwise, also while the node is gone: the broker calls `forget` when
    nothing is to be kept for it any more.
    """

    def __init__(
        self,
        bus: Bus,
        interest: Interest,
        sink_of: Callable[[str], Sink],
        wake: Callable[[], None],
        most: int,
        most_bytes: int,
        units: int = UNITS,
    ) -> None:
        self.interest = interest
        self.most = most
        self.most_bytes = most_bytes
        self.units = units
        self.remotes: dict[str, RemoteInterest] = {}
        # What goes out of the sinks of nodes that are given up: a node that comes back meanwhile begins with another.
        self._forgotten: list[RemoteInterest] = []
        self._bus = bus
        self._sink_of = sink_of
        self._wake = wake
        self._woken = False
        self._there: set[str] = set()
        self._first = 0  # whose turn it is to be first
        bus.attach(INTEREST, self)

    # -- what local sessions want --------------------------------------------------------------------------------------

    def wanted(self, topic_filter: str, now: float) -> None:
        """One more subscription at a topic filter, without `$share/name/`."""
        self.interest.wanted(topic_filter, now)
        self._call()

    def unwanted(self, topic_filter: str, now: float) -> None:
        """One subscription less. Raises ValueError where nobody wants it."""
        self.interest.unwanted(topic_filter, now)
        self._call()

    def put_group(self, name: str, topic_filter: str, connected: int, away: int) -> None:
        """So many members of a share group are here now, connected and not."""
        self.interest.put_group(name, topic_filter, connected, away)
        self._call()

    def wait(self, waiter: Waiter, now: float) -> bool:
        """Whether other nodes do not have all yet that is wanted now: then the waiter is called, once, by a `turn`.

        Together with `wanted` before it, this is what a SUBACK waits for: `confirm_timeout` at most.
        """
        waits = self.interest.wait(waiter, now)
        if waits:
            self._call()
        return waits

    def restore(self, node: str, sink: Sink, keys: Iterable[str]) -> None:
        """A node wanted this when this one ended; all of it stands in the sink. It stands until the node declares
        anew."""
        remote = RemoteInterest(self._bus, node, sink, self.most, self.most_bytes)
        remote.restore(keys)
        self.remotes[node] = remote

    # -- the bus -------------------------------------------------------------------------------------------------------

    def joined(self, node: str) -> None:
        """A node is there, and knows nothing of us yet."""
        self._there.add(node)
        remote = self._remote(node)
        remote.most = self.most
        remote.most_bytes = self.most_bytes
        self.interest.joined(node)
        remote.joined()
        self._call()

    def _remote(self, node: str) -> RemoteInterest:
        remote = self.remotes.get(node)
        if remote is None:
            remote = RemoteInterest(self._bus, node, self._sink_of(node), self.most, self.most_bytes)
            self.remotes[node] = remote
        return remote

    def expect(self, node: str, topic_filters: list[str]) -> None:
        """A node wants these, as another one says that can reach it."""
        self._remote(node).expect(topic_filters)

    def left(self, node: str) -> None:
        """A node is gone, or has to begin anew."""
        self._there.discard(node)
        self.interest.left(node)
        remote = self.remotes.get(node)
        if remote is not None:
            remote.left()
        self._call()

    def received(self, node: str, data: bytes) -> None:
        """A message came. Raises ProtocolFault."""
        if node not in self._there:
            raise ProtocolFault("a message of the interest before the node was there")
        message = wire.decode(data)
        if message.kind == wire.DECLARE or message.kind == wire.DIGEST:
            self.remotes[node].received(message)
        else:
            self.interest.received(node, message)
        self._call()

    def forget(self, node: str) -> None:
        """Nothing is kept any more for a node that is gone: what it wanted goes out of its sink, in turns."""
        remote = self.remotes.get(node)
        if remote is not None and node not in self._there:
            del self.remotes[node]
            self._forgotten.append(remote)
            remote.forget()
            self._call()

    # -- turns ---------------------------------------------------------------------------------------------------------

    def turn(self, now: float) -> None:
        """Do what is to be done, a bounded part of it; calls `wake` where more is left."""
        self._woken = False
        units = self.units
        more = False
        remotes = list(self.remotes.values())
        self._first += 1
        for at in range(len(remotes)):
            remote = remotes[(self._first + at) % len(remotes)]
            units -= remote.turn(units)
            more = more or remote.busy
            if remote.empty and remote.node not in self._there and not remote.busy:
                del self.remotes[remote.node]
        while self._forgotten and units > 0:
            units -= self._forgotten[0].turn(units)
            if not self._forgotten[0].busy:
                del self._forgotten[0]
        if self.interest.turn(now) or more or self._forgotten:
            self._call()

    @property
    def due(self) -> float:
        """When `turn` has something to do by time; 0.0: never."""
        return self.interest.due

    def _call(self) -> None:
        if not self._woken:
            self._woken = True
            self._wake()
