"""The retained messages of one account that may give way, in the order in which they were set.

These are of QoS 0: a server may discard them at any time (section 3.3.1.3), while one of QoS 1 or 2 was acknowledged.
They stand in chunks, so that each takes eight bytes and a share of its chunk.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from broker.core.queues.message import Message, MessageCopy

if TYPE_CHECKING:
    from mypy_extensions import i64

    from broker.core.accounts import Account

CHUNK: Final = 16
"""Messages that stand together: if fifteen have gone, the last one takes as much as all of them did."""


class RetainedMessage(MessageCopy):
    """A message as it is retained: without wire forms, and with what it was charged."""

    def __init__(self, message: Message, kept: i64) -> None:
        """`kept`: its `kept_bytes`."""
        super().__init__(message)
        self.kept: i64 = kept
        # Bytes, with the levels that the tree got for its topic; and on whose account. None: on nobody's.
        self.charge: i64 = 0
        self.account: Account | None = None
        # Whether its publisher is charged, too.
        self.shared = False
        # Its place among those of the account that may give way: the number of the chunk, times `CHUNK`, and where in
        # it. -1: it may not.
        self.place: i64 = -1

    @property
    def levels(self) -> int:
        """The bytes that the levels of its topic are charged with; they pass on to the message that replaces it."""
        if self.charge <= 0:
            return 0
        return self.charge - self.kept


def account_name(message: Message) -> str:
    """The name of the account that holds a retained message, as a store keeps it; empty: it is the broker's own."""
    account = message.account if isinstance(message, RetainedMessage) else None
    return "" if account is None or account.internal else account.name


class Chunk:
    """A few messages, with gaps where some have gone."""

    def __init__(self) -> None:
        self.messages: list[RetainedMessage | None] = []
        self.count: i64 = 0


class ByAge:
    """The messages, the oldest first."""

    def __init__(self) -> None:
        self._chunks: OrderedDict[int, Chunk] = OrderedDict()
        # The number of the last chunk.
        self._last: i64 = 0

    def __len__(self) -> int:
        return sum([int(chunk.count) for chunk in self._chunks.values()])

    def __bool__(self) -> bool:
        return len(self._chunks) > 0

    def add(self, message: RetainedMessage) -> None:
        """The youngest message."""
        chunk = self._chunks.get(self._last)
        if chunk is None or len(chunk.messages) >= CHUNK:
            self._last += 1
            chunk = Chunk()
            self._chunks[self._last] = chunk
        message.place = self._last * CHUNK + len(chunk.messages)
        chunk.messages.append(message)
        chunk.count += 1

    def remove(self, message: RetainedMessage) -> None:
        """A message that was added is retained no longer."""
        number = message.place // CHUNK
        chunk = self._chunks[number]
        chunk.messages[message.place % CHUNK] = None
        chunk.count -= 1
        message.place = -1
        if chunk.count == 0:
            del self._chunks[number]

    def oldest(self, but: Message | None) -> RetainedMessage | None:
        """The message that was set first, but for one; None: there is no other."""
        for chunk in self._chunks.values():
            for message in chunk.messages:
                if message is not None and message is not but:
                    return message
        return None
