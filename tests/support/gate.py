"""Access control that answers every CONNECT as a test tells it to."""

from __future__ import annotations

from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.core.hooks import AccessControl, Origin, Ticket


class Gate(AccessControl):
    """Says `answer` to each client; keeps the tickets, so that a test can answer later, and where clients came from."""

    def __init__(self, answer: int = 0) -> None:
        super().__init__()
        self.answer = answer
        self.tickets: list[Ticket] = []
        self.origins: list[Origin] = []

    def admit(self, connect: Connect, origin: Origin, ticket: Ticket) -> int:
        del connect
        self.tickets.append(ticket)
        self.origins.append(origin)
        return self.answer
