"""What a store offers to a node of a mesh: to take over what a dead node kept in the same database.

Owns the interfaces `Adoptions` and `Estate`. Promises of an estate: nobody else has it while it is open; it is read
some sessions at a time; what is told of a session (`took`, `page`) and what the journal is told of it in the same call
of the core, up to `end`, is one transaction: the session is in one store or in the other, whenever a process ends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from broker.core.persistence.journal import BroadcastRecord, DeliveryRecord, SessionRecord
from broker.core.persistence.pages import Page
from broker.core.queues.delivery import QUEUED


@dataclass(frozen=True)
class Abandoned:
    """A store in which clients' sessions are, and which its broker does not hold: its lease is over."""

    name: str
    """What the store is called there."""
    node: str
    """The node of the mesh that had it last."""
    epoch: int
    """One more with each broker that takes it."""
    begun: bool = False
    """Whether a node has begun to take the sessions out, since its own broker had it."""
    held: bool = False
    """Whether a node does so now."""


def cost(record: SessionRecord) -> int:
    """What a session counts for in a turn: itself, subscriptions, messages in memory, pages."""
    return 1 + len(record.subscriptions) + len(record.deliveries) + len(record.pages)


def in_order(deliveries: list[DeliveryRecord], pages: list[Page]) -> list[tuple[list[DeliveryRecord], Page | None]]:
    """What is in flight and what waits, up to each page and behind the last one."""
    if not pages:
        return [(deliveries, None)]
    found: list[tuple[list[DeliveryRecord], Page | None]] = []
    waiting = deque(kept for kept in deliveries if kept.state == QUEUED)
    before = [kept for kept in deliveries if kept.state != QUEUED]
    for page in pages:
        while waiting and waiting[0].number < page.first:
            before.append(waiting.popleft())
        found.append((before, page))
        before = []
    found.append(([*waiting], None))
    return found


class Estate(ABC):
    """What an abandoned store kept, while this broker holds it.

    Attributes:
        node: whose it was.
        count: the sessions of clients that were there when it was taken.
        sessions: those that were read and have not come here yet, with the numbers by which the store knows them.
        broadcasts: messages that were on their way to very many; `passed` names those of `sessions`.
        received: packet identifiers of QoS 2 messages of other nodes that the node has had, by their names.
        read_at: the broker's clock when it was taken, from which the records' seconds count.
    """

    def __init__(self, node: str, read_at: float) -> None:
        self.node = node
        self.read_at = read_at
        self.count = 0
        self.sessions: deque[tuple[int, SessionRecord]] = deque()
        self.broadcasts: list[BroadcastRecord] = []
        self.received: dict[str, list[int]] = {}

    @abstractmethod
    async def more(self) -> bool:
        """Read the next of the sessions that are there, some at a time. False: these were all; the next call begins
        with the first again. Raises StoreError."""

    @abstractmethod
    async def prepare(self, most: int) -> None:
        """Copy what waits on disk alone of the next sessions: so many, with subscriptions, messages and pages, about.

        It takes as long as there is much of it, and holds up nobody who waits for what the broker writes. Raises
        StoreError.
        """

    @abstractmethod
    def place(self, number: int, page: Page | None) -> None:
        """The next deliveries of a session have their place before a page; None: behind all of them."""

    @abstractmethod
    def page(self, number: int, client_id: str, page: Page) -> Page:
        """Have a page of what waits on disk alone come with a session, which the journal knows here: the page here."""

    @abstractmethod
    def took(self, number: int) -> None:
        """The journal has been told all of this session: it is not there any more."""

    @abstractmethod
    def end(self) -> None:
        """That was all of one call of the core."""

    @abstractmethod
    async def kept(self) -> None:
        """Return when everything that was told before is kept. Raises StoreError: it cannot be kept, for now."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of the store: whoever had it may have it again at once. Raises nothing."""


class Adoptions(ABC):
    """The stores of other brokers in the same database. All of it raises StoreError where the database fails."""

    @abstractmethod
    async def join(self, node: str) -> None:
        """Say which node of its mesh this broker is."""

    @abstractmethod
    async def abandoned(self) -> list[Abandoned]:
        """The stores of the same mesh whose brokers do not hold them, and in which there are sessions of clients."""

    @abstractmethod
    async def take(self, store: Abandoned, mine: Callable[[str], bool]) -> Estate | None:
        """Hold one of them, for the sessions whose client identifiers are `mine`. None: somebody else holds it."""
