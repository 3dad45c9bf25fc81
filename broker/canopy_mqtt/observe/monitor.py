"""Checks the queues once a second: old messages, slow clients, losses.

Owns the lines about them. Each client has one line for each `queue.report_interval` in which it lost messages, and each
loss is in exactly one line. A check writes at most `LINES` lines of a kind; the others follow at the next check, or are
summed up. A client is slow when its oldest message has waited for `queue.slow_after` seconds, and no longer when the
wait is below half of that: one line each way. A check costs next to nothing while no message waits and no client has
lost any.
"""

from __future__ import annotations

import heapq
from typing import Any, Final

from canopy_mqtt.core.accounts import REFUSED
from canopy_mqtt.core.ledger import DROP_CAUSES, Ledger, by_cause
from canopy_mqtt.core.queue_totals import QueueTotals
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.net.connections.admission import Admission
from canopy_mqtt.observe.recent_clients import RecentClients
from canopy_mqtt.settings import Settings

PEERS: Final = 20_000
"""Peers that are checked in one call: some milliseconds."""

LINES: Final = 500
"""Log lines of one kind in one check: some milliseconds."""

LISTED: Final = 10
"""Slow subscribers under `$SYS/broker/slow/`, the slowest first; `canopy ctl clients --min-lag` lists them all."""

MAX_LOSERS: Final = 10_000
"""Clients with losses to report, above which the losses of disconnected ones are summed up at once."""

FIELDS: Final = tuple(cause.replace("-", "_") for cause in DROP_CAUSES)
"""The names of the causes as fields of a log line."""


class SlowClient:
    """A subscriber that does not keep up, as the last check found it. Times in seconds, sizes in bytes."""

    def __init__(self, client_id: str, ledger: Ledger, now: float) -> None:
        self.client_id = client_id
        self.since = now
        self.seen = now
        self.delay = 0.0
        # In its send buffer and in the queue of its session.
        self.waiting = 0
        self.bytes = 0
        self.high_water = 0
        self._ledger = ledger
        self._dropped_before = ledger.in_all()

    def update(self, session: Session, send_buffer: SendBuffer, delay: float, now: float) -> None:
        self.seen = now
        self.delay = delay
        self.waiting = int(send_buffer.messages + session.waiting_messages())
        self.bytes = int(send_buffer.bytes + session.waiting_bytes())
        self.high_water = max(int(send_buffer.high_water), self.waiting)

    def dropped(self) -> int:
        """Return the messages that this client has lost, for as long as its session lives."""
        return self._ledger.in_all()

    def dropped_meanwhile(self) -> int:
        return self._ledger.in_all() - self._dropped_before


