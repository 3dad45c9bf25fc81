"""The bus between nodes, as the rooms of the mesh use it. A room is what hears the messages of one kind on each node.

Owns the interfaces `Bus` and `Room`, and the kinds of messages. Promises of a bus: all calls are on the event loop's
thread. Between `Room.joined` and `Room.left` of a node, everything that `send` took for it arrives there once and in
order. A bus that cannot keep that (a gap, a queue that is full, a node that is silent) says `left`, and `joined` when
the node is back: each room then begins with that node anew. So no room repeats anything itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

import msgspec
from mypy_extensions import mypyc_attr

from broker.core.codec.errors import ProtocolError

INTEREST: Final = 1
RETAINED: Final = 2
OWNERSHIP: Final = 3
PIPES: Final = 4
LINKS: Final = 5
WILLS: Final = 6
"""Kinds of messages, each for one room. 0 and what is above 15 are the bus's own."""


UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What msgspec raises of bytes that no node writes: also arrays in arrays, and text that is none."""

UNUSABLE: Final = (*UNREADABLE, ProtocolError, ValueError, TypeError, KeyError, AttributeError)
"""The same, and what is raised of a topic name, of properties, or of a principal that no node has."""


class ProtocolFault(Exception):
    """A node has said what no node says. The bus lets go of it: `left`, and the log names it."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Room(ABC):
    """What hears the messages of one kind that other nodes send.

    What it raises is logged, and ends the membership of the node whose message it was: nobody else notices.
    """

    @abstractmethod
    def joined(self, node: str) -> None:
        """A node is there, and knows nothing of us yet."""

    @abstractmethod
    def left(self, node: str) -> None:
        """A node is gone, or has to begin anew. What was sent and has not arrived never will."""

    @abstractmethod
    def received(self, node: str, data: bytes) -> None:
        """A message of this room's kind. Raises ProtocolFault."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Bus(ABC):
    """Carries messages between this node and the others. `node`: this node's id."""

    node: str

    @abstractmethod
    def attach(self, kind: int, room: Room) -> None:
        """Have a room hear the messages of a kind. Before the bus is started."""

    @abstractmethod
    def nodes(self) -> list[str]:
        """The nodes that are there, without this one."""

    def version(self, node: str) -> int:
        """The version that is spoken with a node that is there: rooms that are younger say nothing to an older one."""
        del node
        return 1

    @abstractmethod
    def send(self, node: str, kind: int, data: bytes) -> None:
        """Have a message arrive at a node, with all others of this turn of the event loop.

        Never waits and never raises; nothing happens where the node is not there. Messages that do not fit into the
        bound of what may wait for a node end its membership.
        """
