"""A store that the nodes of a cluster share, as a broker uses it.

Owns the node, and who holds which of its sessions. Promises: acknowledgements go when the group is written that has
what they stand for; before that, connections whose sessions are elsewhere are ended, and deliveries that must not be
sent are out of flight. Durable clients are told to go to another node once the database has been away for `dead_after`.

The database expires sessions, and keeps those that are absent: nothing is loaded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.causes import INTERNAL_ERROR, MAX_TEXT
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.ledger import FULL_BYTES, FULL_MESSAGES, Ledger
from canopy_mqtt.core.persistence.journal import Saved
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.queue_terms import queue_terms
from canopy_mqtt.core.session.session import Session, SharedSession
from canopy_mqtt.core.shared import Attempt, Offer, RetainedWait, SharedSessions
from canopy_mqtt.store.base import Store, StoreError
from canopy_mqtt.store.group_commit.principals import Principals, RuleTexts
from canopy_mqtt.store.shared import records
from canopy_mqtt.store.shared.calls import (
    WILL,
    Content,
    DeliveryKey,
    DueWill,
    Empty,
    EndedWill,
    Hello,
    NewWill,
    Noted,
    Owner,
    Piece,
    Publish,
    RetainedRow,
    Skipped,
    Written,
)
from canopy_mqtt.store.shared.database import SharedDatabase, Unreachable
from canopy_mqtt.store.shared.holder import UNAVAILABLE, Holder, unclaimed
from canopy_mqtt.store.shared.holdings import Holdings, size_of
from canopy_mqtt.store.shared.journal import SharedJournal
from canopy_mqtt.store.shared.node import Node, Note
from canopy_mqtt.store.shared.numbered_filters import NumberedFilters
from canopy_mqtt.store.shared.reporting import Reports
from canopy_mqtt.store.shared.running import RunningNode

if TYPE_CHECKING:
    from canopy_mqtt.core.routing.router import Router

MOST: Final = 1_024
"""Messages of a session that are in memory at most, where the settings do not say."""
OVER: Final = (
    "the other nodes counted this one as dead, or another one has its name (cluster.node): its durable clients are "
    "disconnected"
)
FAILED_OVER: Final = (
    "the database has another history (a standby took over, or a backup was restored): durable clients are "
    "disconnected, and what it lacks of the former one is lost"
)
NO_WILL: Final = "the database cannot keep the will"
REPLACED: Final = "another process is this node (cluster.node), and its incarnation is the newer one: stop one of them"
UNREACHED: Final = 1.0
"""Seconds before a database that cannot be reached when the broker starts is tried again."""
CLOSING: Final = 10.0
"""Seconds in which what is noted has to be written when the broker stops."""


class SharedStore(Store, SharedSessions):
    """A broker's part of a shared store. Used on one event loop."""

    router: Router

    def __init__(
        self,
        database: SharedDatabase,
        *,
        window: float,
        dead_after: float,
        any_user: bool = False,
        most: int = MOST,
        rules: RuleTexts | None = None,
    ) -> None:
        """`window`, `dead_after`: see `RunningNode`; `any_user`: a client may take over the session of another user;
        `most`: messages of a session that are in memory at most; `rules`: how a principal's own rules are kept."""
        self.running = RunningNode(
            database, filters=NumberedFilters, side=self, window=window, dead_after=dead_after, any_user=any_user
        )
        self.node: Node = self.running.node
        self.journal: SharedJournal = SharedJournal(self.node.note)
        Store.__init__(self, self.journal)
        SharedSessions.__init__(self)
        self.most = most
        self.now: Callable[[], float] = lambda: 0.0
        self.blocked = False
        """An old slot could not be emptied when it was tried last: some transaction uses it."""
        self.away = 0.0
        """Seconds for which the database has not answered."""
        self._principals = Principals(rules)
        self._dead_after = dead_after
        self._tell: Callable[[Piece], None] = lambda _: None
        self._is_linked: Callable[[Collection[str]], bool] = lambda _: True
        self._after_batch: Callable[[], None] = lambda: None
        self._holders: dict[Attempt, Holder] = {}
        """Of attempts that have been answered, and are not over."""
        self._holdings = Holdings(database)
        self.reports = Reports(database, self.node, self.flush)
        self._starved: set[Holder] = set()
        self._ledgers: dict[str, Ledger] = {}
        """By client, what was dropped from queues in the database, until the log has told of it."""
        self._ready: asyncio.Future[None] | None = None
        self._groups = self._rows = self._refused = 0
        self._offers: deque[Offer] = deque()
        """What is to be retained: of the notes that are not written, in their order."""
        self._settling: dict[Offer, None] = {}
        """What is written, and not read yet."""
        self._late: list[Attempt] = []
        """CONNECTs that wait until it is known whether their sessions can be claimed."""
        self._looks: dict[RetainedWait, None] = {}
        """Subscriptions that wait for the newest retained messages."""

    def attach(
        self,
        router: Router,
        *,
        after_batch: Callable[[], None],
        tell: Callable[[Piece], None],
        linked: Callable[[Collection[str]], bool],
    ) -> None:
        """Serve a broker: call it before `open`. `after_batch`: has connections write what came into their buffers;
        `tell`, `linked`: see `Side`."""
        self.router = router
        router.retained_store.shared = self
        self._holdings.attach(router)
        self._after_batch, self._tell, self._is_linked = after_batch, tell, linked

    # -- as a store ----------------------------------------------------------------------------------------------------

    async def open(self, clock: Callable[[], float]) -> None:
        """Begin an incarnation, and read the filters of all sessions. Waits for a database that cannot be reached.

        Raises StoreError.
        """
        self.now = clock
        try:
            await self._reach()
        except BaseException:
            await self.running.database.close()
            raise
        self._ready = asyncio.get_running_loop().create_future()
        self.running.start()
        try:
            async with asyncio.timeout(CLOSING):
                await self._ready
        except TimeoutError as error:
            await self.running.close()
            raise StoreError(f"{self.running.database.place}: {UNAVAILABLE}") from error

    async def _reach(self) -> None:
        """Open the database, as soon as it can be reached. Raises StoreError."""
        told = False
        while True:
            try:
                await self.running.database.open(dead_after=self._dead_after, waits=self._notice)
            except Unreachable as error:
                if not told:
                    self._notice(f"this node begins to serve once it has its database: {error}")
                    told = True
                await asyncio.sleep(UNREACHED)
            else:
                return

    def _notice(self, line: str) -> None:
        if self.listener is not None:
            self.listener.noticed(line)

    async def load(self) -> Saved:
        """Read all retained messages, however many there are. Raises StoreError."""
        read = asyncio.get_running_loop().create_future()
        self.node.look(lambda: None if read.done() else read.set_result(None))
        while not (await asyncio.wait((read,), timeout=CLOSING))[0]:
            if self.in_trouble or self.is_away:
                await self.running.close()
                raise StoreError(f"{self.running.database.place}: {UNAVAILABLE}")
        return Saved()

    async def flush(self) -> None:
        """Wait until all that is noted is written. Raises StoreError: it is not within ten seconds."""
        written = asyncio.get_running_loop().create_future()

        def then(_: Written) -> None:
            if not written.done():
                written.set_result(None)

        self.node.note(Empty(), then)
        try:
            async with asyncio.timeout(CLOSING):
                await written
        except TimeoutError as error:
            why = self.running.database.trouble or f"{self.running.database.place}: {UNAVAILABLE}"
            raise StoreError(why) from error

    async def close(self) -> None:
        written = False
        try:
            await self.flush()
            written = True
        finally:
            await self.running.close(leaves=written)

    def figures(self) -> Iterator[tuple[str, object]]:
        yield "path", self.running.database.place
        yield "groups", self._groups
        yield "rows", self._rows
        yield "waiting", self.journal.commits_kept.journal_position - self.journal.commits_kept.committed
        yield "refused", self._refused
        yield "claimed", len(self.node.sessions)
        yield "away", round(self.away, 1)

    # -- what the other nodes tell -------------------------------------------------------------------------------------

    def hear(self, piece: Piece) -> None:
        """Take what another node tells."""
        self.node.receive(piece)
        self._after_batch()

    # -- as the node sees it (`running.Side`) --------------------------------------------------------------------------

    def tell(self, piece: Piece) -> None:
        if isinstance(piece, Hello):
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)  # the node has begun
            self._claim_late()
        self._tell(piece)

    def linked(self, nodes: Collection[str]) -> bool:
        return self._is_linked(nodes)

    def wrote(self, noted: Sequence[Noted], written: Written) -> Iterable[Callable[[], None]]:
        self._groups += 1
        self._rows += len(noted)
        for key in written.failed:
            session = self.node.sessions.get(key.session)
            if session is not None:
                assert isinstance(session.client, Holder)
                session.client.refuse(key.source, key.id)
        self._recover()
        self.journal.written(sum(map(self.journal.has_position, noted)))
        self._after_batch()
        offers = [self._offers.popleft() for what in noted if isinstance(what, Publish) and what.retained is not None]
        self._settling.update(dict.fromkeys(offers))
        return [partial(self._settle, each) for each in offers]

    def _settle(self, offer: Offer) -> None:
        self._settling.pop(offer, None)
        self.router.retained_store.written(offer)

    def keep(self, rows: Iterable[RetainedRow]) -> None:
        retained, accounts, now = self.router.retained_store, self.router.accounts, self.now()
        for row in rows:
            own = row.node == self.running.database.node
            retained.keep(records.retained_message(row, now), accounts.named(row.account or ""), row.version, own)

    def keep_only(self, topics: Collection[str]) -> None:
        self.router.retained_store.keep_only(set(topics))

    def refused(self, what: Noted, why: str) -> None:
        """End the connection of the client before what waits for the change is acknowledged."""
        self._refused += 1
        client_id = (what.publisher or "") if isinstance(what, Publish) else ""
        owner = what.owner
        kept = None if owner is None else self.node.sessions.get(owner.session)
        if kept is not None:
            client_id = kept.client_id
            if isinstance(what, NewWill) and isinstance(kept.client, Holder):
                kept.client.attempt.end(INTERNAL_ERROR, reason_codes.IMPLEMENTATION_SPECIFIC_ERROR, NO_WILL, self.now())
        whose = f'a change of the client "{client_id}"' if client_id else "a change"
        self._notice(f"{whose} cannot be kept, and is dropped: {why[:MAX_TEXT]}")
        session = self.router.sessions.get(client_id)
        if session is not None and session.claim is not None:
            text = "the database cannot keep what this client has sent"
            session.claim.end(INTERNAL_ERROR, reason_codes.IMPLEMENTATION_SPECIFIC_ERROR, text, self.now())

    def answered(self) -> None:
        self._after_batch()

    def over(self) -> Iterable[Callable[[], None]]:
        self._notice(FAILED_OVER if self.running.database.has_moved else OVER)
        self.away = 0.0  # the database has said so
        self._late = [*self.waiting.values()]
        for holder in list(self._holders.values()):
            holder.lost()
        self.journal.kept.clear()
        self._after_batch()
        for offer in list(self._settling):
            self._settle(offer)
        return [partial(self._looked, each) for each in self._looks]

    def carry(self, notes: Sequence[Note]) -> Iterable[Note]:
        """What is noted of sessions counts no more. What clients without one have published is written in the next
        incarnation, and acknowledged then. So is what is known of wills: the database has each once."""
        for what, then in notes:
            if isinstance(what, EndedWill):
                yield Note(what, None)
            elif isinstance(what, NewWill):
                # It may be written, and its client was not accepted.
                yield Note(EndedWill(*what.owner, None), None)
            elif self.journal.has_position(what):
                carried = isinstance(what, Publish) and what.session is None
                if isinstance(what, Publish) and what.filters is not None:
                    # The call of the incarnation before may still have the former list.
                    what = what._replace(filters=[])
                if isinstance(what, Publish) and what.retained is not None:
                    offer = self._offers.popleft()
                    if carried:
                        self._offers.append(offer)
                    else:
                        self.router.retained_store.written(offer)
                is_will = isinstance(what, Publish) and what.will is not None
                yield Note(what if carried else Skipped(), then if is_will else None)

    def will_due(self, will: DueWill) -> None:
        principal = self._principal(will.client_id, will.principal)
        self.router.wills.submit(records.due_will(will), will.client_id, None, principal, self.now(), will.will)

    async def count(self) -> None:
        await self._holdings.turn(asyncio.get_running_loop().time)

    def second(self, away: float, *, blocked: bool) -> None:
        """A second has passed. `away`: seconds without an answer of the database; `blocked`: see `Sweeper`."""
        self.away, self.blocked = away, blocked
        if self.in_trouble or self.running.is_replaced:
            self.journal.commits_kept.fail()
            if self.listener is not None:
                self.listener.failed(self.running.database.trouble or REPLACED)
        else:
            self._recover()
        if self.in_trouble or self.is_away:
            for wait in list(self._looks):
                self._looked(wait)
        if self.is_away or self.running.is_replaced:
            late, self._late = self._late, []
            for attempt in late:
                unclaimed(attempt)
        elif self.node.joined is not None:
            self._claim_late()
        if self.is_away:
            for holder in list(self._holders.values()):
                holder.move()
        self._ledgers = {name: each for name, each in self._ledgers.items() if each.unreported is not None}
        starved, self._starved = self._starved, set()
        for holder in starved:
            if holder.claimed is not None:
                self.node.wants(holder.claimed)
        self._after_batch()

    def terms(self, client_id: str, principal: str) -> tuple[int, int]:
        terms = queue_terms(self.router.limits, client_id, self._principal(client_id, principal).user_name)
        return terms.session_messages, terms.session_bytes

    def dropped(self, client_id: str, principal: str, count: int, *, messages: bool) -> None:
        """Count messages that were dropped. Not in the ledger of a session here, which has what came into memory."""
        ledger = self._ledgers.get(client_id)
        if ledger is None:
            ledger = self._ledgers[client_id] = Ledger(client_id, self.router.counters)
            ledger.principal = self._principal(client_id, principal)
        ledger.lost(FULL_MESSAGES if messages else FULL_BYTES, count)

    def _principal(self, client_id: str, text: str) -> Principal:
        try:
            return self._principals.read(text, client_id)
        except (ValueError, TypeError, KeyError, AttributeError):  # no broker wrote that
            return Principal()

    @property
    def in_trouble(self) -> bool:
        """Whether the group that is being written has to be asked again."""
        return self.running.database.trouble != ""

    @property
    def is_away(self) -> bool:
        """Whether the database has not answered for so long that this node counts as dead."""
        return self.away >= self._dead_after

    def _recover(self) -> None:
        if self.journal.commits_kept.failed:
            self.journal.commits_kept.recover()
            if self.listener is not None:
                self.listener.recovered()

    # -- as holders see it (`holder.Place`) ----------------------------------------------------------------------------

    def opened(self, holder: Holder, content: Content) -> None:
        attempt = holder.attempt
        self._holders[attempt] = holder
        came = holder.claimed is not None and holder.claimed.present
        self._holdings.change(attempt.principal.account_name(), -1 if came else 0, -size_of(content.subscriptions))

    def starved(self, holder: Holder) -> None:
        self._starved.add(holder)

    # -- as the core sees it -------------------------------------------------------------------------------------------

    def claim(self, attempt: Attempt) -> None:
        """See `SharedSessions.claim`. Where no session can be claimed, a second passes before it is answered so: the
        database may answer again, or an incarnation be about to begin. Without a claim, a clean CONNECT leaves the
        session that there is."""
        self._late.append(attempt)
        if self.node.joined is not None and not self.is_away:
            self._claim_late()

    def _claim_late(self) -> None:
        late, self._late = self._late, []
        for attempt in late:
            if not attempt.is_gone:
                self.node.claim(attempt.client_id, Holder(self, attempt, self._principals.write(attempt.principal)))

    def left(self, attempt: Attempt) -> None:
        holder = self._holders.pop(attempt, None)
        if holder is not None:
            self._starved.discard(holder)
            stays = holder.claimed is not None and attempt.expiry > 0
            holder.left()
            # Its subscriptions are counted with the next look into the database.
            self._holdings.change(attempt.principal.account_name(), 1 if stays else 0, 0)

    def look(self, wait: RetainedWait) -> None:
        """Have a subscription get the newest retained messages; while the database is away, those that are here."""
        if self.in_trouble or self.is_away:
            wait.start()
            return
        self._looks[wait] = None
        self.node.look(partial(self._looked, wait))

    def _looked(self, wait: RetainedWait) -> None:
        if wait in self._looks:
            del self._looks[wait]
            wait.go(self.now())

    def retain(self, offer: Offer, origin: Session | None) -> None:
        """Note what is to be retained. Where the store can take nothing more, it is not, and that is counted."""
        session = origin if isinstance(origin, SharedSession) else None
        kept = None if session is None else self.journal.kept.get(session.client_id)
        if self.journal.commits_kept.full or (session is not None and kept is None):
            self.router.counters.retained_refused += 1
            self.router.retained_store.written(offer)
            return
        self._offers.append(offer)
        self.journal.note(records.retained(offer, None if kept is None else kept.owner, self.now()))

    def will_ended(self, kept: object, delay: int) -> None:
        assert isinstance(kept, Owner)
        self.node.note(EndedWill(*kept, delay if delay >= 0 else None))

    def keep_will(self, kept: object, message: Message, live: Callable[[], object], offer: Offer | None) -> None:
        """Note the message of a will; one of QoS 0 is for no durable session."""
        assert isinstance(kept, Owner)
        if offer is not None:
            self._offers.append(offer)
        noted = records.publish(message, None, 0, self.now(), offer)._replace(will=kept)
        if message.qos == 0:
            noted = noted._replace(payload=b"", properties=None, filters=None)
        key = DeliveryKey(kept.session, WILL, kept.epoch)
        self.journal.note(noted, lambda written: None if key in written.failed else _live(live, written))

    def holds(self, session: Session) -> bool:
        """Return whether a session is claimed, and so in the database."""
        holder = None if session.claim is None else self._holders.get(session.claim)
        return holder is not None and holder.claimed is not None

    def publish(
        self,
        message: Message,
        session: Session | None,
        packet_id: int,
        live: Callable[[], object] | None,
        offer: Offer | None,
    ) -> None:
        """Note a message, also where no filter matches that is known: there may be another by now, and the group looks.
        Only while the database is away, it is not held up for that, unless it is to be retained."""
        held = packet_id > 0 or offer is not None or not self.in_trouble
        if not held and not self.node.filters.match(message.topic.decode()):
            return
        owner = None
        if session is not None:
            kept = self.journal.kept.get(session.client_id)
            if kept is None:
                # Its session is elsewhere, and its connection ends: nothing is acknowledged.
                if offer is not None:
                    self.router.retained_store.written(offer)
                return
            owner = kept.owner
        if offer is not None:
            self._offers.append(offer)
        # Its session is lost where the client has sent the message to another node by now: that node delivers it.
        then = None if live is None else partial(_live, live)
        self.journal.note(records.publish(message, owner, packet_id, self.now(), offer), then)


def _live(live: Callable[[], object], written: Written) -> None:
    del written
    live()