class Monitor:
    """Checks one broker's queues. It has no timer of its own: the server calls `look`."""

    def __init__(self, router: Router, settings: Settings, log: Any, now: float, admission: Admission | None) -> None:
        self._router = router
        self._totals: QueueTotals = router.counters.totals
        self._log = log
        self._admission = admission
        self.change(settings)
        self._slow: dict[str, SlowClient] = {}
        self._reported_at = now
        self._report_at = now + self._interval
        # The peers that the present check has not come to yet, when it began, and who has become slow in it.
        self._peers: list[Session] = []
        self._began = now
        self._entered: list[SlowClient] = []
        # The slowest, in this order.
        self.slowest: list[SlowClient] = []
        # Connections that were turned away and that a line has reported.
        self.turned_away = 0
        # The clients that lost messages last, also disconnected ones.
        self.losers = RecentClients()
        # Ledgers that were reported since `take_changed` was called; None: there is no caller.
        self.changed: set[Ledger] | None = None

    def change(self, settings: Settings) -> None:
        self._slow_after = settings.queue.slow_after
        self._interval = settings.queue.report_interval

    @property
    def slow_count(self) -> int:
        return len(self._slow)

    def look(self, now: float) -> bool:
        """Drop what has waited too long, find slow clients, and report losses when their time has come.

        Returns True if there are too many peers for one call: another one has to follow with the next tick.
        """
        self._router.sweep(now)
        self._watch(now)
        if len(self._totals.unreported) > MAX_LOSERS:
            # Whatever the interval: they are remembered for nothing else.
            self._fold(round(now - self._reported_at, 1), now)
        if now >= self._report_at:
            self._report(now, LINES if self._interval > 0.0 else len(self._totals.unreported))
        return len(self._peers) > 0

    def finish(self, now: float) -> None:
        """Report the remaining losses, since the broker stops."""
        self._report(now, len(self._totals.unreported))

    # -- losses --------------------------------------------------------------------------------------------------------

    def _report(self, now: float, most: int) -> None:
        unreported = self._totals.unreported
        reported = unreported[:most]
        del unreported[:most]
        seconds = round(now - self._reported_at, 1)
        for ledger in reported:
            lost = ledger.take_report()
            self._remember(ledger, lost, now)
            if self.changed is not None and self.lives(ledger):
                self.changed.add(ledger)
            if self._interval > 0.0:
                self._log.warning(
                    "messages dropped",
                    client_id=ledger.client_id,
                    total=sum(lost),
                    interval=seconds,
                    **by_cause(lost, FIELDS),
                )
        self._fold(seconds, now)
        if unreported:
            # At the next check.
            return
        self._report_at = now + self._interval
        self._reported_at = now
        self._report_accounts(seconds)
        admission = self._admission
        if admission is not None and admission.turned_away and self._interval > 0.0:
            self._log.warning("connections turned away", total=admission.turned_away, interval=seconds)
            self.turned_away += admission.turned_away
            admission.turned_away = 0

    def _remember(self, ledger: Ledger, lost: list[int], now: float) -> None:
        """Add a client to those who lost messages last, for losses that it did not cause itself."""
        session = self._router.sessions.get(ledger.client_id)
        principal = session.principal if session is not None and session.ledger is ledger else ledger.principal
        self.losers.add(ledger.client_id, principal, by_cause(lost), now)

    def _report_accounts(self, seconds: float) -> None:
        """Log which clients were refused room for all clients, and whose sessions or retained messages were dropped for
        others."""
        accounts = self._router.accounts
        untold, more = accounts.untold, int(accounts.untold_more)
        accounts.untold = {}
        accounts.untold_more = 0
        if self._interval <= 0.0:
            return
        for (name, setting, what), count in untold.items():
            self._log.warning(
                "an account was refused room" if what == REFUSED else "an account gave way to others",
                account=name,
                setting=setting,
                total=count,
                held=accounts.named(name).bytes,
                interval=seconds,
            )
        if more:
            self._log.warning("more accounts were refused room, or gave way", total=more, interval=seconds)

    def _fold(self, seconds: float, now: float) -> None:
        """Log the losses of all clients without a session in one line, if there are too many for a line each."""
        unreported = self._totals.unreported
        kept: list[Ledger] = []
        lost = [0] * len(DROP_CAUSES)
        remembered = LINES
        for ledger in unreported:
            if self.lives(ledger):
                kept.append(ledger)
                continue
            its = ledger.take_report()
            lost = [one + other for one, other in zip(lost, its, strict=True)]
            if remembered > 0:
                remembered -= 1
                self._remember(ledger, its, now)
        clients = len(unreported) - len(kept)
        if clients == 0:
            return
        unreported[:] = kept
        if self._interval > 0.0:
            self._log.warning(
                "messages dropped for disconnected clients",
                clients=clients,
                total=sum(lost),
                interval=seconds,
                **by_cause(lost, FIELDS),
            )

    def lives(self, ledger: Ledger) -> bool:
        """Return whether this is the ledger of an existing session."""
        session = self._router.sessions.get(ledger.client_id)
        return session is not None and session.ledger is ledger

    def take_changed(self) -> set[Ledger]:
        """Return the ledgers with losses since this was last called, reported in a line or not."""
        changed = self.changed
        if changed is None:
            return set()
        self.changed = set()
        changed.update([each for each in self._totals.unreported if self.lives(each)])
        return changed

    # -- slow subscribers ----------------------------------------------------------------------------------------------

    def _watch(self, now: float) -> None:
        """Find slow clients among some of the connected ones; report them when all have been checked."""
        after = self._slow_after
        slow = self._slow
        peers = self._peers
        if not peers:
            if after <= 0.0 or (self._totals.messages == 0 and not slow):
                return
            peers = self._peers = list(self._router.peers.send_buffers)
            self._began = now
            self._entered = []
        some = peers[:PEERS]
        del peers[:PEERS]
        # In one go, since there may be very many.
        waiting = [
            (session, send_buffer)
            for session in some
            if (send_buffer := session.send_buffer) is not None and (send_buffer.messages or session.waiting_messages())
        ]
        for session, send_buffer in waiting:
            delay = session.waited(now)
            client = slow.get(session.client_id)
            if client is None:
                if delay < after:
                    continue
                client = slow[session.client_id] = SlowClient(session.client_id, session.ledger, now)
                self._entered.append(client)
            elif delay < after / 2:
                continue
            client.update(session, send_buffer, delay, now)
        if peers:
            return
        entered, self._entered = self._entered, []
        recovered = [client for client in slow.values() if client.seen < self._began]
        for client in recovered:
            del slow[client.client_id]
        self.slowest = heapq.nlargest(LISTED, slow.values(), key=lambda client: client.delay)
        self._report_slow(entered, recovered, now)

    def _report_slow(self, entered: list[SlowClient], recovered: list[SlowClient], now: float) -> None:
        log = self._log
        for client in entered[:LINES]:
            log.warning(
                "subscriber is slow",
                client_id=client.client_id,
                delay=round(client.delay, 3),
                waiting=client.waiting,
                bytes=client.bytes,
            )
        if len(entered) > LINES:
            log.warning("more subscribers are slow", count=len(entered) - LINES)
        for client in recovered[:LINES]:
            session = self._router.sessions.get(client.client_id)
            connected = session is not None and session.send_buffer is not None
            log.info(
                "subscriber keeps up again" if connected else "slow subscriber is gone",
                client_id=client.client_id,
                seconds=round(now - client.since, 1),
                dropped=client.dropped_meanwhile(),
            )
        if len(recovered) > LINES:
            log.info("more subscribers keep up again, or are gone", count=len(recovered) - LINES)
