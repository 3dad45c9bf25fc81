"""The SUBSCRIBE and UNSUBSCRIBE packets of a simulated client that wait for their answers.

Owns which packet identifiers these hold. Promises: what churn asks without being answered stays bounded.
"""

from __future__ import annotations

from typing import Final

from canopy_load.engine.clients.connection import clock
from canopy_load.engine.clients.sending import Session
from canopy_mqtt.core.codec.packets import Subscribe

MAX_REQUESTS: Final = 1000
"""Requests of churn that are not answered."""

MAX_IDENTIFIERS: Final = 65_000
"""Packet identifiers in use beyond which churn asks for none."""


class Requests:
    """The open requests of one client on its present connection."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._open: dict[int, tuple[int, Subscribe | None]] = {}

    def identifier(self, packet: Subscribe | None) -> int:
        """Return a packet identifier for a request; `packet`: a SUBSCRIBE whose answer is checked."""
        number = self._session.identifier()
        self._open[number] = (clock(), packet)
        self._session.reserved.add(number)
        return number

    def answered(self, number: int) -> tuple[int, Subscribe | None]:
        """Return the time of a request (microseconds) and its packet; 0: there was no such request."""
        self._session.reserved.discard(number)
        return self._open.pop(number, (0, None))

    @property
    def subscribing(self) -> bool:
        """True while a SUBSCRIBE of the scenario (not one of `churn`) has no answer."""
        return any(packet is not None for _, packet in self._open.values())

    @property
    def many(self) -> bool:
        return len(self._open) > MAX_REQUESTS or len(self._session.unacked) + len(self._open) > MAX_IDENTIFIERS

    def clear(self) -> None:
        self._open.clear()
        self._session.reserved.clear()
        self._session.replying.clear()
