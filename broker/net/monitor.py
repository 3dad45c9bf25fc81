"""Checks the queues once a second: old messages, slow clients, losses.

`Monitor` checks and writes the log; `LagMonitor` is its timer, and measures the event loop's lag. Each client has one
line for each `queue.report_interval` in which it lost messages, and each loss is in exactly one line. At most `LINES`
lines of a kind are written at a time: the others follow at the next check, or are summed up. A client is slow when its
oldest message has waited for `queue.slow_after` seconds, and no longer when the wait is below half of that: one line
each way. A check costs next to nothing while no message waits and nobody has lost anything.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Any, Final

from broker.core.accounts import REFUSED
from broker.core.counters import DROP_CAUSES
from broker.core.histogram import Histogram
from broker.core.queues.drop_ledger import Ledger
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.queue_totals import QueueTotals
from broker.core.routing.router import Router
from broker.core.session.session import Session
from broker.net.connections.admission import Admission
from broker.net.recent_clients import RecentClients
from broker.settings import Settings

TICK: Final = 0.25
"""Seconds between two beats, each of which measures the lag of the event loop."""

LOOK: Final = 1.0
"""Seconds between two looks."""

PEERS: Final = 20_000
"""Peers that are looked at in one call: some milliseconds."""

LINES: Final = 500
"""Log lines of one kind in one look, at most: some milliseconds."""

LISTED: Final = 10
"""Slow subscribers under `$SYS/broker/slow/`, the slowest first; `canopy ctl clients --min-lag` lists them all."""

MOST_LOSERS: Final = 10_000
"""Clients with losses to report, above which those that are gone are summed up at once."""

FIELDS: Final = tuple(cause.replace("-", "_") for cause in DROP_CAUSES)
"""The names of the causes as fields of a log line."""


class SlowClient:
    """A subscriber that does not keep up, as it was at the last look. Times in seconds, sizes in bytes."""

    def __init__(self, client_id: str, ledger: Ledger, now: float) -> None:
        self.client_id = client_id
        self.since = now
        self.seen = now
        self.delay = 0.0
        # In its own queue and in its session's.
        self.waiting = 0
        self.bytes = 0
        self.high_water = 0
        self._ledger = ledger
        self._dropped_before = ledger.in_all()

    def update(self, session: Session, outbox: Outbox, delay: float, now: float) -> None:
        self.seen = now
        self.delay = delay
        self.waiting = int(outbox.messages + session.queue.messages)
        self.bytes = int(outbox.bytes + session.queue.bytes)
        self.high_water = max(int(outbox.queue.high_water), self.waiting)

    def dropped(self) -> int:
        """Messages that this client has lost, for as long as its session lives."""
        return self._ledger.in_all()

    def dropped_meanwhile(self) -> int:
        return self._ledger.in_all() - self._dropped_before


class Monitor:
    """Looks at one broker's queues. It has no timer of its own: whoever owns it calls `look`."""

    def __init__(self, router: Router, settings: Settings, log: Any, now: float, admission: Admission | None) -> None:
        self._router = router
        self._load: QueueTotals = router.counters.load
        self._log = log
        self._admission = admission
        self.change(settings)
        self._slow: dict[str, SlowClient] = {}
        self._reported_at = now
        self._report_at = now + self._interval
        # Those who have not been looked at in the present look, when it began, and who has become slow in it.
        self._peers: list[Session] = []
        self._began = now
        self._entered: list[SlowClient] = []
        # The slowest, in this order.
        self.slowest: list[SlowClient] = []
        # Connections that were turned away and that a line has told of.
        self.turned_away = 0
        # Who lost messages last, also of those who are gone.
        self.losers = RecentClients()
        # Ledgers that were reported, for whoever set this to a set and empties it; None: nobody asks.
        self.changed: set[Ledger] | None = None

    def change(self, settings: Settings) -> None:
        self._slow_after = settings.queue.slow_after
        self._interval = settings.queue.report_interval

    @property
    def slow_count(self) -> int:
        return len(self._slow)

    def look(self, now: float) -> bool:
        """Once a second: shed what has waited too long, see who is slow, and report losses when their time has come.

        True when there are too many peers for one look: another one is to follow with the next tick.
        """
        self._router.sweep(now)
        self._watch(now)
        if len(self._load.unreported) > MOST_LOSERS:
            # Whatever the interval: they are remembered for nothing else.
            self._fold(round(now - self._reported_at, 1), now)
        if now >= self._report_at:
            self._report(now, LINES if self._interval > 0.0 else len(self._load.unreported))
        return len(self._peers) > 0

    def finish(self, now: float) -> None:
        """The broker stops: report what no line has told of yet."""
        self._report(now, len(self._load.unreported))

    # -- losses --------------------------------------------------------------------------------------------------------

    def _report(self, now: float, most: int) -> None:
        unreported = self._load.unreported
        told = unreported[:most]
        del unreported[:most]
        seconds = round(now - self._reported_at, 1)
        for ledger in told:
            lost = ledger.take_report()
            self._remember(ledger, lost, now)
            if self.changed is not None and self.lives(ledger):
                self.changed.add(ledger)
            if self._interval > 0.0:
                causes = {FIELDS[cause]: count for cause, count in enumerate(lost) if count}
                self._log.warning(
                    "messages dropped", client_id=ledger.client_id, total=sum(lost), interval=seconds, **causes
                )
        self._fold(seconds, now)
        if unreported:
            # At the next look.
            return
        self._report_at = now + self._interval
        self._reported_at = now
        self._tell_room(seconds)
        admission = self._admission
        if admission is not None and admission.turned_away and self._interval > 0.0:
            self._log.warning("connections turned away", total=admission.turned_away, interval=seconds)
            self.turned_away += admission.turned_away
            admission.turned_away = 0

    def _remember(self, ledger: Ledger, lost: list[int], now: float) -> None:
        """Have a client be among those who lost messages last, for what it did not cause itself."""
        counts = {DROP_CAUSES[cause]: count for cause, count in enumerate(lost) if count}
        session = self._router.sessions.get(ledger.client_id)
        principal = session.principal if session is not None and session.ledger is ledger else ledger.principal
        self.losers.add(ledger.client_id, principal, counts, now)

    def _tell_room(self, seconds: float) -> None:
        """Tell who was refused room for all clients, and whose sessions or retained messages went for others."""
        accounts = self._router.accounts
        untold, more = accounts.untold, int(accounts.untold_more)
        if not untold:
            return
        accounts.untold = {}
        accounts.untold_more = 0
        if self._interval <= 0.0:
            return
        for (name, setting, what), count in untold.items():
            held = accounts.named(name).bytes
            if what == REFUSED:
                self._log.warning(
                    "an account was refused room",
                    account=name,
                    setting=setting,
                    total=count,
                    held=held,
                    interval=seconds,
                )
            else:
                self._log.warning(
                    "an account gave way to others",
                    account=name,
                    setting=setting,
                    total=count,
                    held=held,
                    interval=seconds,
                )
        if more:
            self._log.warning("more accounts were refused room, or gave way", total=more, interval=seconds)

    def _fold(self, seconds: float, now: float) -> None:
        """Tell in one line of all clients that have no session any more, where there are too many for a line each."""
        unreported = self._load.unreported
        left: list[Ledger] = []
        lost = [0] * len(DROP_CAUSES)
        remembered = LINES
        for ledger in unreported:
            if self.lives(ledger):
                left.append(ledger)
            else:
                its = ledger.take_report()
                lost = [one + other for one, other in zip(lost, its, strict=True)]
                if remembered > 0:
                    remembered -= 1
                    self._remember(ledger, its, now)
        gone = len(unreported) - len(left)
        if gone == 0:
            return
        unreported[:] = left
        if self._interval > 0.0:
            causes = {FIELDS[cause]: count for cause, count in enumerate(lost) if count}
            self._log.warning(
                "messages dropped of clients that are gone", clients=gone, total=sum(lost), interval=seconds, **causes
            )

    def lives(self, ledger: Ledger) -> bool:
        """Whether this is the ledger of a session that there is."""
        session = self._router.sessions.get(ledger.client_id)
        return session is not None and session.ledger is ledger

    def take_changed(self) -> set[Ledger]:
        """Ledgers with losses since this was last called, whether a line has told of them or not."""
        changed = self.changed
        if changed is None:
            return set()
        self.changed = set()
        changed.update([each for each in self._load.unreported if self.lives(each)])
        return changed

    # -- slow subscribers ----------------------------------------------------------------------------------------------

    def _watch(self, now: float) -> None:
        """See who is slow among some of those who are connected; when all have been looked at, tell of it."""
        after = self._slow_after
        slow = self._slow
        peers = self._peers
        if not peers:
            if after <= 0.0 or (self._load.messages == 0 and not slow):
                return
            peers = self._peers = list(self._router.peers.outboxes)
            self._began = now
            self._entered = []
        some = peers[:PEERS]
        del peers[:PEERS]
        # In one go, since there may be very many.
        waiting = [
            (session, outbox)
            for session in some
            if (outbox := session.outbox) is not None and (outbox.messages or session.queue.messages)
        ]
        for session, outbox in waiting:
            delay = session.waited(now)
            client = slow.get(session.client_id)
            if client is None:
                if delay < after:
                    continue
                client = self._enter(session, now)
                self._entered.append(client)
            elif delay < after / 2:
                continue
            client.update(session, outbox, delay, now)
        if peers:
            return
        entered, self._entered = self._entered, []
        left = [client for client in slow.values() if client.seen < self._began]
        for client in left:
            del slow[client.client_id]
        self.slowest = heapq.nlargest(LISTED, slow.values(), key=_delay)
        self._tell(entered, left, now)

    def _enter(self, session: Session, now: float) -> SlowClient:
        client = SlowClient(session.client_id, session.ledger, now)
        self._slow[session.client_id] = client
        return client

    def _tell(self, entered: list[SlowClient], left: list[SlowClient], now: float) -> None:
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
        for client in left[:LINES]:
            session = self._router.sessions.get(client.client_id)
            connected = session is not None and session.outbox is not None
            log.info(
                "subscriber keeps up again" if connected else "slow subscriber is gone",
                client_id=client.client_id,
                seconds=round(now - client.since, 1),
                dropped=client.dropped_meanwhile(),
            )
        if len(left) > LINES:
            log.info("more subscribers keep up again, or are gone", count=len(left) - LINES)


