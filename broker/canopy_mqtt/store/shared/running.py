"""A node of a shared store on an event loop: what its logic asks is asked of the database, and its time passes.

Owns the tasks of a node. Promises: after `close` none of them is left, nor a connection. Answers come on the event
loop, and none of an incarnation that is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final, Generic, Protocol, TypeVar

from canopy_mqtt.store.postgresql.database import FAILURES
from canopy_mqtt.store.shared.bounding import Clients, QueueBounds
from canopy_mqtt.store.shared.calls import (
    Ask,
    ChangedFilter,
    Claimed,
    Content,
    DeliveryKey,
    DueWill,
    End,
    Foreign,
    Group,
    Joined,
    Member,
    Noted,
    Over,
    Page,
    Piece,
    Pulled,
    RetainedRow,
    Written,
)
from canopy_mqtt.store.shared.database import SharedDatabase
from canopy_mqtt.store.shared.node import MOST, Client, Filters, Node, Note
from canopy_mqtt.store.shared.sweeping import Sweeper
from canopy_mqtt.store.shared.watching import SECOND, Watch

T = TypeVar("T")
K = TypeVar("K")

TOGETHER: Final = 100
"""Sessions that are claimed at once, or whose content is read, at most."""

AGAIN: Final = 0.1
"""Seconds before what had no answer is asked again."""
SEVERAL: Final = 0.2
"""The share of groups with more than one change from which on a group waits for more: an idle node does not."""
OUTDATED: Final = 300.0
"""Seconds without a look at the retained messages after which all are read: see `schema.CLEARED`."""
LATELY: Final = 20
"""Groups of which that share is taken, about."""
FIRST_PAUSE: Final = 1.0
"""Seconds for which a node that another process has replaced begins no incarnation; twice as many each time."""
MAX_PAUSE: Final = 60.0
"""Seconds of that at most."""
LASTING: Final = 2 * MAX_PAUSE
"""Seconds of an incarnation after which the first pause is the next one again."""


class Side(Clients, Protocol):
    """The broker that a node runs in."""

    def tell(self, piece: Piece) -> None:
        """Tell all nodes that there is a link to. `Hello`: an incarnation has begun, and all filters are known."""

    def linked(self, nodes: Collection[str]) -> bool:
        """Whether there are links to these nodes."""

    def wrote(self, noted: Sequence[Noted], written: Written) -> Iterable[Callable[[], None]]:
        """See `Calls.wrote`."""

    def keep(self, rows: Iterable[RetainedRow]) -> None:
        """Take retained messages, or that topics were cleared, as they are by now."""

    def keep_only(self, topics: Collection[str]) -> None:
        """These topics have retained messages, and no others."""

    def refused(self, what: Noted, why: str) -> None:
        """See `Calls.refused`."""

    def will_due(self, will: DueWill) -> None:
        """See `Calls.publish_will`."""

    def answered(self) -> None:
        """The database has answered, and clients may have got something."""

    def over(self) -> Iterable[Callable[[], None]]:
        """See `Calls.over`."""

    def carry(self, notes: Sequence[Note]) -> Iterable[Note]:
        """See `Calls.carry`."""

    async def count(self) -> None:
        """Count what is in the database for the limits of this broker. Called each second. Raises FAILURES."""

    def second(self, away: float, *, blocked: bool) -> None:
        """A second has passed. `away`: seconds without an answer of the database; `blocked`: see `Sweeper`."""


class Together(Generic[K, T]):
    """One call at a time for what several wait for: it is about all that is asked for by then."""

    def __init__(
        self, ask: Callable[[Sequence[K]], Awaitable[Mapping[K, T]]], alone: Callable[[K], Awaitable[T]]
    ) -> None:
        """`ask` may leave out some, which are asked for by `alone`."""
        self._ask, self._alone = ask, alone
        self._lock = asyncio.Lock()
        self._asked: dict[K, None] = {}
        self._found: dict[K, T] = {}

    async def get(self, key: K) -> T:
        self._asked[key] = None
        try:
            async with self._lock:
                if key in self._asked and len(self._asked) > 1:
                    some = list(islice(self._asked, TOGETHER))
                    for each in some:
                        del self._asked[each]
                    self._found.update(await self._ask(some))
                return self._found[key] if key in self._found else await self._alone(key)
        finally:
            self._asked.pop(key, None)
            self._found.pop(key, None)


class RunningNode:
    """A node that runs. Used on one event loop."""

    def __init__(
        self,
        database: SharedDatabase,
        *,
        filters: Callable[[], Filters],
        side: Side,
        window: float,
        dead_after: float,
        any_user: bool = True,
    ) -> None:
        """`filters`: makes a table without filters; `window`: seconds for which a group waits for more changes;
        `dead_after`: seconds without a sign of life after which a node is dead; `any_user`: a session may be claimed
        that is another user's."""
        self.database = database
        self.tell = side.tell
        self._side = side
        self._bounds = QueueBounds(database, side)
        self._window, self._dead_after, self._any_user = window, dead_after, any_user
        self._tasks: set[asyncio.Task[None]] = set()
        """Of this incarnation."""
        self._times: list[asyncio.Task[None]] = []
        self._timers: set[asyncio.TimerHandle] = set()
        self._closing: asyncio.TimerHandle | None = None
        self._begins_to_read: asyncio.TimerHandle | None = None
        self._several = 0.0
        self._current_at = 0.0
        """When the copy of the retained messages was the newest last."""
        self._found: set[str] | None = None
        """While all retained messages are read: the topics of those that were found."""
        self._claims: Together[tuple[str, Client], Claimed | Foreign | None] = Together(self._claim_free, self._claim)
        self._contents: Together[int, Content] = Together(database.content, self._content)
        self._others: list[str] = []
        """The names of the other nodes that are alive."""
        self.is_replaced = False
        """Another process is this node, and this one waits before it begins an incarnation."""
        self._pause = 0.0
        self._joined_at = 0.0
        self.node = Node(self, filters)

    def start(self) -> None:
        """Begin an incarnation, on the running event loop. The schema is there (`SharedDatabase.open`)."""
        now = asyncio.get_running_loop().time
        watch = Watch(self.database, dead_after=self._dead_after, now=now)
        sweeper = Sweeper(self.database, now, lambda name: self.node.note(End(name)))
        self._times = [
            asyncio.create_task(self._beat(watch)),
            asyncio.create_task(self._each_second(watch, sweeper)),
            asyncio.create_task(self._sweep(sweeper)),
        ]
        self.node.join()

    async def close(self, *, leaves: bool = False) -> None:
        """End the tasks and the connections. A group that is being written may be written or not. `leaves`: all is
        written, and the incarnation ends: nobody has to wait for a sign of life."""
        tasks = [*self._times, *self._tasks]
        self.node.joined = None  # nothing is asked any more
        self._stop()
        for task in self._times:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if leaves:
            with suppress(*FAILURES):
                await self.database.leave()
        await self.database.close()

    def _stop(self) -> None:
        """End what this incarnation waits for, but not who says so."""
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        for each in (self._closing, self._begins_to_read):
            if each is not None:
                each.cancel()
        self._closing = self._begins_to_read = None

    # -- time ----------------------------------------------------------------------------------------------------------

    async def _beat(self, watch: Watch) -> None:
        while True:
            await asyncio.sleep(SECOND)
            joined = self.node.joined
            if joined is not None:
                try:
                    peers = await watch.turn()
                except Over:
                    # Unless another call found it first, and this was the beat of the incarnation before.
                    if self.node.joined is joined:
                        self.node.over()
                    continue
                if peers is not None:
                    self._others = [each.name for each in peers if each.alive and each.id != joined.node]
                    self.node.saw(peers)

    async def _each_second(self, watch: Watch, sweeper: Sweeper) -> None:
        """Pass seconds on, also while a beat waits for its answer."""
        while True:
            await asyncio.sleep(SECOND)
            if watch.runs():
                self.node.second(linked=self._side.linked(self._others))
                self._side.second(watch.away, blocked=sweeper.blocked)

    async def _sweep(self, sweeper: Sweeper) -> None:
        while True:
            await asyncio.sleep(SECOND)
            with suppress(*FAILURES):
                await sweeper.turn()
            with suppress(*FAILURES):
                await self._bounds.turn(asyncio.get_running_loop().time)
            if self.node.joined is not None:
                with suppress(*FAILURES):
                    await self._side.count()

    def due(self) -> None:
        if len(self.node.notes) >= MOST:
            self._close_group()
        elif self._closing is None:
            self._closing = self._soon(self._close_group)

    def _soon(self, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call when the window is over. Also without one, what comes in one turn comes together."""
        window = self._window if self._several >= SEVERAL else 0.0
        return asyncio.get_running_loop().call_later(window, call)

    def _close_group(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        self.node.close_group()

    def read_due(self) -> None:
        if self._begins_to_read is None:
            self._begins_to_read = self._soon(self._read)

    def _read(self) -> None:
        self._begins_to_read = None
        self.node.read()

    def later(self, call: Callable[[], None]) -> None:
        def again() -> None:
            self._timers.discard(timer)
            call()

        timer = asyncio.get_running_loop().call_later(AGAIN, again)
        self._timers.add(timer)

    # -- the database --------------------------------------------------------------------------------------------------

    def _ask(
        self, call: Callable[[], Coroutine[Any, Any, T]], back: Callable[[T], None], failed: Callable[[], None]
    ) -> None:
        """Call the database in a task, which may be cancelled before it begins."""

        async def ask() -> None:
            try:
                try:
                    answer = await call()
                except Over:
                    self.node.over()
                except FAILURES:
                    failed()
                else:
                    back(answer)
                    self._side.answered()
            except Exception:
                # A fault of ours: nobody would ask again. What this incarnation has noted counts no more.
                self.node.over()
                raise

        task = asyncio.create_task(ask())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def over(self) -> Iterable[Callable[[], None]]:
        self._stop()
        return self._side.over()

    def carry(self, notes: Sequence[Note]) -> Iterable[Note]:
        return self._side.carry(notes)

    def join(self, back: Callable[[Joined | None], None]) -> None:
        async def join() -> Joined:
            await self.database.follow()
            await self._let_another_be()
            failed = await self.database.join()
            self._found = set()
            self._joined_at = asyncio.get_running_loop().time()
            return Joined(self.database.node, self.database.incarnation, failed)

        self._ask(join, back, lambda: back(None))

    async def _let_another_be(self) -> None:
        """Wait, if another process has begun an incarnation of this node: the two would end each other's without pause.

        Also where an own call to begin one had no answer: nobody else can tell.
        """
        if asyncio.get_running_loop().time() - self._joined_at >= LASTING:
            self._pause = 0.0
        if await self.database.is_replaced():
            self._pause = min(2 * self._pause, MAX_PAUSE) or FIRST_PAUSE
            self.is_replaced = True
            try:
                await asyncio.sleep(self._pause)
            finally:
                self.is_replaced = False

    def feed(self, back: Callable[[Sequence[ChangedFilter] | None], None]) -> None:
        self._ask(self.database.feed, back, lambda: back(None))

    def retained(self, back: Callable[[Sequence[object] | None], None]) -> None:
        async def read() -> Sequence[object]:
            began = asyncio.get_running_loop().time()
            if self._found is None and began > self._current_at + OUTDATED:
                self._found, self.database.seen = set(), {}
            more = True
            while more:
                rows, more = await self.database.retained()
                self._side.keep(rows)
                if self._found is not None:
                    self._found.update(row.topic for row in rows if row.payload is not None)
            if self._found is not None:
                self._side.keep_only(self._found)
            self._found, self._current_at = None, began
            return ()

        self._ask(read, back, lambda: back(None))

    def write(self, noted: Sequence[Noted], back: Callable[[Written], None]) -> None:
        self._several += ((len(noted) > 1) - self._several) / LATELY
        group = Group.of(noted)
        # What is for nobody is only looked at: there may be a filter that is not known here.
        group.publishes = [
            each
            if each.filters
            else each._replace(filters=[])
            if each.retained
            else each._replace(payload=b"", properties=None, filters=[])
            for each in group.publishes
        ]
        began = asyncio.get_running_loop().time()

        def written(answer: Written) -> None:
            if not answer.retained and self._found is None:
                self._current_at = began
            back(answer)

        self.database.ask_for_group()
        # The filters that the messages were matched with: others may be known when the call begins.
        self._ask(partial(self.database.write, group, self.database.vector), written, lambda: None)

    def wrote(self, noted: Sequence[Noted], written: Written) -> Iterable[Callable[[], None]]:
        self._bounds.wrote(noted, written)
        return self._side.wrote(noted, written)

    def refused(self, what: Noted, why: str) -> None:
        self._side.refused(what, why)

    def wills(self, back: Callable[[Sequence[DueWill] | None], None]) -> None:
        self._ask(self.database.wills, back, lambda: back(None))

    def publish_will(self, will: DueWill) -> None:
        self._side.will_due(will)

    def claim(self, client_id: str, client: Client, back: Callable[[Claimed | Foreign | None], None]) -> None:
        def answered(claimed: Claimed | Foreign | None) -> None:
            if claimed is not None:
                back(claimed)

        self._ask(partial(self._claims.get, (client_id, client)), answered, lambda: back(None))

    async def _claim(self, whose: tuple[str, Client]) -> Claimed | Foreign | None:
        client_id, client = whose
        if client.is_gone:
            # It waited for other claims, and may have its session elsewhere by now.
            return None
        clean, expiry, principal, account = client.terms
        return await self.database.claim(
            client_id, clean=clean, expiry=expiry, principal=principal, any_user=self._any_user, account=account
        )

    async def _claim_free(
        self, waiting: Sequence[tuple[str, Client]]
    ) -> dict[tuple[str, Client], Claimed | Foreign | None]:
        """Claim the sessions of those that have not gone, and do not start clean; of several of a client the first
        one's."""
        first = {client_id: client for client_id, client in reversed(waiting) if not client.is_gone}
        clients = {client_id: client for client_id, client in first.items() if not client.terms.clean}
        terms = [client.terms for client in clients.values()]
        found = await self.database.claim_free([*clients], terms, any_user=self._any_user) if terms else {}
        return {(client_id, clients[client_id]): claimed for client_id, claimed in found.items()}

    def content(self, session: int, back: Callable[[Content | None], None]) -> None:
        self._ask(partial(self._contents.get, session), back, lambda: back(None))

    async def _content(self, session: int) -> Content:
        return (await self.database.content([session]))[session]

    def read(
        self, asks: Sequence[Ask], known: Sequence[DeliveryKey], back: Callable[[Sequence[Page] | None], None]
    ) -> None:
        self._ask(partial(self.database.read, asks, known), back, lambda: back(None))

    def pull(self, share_filter: int, members: Sequence[Member], back: Callable[[Pulled | None], None]) -> None:
        self._ask(partial(self.database.pull, share_filter, members), back, lambda: back(None))
