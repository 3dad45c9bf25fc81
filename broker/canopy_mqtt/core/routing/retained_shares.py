"""Counts the retained messages of each client and each account, and knows which of them give way to others.

Those of QoS 0 may give way, in the order in which they were set (`ByAge`): a server may discard them at any time, while
one of QoS 1 or 2 was acknowledged.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.accounts import RETAINED, RETAINED_SIZE, Account, Accounts, Room
from canopy_mqtt.core.queues.message import OVERHEAD, Message
from canopy_mqtt.core.routing.links import UPLINKS
from canopy_mqtt.core.routing.node_messages import TimedMessage
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import text_bytes

if TYPE_CHECKING:
    from mypy_extensions import i64

RETAINED_BYTES: Final = 304
"""Bytes that a retained message takes beside the characters of its topic, its payload, and the nodes of its levels:
compiled, a message of 152, 33 for each bytes object, 49 for the topic as a string, its place among those of its
account, and what the allocator rounds up."""

PROPERTIES_BYTES: Final = 48
"""Bytes that its properties take beside their own, where it has some."""

EXPIRY_BYTES: Final = 256
"""Bytes that the time of a message that expires takes among the deadlines, without its topic."""


def kept_bytes(message: Message, topic: str) -> i64:
    """Return the bytes that are counted for a message that is retained at its `topic`, without the nodes of its levels.

    The topic is kept three times: in the message, at its node, and level by level; once more among the deadlines.
    """
    text: i64 = text_bytes(topic)
    size: i64 = message.size - OVERHEAD + RETAINED_BYTES + 2 * text
    if message.properties:
        size += PROPERTIES_BYTES
    if message.expires_at != 0.0:
        size += EXPIRY_BYTES + text
    return size


class RetainedShares:
    """Counts what each client and each account has retained."""

    def __init__(self, sessions: dict[str, Session], accounts: Accounts) -> None:
        """`sessions` have what is retained in their own accounts, too."""
        self.most: i64 = 0  # bytes for one client, 0: no limit
        self._sessions = sessions
        self._bytes: dict[str, int] = {}
        # The messages of each account that may give way to other accounts, and what each of its clients has cleared,
        # which gives way to its own messages as well. Those that go are the first: a dict would look for them past all
        # that have gone before.
        self._giving: dict[Account, ByAge] = {}
        self._clearings: dict[Account, OrderedDict[str, ByAge]] = {}
        self._number: Room = accounts.rooms[RETAINED]
        self._size: Room = accounts.rooms[RETAINED_SIZE]

    def of(self, client_id: str) -> int:
        """The bytes of one client's retained messages."""
        return self._bytes.get(client_id, 0)

    def refused_by(self, message: Message, size: int, old: Message | None, given: int) -> str:
        """The setting by which its publisher may not have a message of `size` bytes in place of `old`; empty: it may.

        The size has its new levels in it. `given`: bytes that have gone by then.
        """
        client_id = message.publisher
        if self.most <= 0 or _has_no_client(client_id):
            return ""
        if isinstance(old, RetainedMessage) and old.publisher == client_id and old.shared:
            size -= old.charge
        session = self._sessions.get(client_id)
        held = self.of(client_id) - given
        replaced = old.charge if isinstance(old, RetainedMessage) and old.publisher == client_id else 0
        if held == replaced:
            # One message of each client may always be retained, within the bounds of all.
            return ""
        if held + size > self.most:
            return "limits.max_retained_bytes_per_client"
        return "" if session is None or session.account.has_room(size - given) else "limits.max_client_bytes"

    def charge(self, message: RetainedMessage, size: int, account: Account, link: bool) -> None:
        """A message of its publisher takes `size` bytes from now on, of an account. `link`: the publisher is a link's
        client, whose own bytes are not bounded."""
        message.charge = size
        message.account = account
        self._number.change(account, 1)
        self._size.change(account, size)
        if len(message.payload()) == 0:
            self._clearings.setdefault(account, OrderedDict()).setdefault(message.publisher, ByAge()).add(message)
        elif message.qos == 0 and not account.internal:
            giving = self._giving.get(account)
            if giving is None:
                giving = ByAge()
                self._giving[account] = giving
            giving.add(message)
        message.shared = not link and not _has_no_client(message.publisher)
        if message.shared:
            self._change(message.publisher, size)

    def set_aside(self, account: Account, client_id: str, count: int, size: int) -> None:
        """A client and its account take some room for what is about to be retained, or give it back (below 0)."""
        self._number.change(account, count)
        self._size.change(account, size)
        if size != 0 and not _has_no_client(client_id):
            self._change(client_id, size)

    def give_back(self, message: Message | None) -> None:
        """A message, if there is one, is retained no longer."""
        if not isinstance(message, RetainedMessage):
            return
        account = message.account
        if account is None:
            return
        if message.shared:
            self._change(message.publisher, -message.charge)
        if len(message.payload()) == 0:
            by_client = self._clearings[account]
            by_client[message.publisher].remove(message)
            if not by_client[message.publisher]:
                del by_client[message.publisher]
                if not by_client:
                    del self._clearings[account]
        elif message.place >= 0:
            giving = self._giving[account]
            giving.remove(message)
            if not giving:
                del self._giving[account]
        self._number.change(account, -1)
        self._size.change(account, -int(message.charge))
        message.account = None
        message.charge = 0

    def giver(self, room: Room, account: Account, need: int, bound: int, old: Message | None) -> RetainedMessage | None:
        """The message that is to go so that an account gets some of a room (`Room.givers`); None: it gets none.

        Not `old`, which the new one replaces: its room is counted as free already.
        """
        for each in room.givers(account, need, bound):
            message = self.giving_of(each, old)
            if message is not None:
                return message
        return None

    def giving_of(self, account: Account, old: Message | None) -> RetainedMessage | None:
        """The message of an account that goes first, but for `old`; None: none may."""
        message = self.oldest_clearing(account)
        if message is None:
            giving = self._giving.get(account)
            message = None if giving is None else giving.oldest(old)
        return message

    def cleared_bytes(self, account: Account, client_id: str = "") -> int:
        """Return the bytes of what a client, or any of an account, is known to have cleared."""
        by_client: dict[str, ByAge] = self._clearings.get(account, OrderedDict())
        return sum([int(each.bytes) for name, each in by_client.items() if client_id in (name, "")])

    def oldest_clearing(self, account: Account, client_id: str = "") -> RetainedMessage | None:
        """Return the clearing by a client of an account that is remembered for longest; None: there is none.

        Without a client identifier: that of the client that was the first to clear something.
        """
        by_client = self._clearings.get(account)
        if by_client is None:
            return None
        clearings = by_client.get(client_id) if client_id else next(iter(by_client.values()))
        return None if clearings is None else clearings.oldest(None)

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


