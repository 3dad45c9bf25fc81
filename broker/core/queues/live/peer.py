"""The interface of the connection behind an outbox."""

from __future__ import annotations

from broker.core.queues.requests import Asker


class Peer(Asker):
    """The interface of the connection behind an outbox."""

    def take_over(self, now: float) -> None:
        """Another connection has come with the same client identifier: this one ends [MQTT-3.1.4-3]."""
        raise NotImplementedError

    def overflow(self, now: float) -> None:
        """Its queue ran over, and the policy is to end it then."""
        raise NotImplementedError

    def comes_from(self, host: str) -> bool:
        """Whether it is a client's connection from that IP address."""
        del host
        return False
