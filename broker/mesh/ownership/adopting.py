"""Sessions of a dead node, out of its store, as sessions of this one.

Owns where each is put: it is new here, or comes into the one that its client has here by now (`merging`). Promises:
each is put there with the journal's notes in one call, so that it is in one store or in the other; all nodes hear which
sessions have come: one that has a later session of the client has this one come into its own, as after a partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.core.counters import SESSION_ENDED
from broker.core.persistence.journal import SessionRecord
from broker.core.persistence.late import deliver_late
from broker.core.persistence.pages import Page
from broker.core.persistence.restore import admit, append, append_page, subscribe
from broker.core.queues.message import Message
from broker.core.routing.router import Router
from broker.core.session.session import Session
from broker.mesh.ownership.moves.merging import is_of, waiting_again
from broker.store.adoptions import Estate, cost, in_order


class Adopter:
    """The sessions that come out of the stores of dead nodes."""

    def __init__(
        self,
        router: Router,
        giving: Callable[[str], bool],
        name: Callable[[list[str]], None],
        now: Callable[[], float],
        log: Any,
    ) -> None:
        """`giving`: whether a session is on its way to another node. `name`: tells all nodes of sessions here."""
        self.adopted = 0
        """Sessions that have come so."""
        self.dropped = 0
        """Messages that came with them and are lost: no room, or none that may be sent again."""
        self.came: Callable[[Estate, list[Session]], None] | None = None
        """Who is told of those that are new here, for which messages wait elsewhere, perhaps."""
        self._router = router
        self._giving = giving
        self._name = name
        self._now = now
        self._log = log

    def adopt(self, estate: Estate, most: int) -> list[str]:
        """Put the next sessions of a store among those here: so many, with subscriptions, messages and pages, about.

        Those that are on their way to another node meanwhile have to wait: they are the last. The client identifiers.
        """
        router = self._router
        router.peers.drain(router, self._now())
        came: list[str] = []
        fresh: list[Session] = []
        for _ in range(len(estate.sessions)):
            number, record = estate.sessions[0]
            if self._giving(record.client_id):
                estate.sessions.rotate(-1)
                continue
            estate.sessions.popleft()
            most -= cost(record)
            self._put(estate, number, record, fresh)
            estate.took(number)
            came.append(record.client_id)
            if most <= 0:
                break
        estate.end()
        self.adopted += len(came)
        if came:
            self._name(came)
        if fresh and self.came is not None:
            self.came(estate, fresh)
        return came

    def _put(self, estate: Estate, number: int, record: SessionRecord, fresh: list[Session]) -> None:
        router, now = self._router, self._now()
        session = router.sessions.get(record.client_id)
        if session is not None and session.outbox is None:
            router.look_at(session, now)
            session = router.sessions.get(record.client_id)
        dropped = self.dropped
        if session is None:
            deliveries, record.deliveries = record.deliveries, []
            session = admit(router, record, estate.read_at)
            router.nodes.numbers.keep(record.numbers.values())
            fresh.append(session)
        elif is_of(router, session, record, now):
            subscribe(router, session, record.subscriptions)
            deliveries, lost = waiting_again(session, record.deliveries)
            self.dropped += lost
        else:
            # Another user's by now: the client identifier is not this one's any more.
            self.dropped += len(record.deliveries) + sum(int(page.messages) for page in record.pages)
            self._tell_dropped(estate, record, dropped)
            return
        for run, page in in_order(deliveries, record.pages):
            estate.place(number, page)
            if run or page is None:
                self.dropped += append(router, session, run, estate.read_at)
            if page is not None:
                self._page(estate, number, session, page)
        for broadcast in estate.broadcasts:
            if record.client_id not in broadcast.passed:
                kept = broadcast.message
                expires_at = 0.0 if kept.expires_in is None else estate.read_at + max(kept.expires_in, 0.0)
                message = Message(
                    kept.topic, kept.payload, kept.qos, kept.retain, kept.properties, expires_at, kept.publisher
                )
                deliver_late(router, session, message, kept.publisher)
        router.session_table.count(session)
        self._tell_dropped(estate, record, dropped)

    def _page(self, estate: Estate, number: int, session: Session, page: Page) -> None:
        if session.journal is not None:
            append_page(session, estate.page(number, session.client_id, page))
            return
        # It ends with its connection, and keeps nothing on disk until then.
        session.offered += page.messages
        session.ledger.lost(SESSION_ENDED, page.messages)
        self.dropped += int(page.messages)

    def _tell_dropped(self, estate: Estate, record: SessionRecord, before: int) -> None:
        if self.dropped > before:
            self._log.warning(
                "messages of a moved session lost",
                client_id=record.client_id,
                node=estate.node,
                messages=self.dropped - before,
            )
