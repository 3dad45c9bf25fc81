"""What the ownership of sessions needs of the broker that a node is: its clocks, its turns, and its links to others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from broker.core.queues.message import Message
from broker.mesh.bus import Bus
from broker.mesh.interest.confirmations import Waiter
from broker.mesh.interest.room import InterestRoom
from broker.mesh.links.late import hand_over, waiting
from broker.mesh.links.link import NodeLink
from broker.mesh.ownership.messages import Late, Missed
from broker.mesh.ownership.shell import Shell

if TYPE_CHECKING:
    from broker.net.server import Server


class NodeShell(Shell):
    """See `Shell`. `links`: those to the other nodes, by name; `turn_soon`: the rooms get their turns."""

    def __init__(
        self,
        server: Server,
        bus: Bus,
        interest: InterestRoom,
        links: Mapping[str, NodeLink],
        turn_soon: Callable[[], None],
    ) -> None:
        self._server = server
        self._loop = server.loop
        self._bus = bus
        self._interest = interest
        self._links = links
        self._turn_soon = turn_soon

    def now(self) -> float:
        return self._loop.time()

    def wall(self) -> float:
        return time.time()

    def soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(self._call, call)

    def known(self) -> set[str]:
        return set(self._links)

    def settle(self, call: Callable[[set[str]], None]) -> None:
        if not self._interest.wait(_Settled(self, call), self._loop.time()):
            self.settled(call, True)

    def settled(self, call: Callable[[set[str]], None], everywhere: bool) -> None:
        """All nodes that are there know what is wanted here, or some do not."""
        interest = self._interest.interest
        there = self._bus.nodes()
        knowing = {node for node in there if everywhere or interest.confirmed_by(node) >= interest.version}
        self.soon(lambda: call(self.known() - knowing))

    def arrived(self, node: str, call: Callable[[], None]) -> None:
        link = self._links.get(node)
        if link is None:
            call()
        else:
            link.when_arrived(call)

    def waiting(self, missed: Missed, filters: list[str]) -> list[Message]:
        return list(waiting(self._links, missed, filters))

    def hand_over(self, lates: list[Late]) -> None:
        for late in lates:
            if late.to in self._links:
                self._interest.expect(late.to, late.filters)
        for late in hand_over(self._links, lates):
            self._server.log.warning("messages of a moved session lost", node=late.to, move=late.name)

    def takers(self, nodes: list[str]) -> list[str]:
        companions = self._server.companions
        return nodes if companions is None else companions.takers(nodes)

    def wake(self) -> None:
        self._turn_soon()

    def _call(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self._server.faults.broke("mesh", error)
        self.wake()


class _Settled(Waiter):
    """Something that is called when all nodes know what is wanted here."""

    def __init__(self, shell: NodeShell, call: Callable[[set[str]], None]) -> None:
        self._shell = shell
        self._called = call

    def confirmed(self, everywhere: bool) -> None:
        self._shell.settled(self._called, everywhere)
