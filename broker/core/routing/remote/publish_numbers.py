"""The number of a QoS 2 publish, by which other nodes of a mesh know it when it comes to them again.

A publisher sends a PUBLISH again when its node was killed before the PUBREC. If the store has the packet identifier,
this node's clients have the message, and which nodes have it is not known: it goes to all of them again, under the
number that the store has. Owns the numbers, and what was heard of other nodes' (`node_tags`: the property on the way).
Promises: no number is given twice; a node takes each once, of the last `HEARD` of a node.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable
from typing import Final

from broker.core.routing.remote.node_tags import take_number

HEARD: Final = 16_384
"""Numbers of one node that are known. Each takes some 150 bytes, however long the name of a share group is."""

MOST_DIGITS: Final = 19
"""Of a number; what is longer is none."""

GONE: Final = 16
"""Nodes that have been given up whose numbers are known."""

KEPT: Final = 65_536
"""Numbers that came with sessions, out of the store or from nodes that were killed."""

FIRST_BITS: Final = 61
"""Of the number with which a process begins. Nobody can guess it, so that no client can have a node take a message of
another one for a repetition; what follows has room up to the largest number of a store."""


class LastNumbers:
    """So many numbers, as they stand in properties: the last ones."""

    def __init__(self, most: int) -> None:
        self.known: set[str] = set()
        self._most = most
        self._line: deque[str] = deque()

    def add(self, number: str) -> None:
        """One more that is not known."""
        line = self._line
        if len(line) >= self._most:
            self.known.discard(line.popleft())
        line.append(number)
        self.known.add(number)


class PublishNumbers:
    """Those of this process, and those that were heard. Session.numbers has those of publishes that are not released:
    0 where all nodes that want the message have it, or were waited for long enough."""

    def __init__(self) -> None:
        self._before: int = secrets.randbits(FIRST_BITS)
        self.last = self._before
        """The last one that was given."""
        # The last ones with `Session.numbers` and the packet identifier, which say whether the publish may come again.
        self._given: deque[tuple[int, dict[int, int], int]] = deque(maxlen=HEARD)
        self._kept = LastNumbers(KEPT)
        # By the client identifier of the session of a node that gives numbers.
        self._heard: dict[str, LastNumbers] = {}
        # Those of them that were given up, the first one first.
        self._gone: dict[str, None] = {}

    def next(self) -> int:
        """The number of one more publish."""
        self.last += 1
        return self.last

    def gave(self, number: int, numbers: dict[int, int], packet_id: int) -> None:
        """A publish of this packet identifier has a number. `numbers`: those of its session."""
        self._given.append((number, numbers, packet_id))

    def given_since(self, number: int) -> list[int]:
        """Numbers that were given after this one to publishes that may come again, at whatever node: the last ones."""
        found: list[int] = []
        for given, numbers, packet_id in reversed(self._given):
            if given <= number:
                break
            if numbers.get(packet_id, 0) == given:
                found.append(given)
        return found

    def keep(self, numbers: Iterable[int]) -> None:
        """Clients of this node have had what has these numbers, by the store or the node that knows them."""
        for number in numbers:
            if not self.knows(number):
                self._kept.add(str(number))

    def knows(self, number: int) -> bool:
        """Whether clients of this node have had what has a number: it was published here, or has come from a node."""
        return self._before < number <= self.last or self._has_come(str(number))

    def _has_come(self, number: str) -> bool:
        return number in self._kept.known or any(number in heard.known for heard in self._heard.values())

    def know(self, client_id: str, numbered: bool) -> None:
        """A node is there. `numbered`: whether it gives numbers."""
        self._gone.pop(client_id, None)
        if not numbered:
            self._heard.pop(client_id, None)
        elif client_id not in self._heard:
            self._heard[client_id] = LastNumbers(HEARD)

    def give_up(self, client_id: str) -> None:
        """A node has been away for so long that nothing waits for it any more; its publishers may still come again."""
        gone = self._gone
        gone[client_id] = None
        if len(gone) > GONE:
            oldest = next(iter(gone))
            del gone[oldest]
            self._heard.pop(oldest, None)

    def take(self, client_id: str, properties: bytes, share: str) -> bytes | None:
        """A message has come from a node, perhaps for a share group: its properties without the number.

        None: it has come before, from whatever node. In a share group a client of this one may be chosen again.
        """
        heard = self._heard.get(client_id)
        if heard is None:
            return properties
        number, properties = take_number(properties)
        if not number.isdecimal() or len(number) > MOST_DIGITS:
            return properties
        if share:
            # The group's name is a client's, and may have 64 KiB.
            number = f"{number} {hash(share)}"
            if self._has_come(number):
                return None
        elif self.knows(int(number)):
            return None
        heard.add(number)
        return properties