def _has_no_client(client_id: str) -> bool:
    return client_id == "" or client_id.startswith(UPLINKS)


CHUNK: Final = 16
"""Messages that stand together: if fifteen have gone, the last one takes as much as all of them did."""


class RetainedMessage(TimedMessage):
    """A message as it is retained: without wire forms, and with what it was charged."""

    def __init__(self, message: Message, kept: i64, at: i64) -> None:
        """`kept`: its `kept_bytes`."""
        super().__init__(message, at)
        self.kept: i64 = kept
        # Bytes, with the levels that the tree got for its topic; and on whose account. None: on no account.
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


class ByAge:
    """The messages of one account that may give way, the oldest first.

    They stand in chunks, with gaps where some have gone, so that each takes eight bytes and a share of its chunk.
    """

    def __init__(self) -> None:
        self._chunks: OrderedDict[int, list[RetainedMessage | None]] = OrderedDict()
        # The number of the last chunk.
        self._last: i64 = 0
        self.bytes: i64 = 0

    def __len__(self) -> int:
        return sum([len(chunk) - chunk.count(None) for chunk in self._chunks.values()])

    def __bool__(self) -> bool:
        return len(self._chunks) > 0

    def add(self, message: RetainedMessage) -> None:
        """The youngest message."""
        chunk = self._chunks.get(self._last)
        if chunk is None or len(chunk) >= CHUNK:
            self._last += 1
            chunk = []
            self._chunks[self._last] = chunk
        message.place = self._last * CHUNK + len(chunk)
        chunk.append(message)
        self.bytes += message.charge

    def remove(self, message: RetainedMessage) -> None:
        """A message that was added is retained no longer."""
        number = message.place // CHUNK
        chunk = self._chunks[number]
        chunk[message.place % CHUNK] = None
        self.bytes -= message.charge
        message.place = -1
        if chunk.count(None) == len(chunk):
            del self._chunks[number]

    def oldest(self, but: Message | None) -> RetainedMessage | None:
        """The message that was set first, but for one; None: there is no other."""
        for chunk in self._chunks.values():
            for message in chunk:
                if message is not None and message is not but:
                    return message
        return None
