"""The bytes of retained messages of each client, by the publisher's client identifier.

A message is charged to its publisher, with the levels that the tree got for it, and credited when it is removed. The
broker's own messages and those from a link to an upstream broker are charged to no client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.queues.message import OVERHEAD, Message, MessageCopy
from broker.core.routing.remote.loop_detection import UPLINKS
from broker.core.session.session import Session
from broker.core.topics.filter_bytes import text_bytes

if TYPE_CHECKING:
    from mypy_extensions import i64


RETAINED_BYTES: Final = 256
"""What a retained message takes beside the characters of its topic, its payload, and the nodes of its levels: compiled,
a message of 128, 33 for each bytes object, 49 for the topic as a string, and what the allocator rounds up."""

PROPERTIES_BYTES: Final = 48
"""What its properties take beside their bytes, where it has some."""

EXPIRY_BYTES: Final = 256
"""What the time of a message that expires takes among the deadlines, without its topic."""


def kept_bytes(message: Message, topic: str) -> i64:
    """What is counted for a message that is retained at its `topic`, without the nodes of its levels.

    The topic is kept three times: in the message, at its node, and level by level; once more among the deadlines.
    """
    text: i64 = text_bytes(topic)
    size: i64 = message.size() - OVERHEAD + RETAINED_BYTES + 2 * text
    if message.properties:
        size += PROPERTIES_BYTES
    if message.expires_at != 0.0:
        size += EXPIRY_BYTES + text
    return size


class RetainedMessage(MessageCopy):
    """A message as it is retained: without wire forms, and with what it was charged."""

    def __init__(self, message: Message, kept: i64) -> None:
        """`kept`: its `kept_bytes`."""
        super().__init__(message)
        self.kept: i64 = kept
        self.charge: i64 = 0

    @property
    def levels(self) -> int:
        """The bytes that the levels of its topic are charged with; they pass on to the message that replaces it."""
        if self.charge <= 0:
            return 0
        return self.charge - self.kept


class RetainedShares:
    """The bytes of each client's retained messages. `most`: the limit for one client, 0: no limit."""

    def __init__(self, most: int, sessions: dict[str, Session]) -> None:
        """`sessions` have what is retained in their own accounts, too."""
        self.most: i64 = most
        self._sessions = sessions
        self._bytes: dict[str, int] = {}

    def of(self, client_id: str) -> int:
        """The bytes of one client's retained messages."""
        return self._bytes.get(client_id, 0)

    def refused_by(self, message: Message, size: int, old: Message | None) -> str:
        """The setting by which its publisher may not have a message of `size` bytes in place of `old`; empty: it may.

        The size has its new levels in it.
        """
        client_id = message.publisher
        if self.most <= 0 or _nobodys(client_id):
            return ""
        if isinstance(old, RetainedMessage):
            size += old.levels
            if old.publisher == client_id:
                size -= old.charge
        session = self._sessions.get(client_id)
        held = self.of(client_id)
        replaced = old.charge if isinstance(old, RetainedMessage) and old.publisher == client_id else 0
        if held == replaced:
            # One message of each client may always be retained, within the bounds of all.
            return ""
        if held + size > self.most:
            return "limits.max_retained_bytes_per_client"
        return "" if session is None or session.account.has_room(size) else "limits.max_client_bytes"

    def charge(self, message: RetainedMessage, size: int) -> None:
        """A message of its publisher takes `size` bytes from now on."""
        client_id = message.publisher
        if _nobodys(client_id):
            return
        message.charge = size
        self._change(client_id, size)

    def give_back(self, message: Message | None) -> None:
        """A message, if there is one, is retained no longer."""
        if not isinstance(message, RetainedMessage) or message.charge == 0:
            return
        self._change(message.publisher, -message.charge)
        message.charge = 0

    def _change(self, client_id: str, change: int) -> None:
        size = self.of(client_id) + change
        if size > 0:
            self._bytes[client_id] = size
        else:
            self._bytes.pop(client_id, None)
        session = self._sessions.get(client_id)
        if session is not None:
            session.account.retained = size
            session.account.fit()


def _nobodys(client_id: str) -> bool:
    return client_id == "" or client_id.startswith(UPLINKS)
