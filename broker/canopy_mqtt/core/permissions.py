"""Access control for routing: which decisions may be cached, and until when.

Owns `Permissions`, one for each access control of a broker. Results are cached where they are used (a route, a
connection), with the stamp of their computation; they are valid as long as the stamp is.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from canopy_mqtt.core.hooks import UNSTEADY, AccessControl
from canopy_mqtt.core.principal import Principal

NEVER_MADE: Final = -1
"""A stamp that no verdict has."""


class Permissions:
    """The decisions of one access control, and whether they may be cached."""

    def __init__(self, asked: AccessControl, before: int = 0) -> None:
        """`asked` is who is asked, guards included; `before`: the `epochs` of the one in whose place this is."""
        self.asked = asked
        self.source = asked.source()
        self._epoch = self.source.epoch
        # How often what was said before has lost its worth.
        self.epochs: i64 = before + 1
        # The same, and how often a receiver has become another principal.
        self._stamp: i64 = self.epochs << 32

    @property
    def steady(self) -> bool:
        """Return whether verdicts may be remembered as long as `epochs` stays."""
        return self.source.epoch != UNSTEADY

    @property
    def filters(self) -> bool:
        """Return whether some client may not be sent everything."""
        return self.source.filters_deliveries

    def stamp(self) -> i64:
        """Return the stamp of verdicts about deliveries. Call it where they are used: it looks for a new epoch."""
        self.refresh()
        return self._stamp

    def delivery_stamp(self) -> i64:
        """Return `stamp` while some may not be sent everything, else 0: recipients are computed with it."""
        return self.stamp() if self.source.filters_deliveries else 0

    def refresh(self) -> None:
        """See whether access control says other things by now."""
        epoch = self.source.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self.epochs += 1
            self._stamp += 1
        elif epoch == UNSTEADY:
            self._stamp += 1

    def publish_key(self, header: i64) -> i64:
        """Return the key of a verdict about a publish; `header`: the first byte of its packet."""
        self.refresh()
        return self.epochs << 8 | header

    def somebody_else(self) -> None:
        """A session that has subscriptions has another principal."""
        self._stamp += 1

    def receive_qos(self, principal: Principal, topic: str) -> int:
        """The QoS with which a client is sent messages of the topic, at most; FORBIDDEN: it is sent none."""
        return self.asked.receive_qos(principal, topic)

    def bars(self, principal: Principal, topic: bytes) -> bool:
        """Return whether it is sent none, of a topic as messages have it."""
        return self.asked.receive_qos(principal, topic.decode()) < 0
