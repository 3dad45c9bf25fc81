"""The SUBSCRIBE and UNSUBSCRIBE packets of a simulated client that wait for their answers.

Owns which packet identifiers these hold. Promises: what churn asks without being answered stays bounded.
"""

from __future__ import annotations

from typing import Final

from broker.core.codec.packets import Subscribe
from loadtest.load.engine.clients.connection import clock
from loadtest.load.engine.clients.sending import Session

MOST: Final = 1000
"""Requests of churn that are not answered."""

MOST_IDENTIFIERS: Final = 65_000
"""Packet identifiers in use beyond which churn asks for none."""


class Requests:
    """Those of one client, on its present connection."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._open: dict[int, tuple[int, Subscribe | None]] = {}

    def identifier(self, packet: Subscribe | None) -> int:
        """A packet identifier for what will be answered; `packet`: a SUBSCRIBE whose answer is looked at."""
        number = self._session.identifier()
        self._open[number] = (clock(), packet)
        self._session.reserved.add(number)
        return number

    def answered(self, number: int) -> tuple[int, Subscribe | None]:
        """When a request was made (microseconds), and its packet; 0: nobody made it."""
        self._session.reserved.discard(number)
        return self._open.pop(number, (0, None))

    @property
    def subscribing(self) -> bool:
        """Whether a SUBSCRIBE whose answer is looked at has none."""
        return any(packet is not None for _, packet in self._open.values())

    @property
    def many(self) -> bool:
        return len(self._open) > MOST or len(self._session.unacked) + len(self._open) > MOST_IDENTIFIERS

    def clear(self) -> None:
        self._open.clear()
        self._session.reserved.clear()
        self._session.replying.clear()
