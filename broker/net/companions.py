"""The other workers of a broker: the interface through which it asks them and tells them.

`broker.workers` implements it. A broker without workers has none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path


class Companions(ABC):
    """`nodes`: the nodes of the mesh that this one meets before it takes clients."""

    nodes: tuple[str, ...] = ()

    @abstractmethod
    def socket(self, node: str) -> Path | None:
        """The path of the Unix socket on which a node takes streams of others; None: it is on another machine."""

    @abstractmethod
    def may_come(self, node: str) -> bool:
        """Whether a node of which a store knows can be there: it is no worker that there was before."""

    @abstractmethod
    def takers(self, nodes: list[str]) -> list[str]:
        """Those of these nodes that take the sessions of this one, which is about to go."""

    @abstractmethod
    def meets(self) -> None:
        """The store is open and the mesh is joined: from here on this one waits for the others."""

    @abstractmethod
    async def emptied(self) -> bool:
        """The clients have gone here. Returns when they have gone from the others, too, where all end together.

        False: the others go on.
        """

    @abstractmethod
    async def settled(self) -> None:
        """All has come that the others had sent. Returns when each of them can say that."""
