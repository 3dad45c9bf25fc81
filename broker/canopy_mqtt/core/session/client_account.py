"""Counts what one client holds of `limits.max_client_bytes`, and bounds its messages by what that leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.accounts import Account
from canopy_mqtt.core.queue_totals import UNLIMITED, bound

if TYPE_CHECKING:
    from mypy_extensions import i64

    from canopy_mqtt.core.queues.message_queue import MessageQueue
    from canopy_mqtt.core.queues.send_window import SendWindow

MESSAGE_ROOM: Final = 1_048_576
"""Bytes of messages that may wait in a session, as many that may be in flight, and as many in the queues of share
groups for which its client answers, whatever else the client holds."""


class ClientAccount:
    """Bytes, by use. A caller that changes `filters` or `retained` calls `fit`."""

    def __init__(self, owner: Account, max_inflight_bytes: i64) -> None:
        """`owner`: the account of the client's principal, which holds all of this but what is retained."""
        self.owner = owner
        # Its subscriptions, each as if it shared nothing with others (`SubscriptionTable`).
        self.filters: i64 = 0
        # What it has published and is retained (`routing.retained`).
        self.retained: i64 = 0
        # The session by itself (`session_bytes`).
        self.session: i64 = 0
        # The queues of share groups for which its client answers (`routing.share_queues`).
        self.shared: i64 = 0
        self.max_bytes: i64 = UNLIMITED
        self.max_inflight_bytes: i64 = max_inflight_bytes
        # The session's, once they are made: they are given their bounds from here.
        self.queue: MessageQueue | None = None
        self.window: SendWindow | None = None

    def belong_to(self, owner: Account) -> None:
        """Let another account answer for what waits in the session, now and later."""
        self.owner = owner
        if self.queue is not None:
            self.queue.belong_to(owner)

    def limit(self, max_bytes: int, max_inflight_bytes: int) -> None:
        """Bound the account, and what is in flight by itself. 0: unlimited."""
        self.max_bytes = bound(max_bytes)
        self.max_inflight_bytes = bound(max_inflight_bytes)
        if self.window is not None:
            self.window.max_bytes = self.max_inflight_bytes
        self.fit()

    def resemble(self, other: ClientAccount) -> None:
        """Take over what another account holds, without messages, and its bounds."""
        self.filters, self.retained, self.session = other.filters, other.retained, other.session
        self.shared = other.shared
        self.max_bytes, self.max_inflight_bytes = other.max_bytes, other.max_inflight_bytes

    def has_room(self, size: i64) -> bool:
        """Return whether its client may have `size` bytes more."""
        return size <= self.room

    @property
    def room(self) -> i64:
        """Bytes that its client may have more, at most `UNLIMITED`."""
        return UNLIMITED if self.max_bytes >= UNLIMITED else self.max_bytes - self.bytes

    @property
    def bytes(self) -> i64:
        """All that its client has."""
        size: i64 = self.filters + self.retained + self.session + self.shared
        if self.queue is not None:
            size += self.queue.bytes
        if self.window is not None:
            size += self.window.bytes
        return size

    def group_room(self, max_user_bytes: i64) -> i64:
        """Return the bytes that the queues of share groups for which its client answers may have more, all together."""
        left: i64 = self.room
        if left < MESSAGE_ROOM - self.shared:
            left = MESSAGE_ROOM - self.shared
        if max_user_bytes > 0 and not self.owner.internal:
            most: i64 = self.owner.user_room(max_user_bytes)
            if most < left:
                left = most
        return left

    def fit(self) -> None:
        """Bound messages by what the rest leaves: called when that has changed, and before one is queued."""
        if self.max_bytes >= UNLIMITED:
            return
        left: i64 = self.max_bytes - self.filters - self.retained - self.session - self.shared
        if left < MESSAGE_ROOM:
            left = MESSAGE_ROOM
        window = self.window
        if window is not None:
            window.max_bytes = left if left < self.max_inflight_bytes else self.max_inflight_bytes
            left -= window.bytes
            if left < MESSAGE_ROOM:
                left = MESSAGE_ROOM
        queue = self.queue
        if queue is not None:
            queue.max_bytes = left if left < queue.own_max_bytes else queue.own_max_bytes
