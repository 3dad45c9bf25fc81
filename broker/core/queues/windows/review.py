"""Checks again, when the rules have changed, whether a client may still receive its queued messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.permissions import NEVER_MADE, Permissions
from broker.core.principal import Principal
from broker.core.queues.delivery import Delivery

if TYPE_CHECKING:
    from mypy_extensions import i64

HIGHEST: Final = 2
"""The QoS that lowers none."""


class Review:
    """The check of one client's queue: `left` messages from the first on remain."""

    def __init__(self, principal: Principal) -> None:
        self.left: i64 = 0
        self._principal = principal
        self._epochs: i64 = NEVER_MADE  # of the rules that were seen last
        self._allowed: Delivery | None = None  # the first that waits, once it was asked about

    def begin(self, permissions: Permissions, waiting: i64) -> None:
        """Have the right to what waits now be asked for, once for each change of the rules."""
        permissions.refresh()
        if self._epochs != permissions.epochs:
            self._epochs = permissions.epochs
            self.left = waiting
            self._allowed = None

    def most(self, delivery: Delivery, permissions: Permissions | None) -> int:
        """The QoS with which the first that waits may be sent, at most; below 0: not at all. Asks once about each."""
        if self.left <= 0 or permissions is None or not permissions.filters or delivery is self._allowed:
            return HIGHEST
        most = permissions.receive_qos(self._principal, delivery.message.topic.decode())
        if most >= 0:
            self._allowed = delivery
        return most

    def gone(self) -> None:
        """The first waits no more."""
        if self.left > 0:
            self.left -= 1
            self._allowed = None