def _delay(client: SlowClient) -> float:
    return client.delay


class LagMonitor:
    """Ticks four times a second, tells the core how late the tick was, and has somebody look once a second."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        load: QueueTotals,
        look: Callable[[float], bool],
        suspended: Callable[[], float],
    ) -> None:
        """`look` is called once a second, and again with the next tick when it answers True; `suspended` with each
        tick: by how many seconds it has put the loop's clock forward."""
        self._suspended = suspended
        self._loop = loop
        self._load = load
        self._look = look
        self._look_at = 0.0
        self.lags = Histogram()
        self._peak = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        now = self._loop.time()
        self._look_at = now + LOOK
        self._arm(now)

    def close(self) -> None:
        """Tick no more; the lag is unknown from here on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._load.tick_due = 0.0
        self._load.lag = 0.0

    def take_worst(self, now: float) -> float:
        """The worst lag in seconds since this was last called, the present one included."""
        return max(self.lags.take_worst(), self._load.lag_at(now))

    def take_peak(self, now: float) -> float:
        """The same, for somebody else who asks: the samples of the page."""
        peak, self._peak = self._peak, 0.0
        return max(peak, self._load.lag_at(now))

    def _arm(self, now: float) -> None:
        self._load.tick_due = now + TICK
        self._timer = self._loop.call_at(now + TICK, self._tick)

    def _tick(self) -> None:
        self._load.tick_due += self._suspended()
        now = self._loop.time()
        # A timer may come a little early.
        lag = max(0.0, now - self._load.tick_due)
        self._load.lag = lag
        self.lags.add(lag)
        self._peak = max(self._peak, lag)
        self._arm(now)
        if now >= self._look_at:
            # First: a look that raises is not the last.
            self._look_at = now + LOOK
            if self._look(now):
                self._look_at = now
