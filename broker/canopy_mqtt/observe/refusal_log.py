"""Reports what clients were refused: a line for each client, action and interval, with the rule that decided.

Owns the lines "request refused" and "delivery refused". The first refusal of a client is logged within a second, those
after it together, once in `queue.report_interval`. The lines count among the warnings about clients
(`log.client_warnings…`), those about deliveries among the others (`log.client_bytes…`), which sum up the
lines for which there is no room. One look asks access control about a bounded number of rules.
"""

from __future__ import annotations

from canopy_mqtt.core.jobs import LINE_WORK, TURN_WORK
from canopy_mqtt.core.refusals import KINDS, RECEIVE, Refused
from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.net.connections.connection_log import DELIVERY, REQUEST, ConnectionLog, cut, named
from canopy_mqtt.observe.recent_clients import RecentClients
from canopy_mqtt.settings import Settings


class RefusalLog:
    """The lines about refusals of one broker. Times in seconds of the loop's clock."""

    def __init__(self, router: Router, settings: Settings, lines: ConnectionLog) -> None:
        """`lines` writes the lines for which there is room."""
        self._router = router
        self._lines = lines
        self.change(settings)
        # The time of the line about a client, until another one may be written.
        self._told: dict[str, float] = {}
        # The clients that were refused something last, also disconnected ones.
        self.recent = RecentClients()

    def change(self, settings: Settings) -> None:
        self._interval = settings.queue.report_interval

    def look(self, now: float) -> bool:
        """Log new refusals. Returns True if there are too many for one call: another one has to follow with the next
        tick."""
        router = self._router
        more = router.fanout.barred.tell(router.sessions, router.counters)
        refusals = router.counters.refusals
        told = self._told
        for client_id in [name for name, at in told.items() if now >= at + self._interval]:
            del told[client_id]
        if refusals.listed:
            waiting: list[Refused] = []
            left = TURN_WORK
            for refused in refusals.listed:
                if refused.client_id in told or left <= 0:
                    waiting.append(refused)
                    more = more or left <= 0
                else:
                    left -= self._tell(refused, now)
            refusals.listed = waiting
        if refusals.unlisted:
            # Too many clients at a time for a line each.
            self._lines.left_out(REQUEST, refusals.unlisted)
            refusals.unlisted = 0
        return more

    def finish(self, now: float) -> None:
        """Log the remaining refusals, since the broker stops."""
        self._told.clear()
        router = self._router
        while router.fanout.barred.tell(router.sessions, router.counters):
            pass
        refusals = router.counters.refusals
        for refused in refusals.listed:
            self._tell(refused, now)
        refusals.listed = []

    def _tell(self, refused: Refused, now: float) -> int:
        """Write the lines about one client, and return the work that was done for it."""
        router = self._router
        access_control = router.access_control
        ask_work = 0 if access_control is None else access_control.source().ask_work
        principal = refused.principal
        work = 0
        for refusal in router.counters.refusals.take(refused):
            work += LINE_WORK + ask_work
            reason = refusal.settle(principal, access_control)
            client = self.recent.add(
                refused.client_id, principal, {KINDS[refusal.kind]: int(refusal.count)}, refusal.at
            )
            client.topic, client.reason = cut(refusal.topic), reason
            self._told[refused.client_id] = now
            if self._interval <= 0.0:
                continue
            known = {
                "client_id": cut(refused.client_id),
                "user_name": named(principal.user_name),
                "address": principal.host,
                "listener": principal.listener,
                "action": KINDS[refusal.kind],
                "topic": cut(refusal.topic),
                "reason": cut(reason),
                "reason_code": f"0x{refusal.reason_code:02X}",
                "count": int(refusal.count),
            }
            if refusal.kind == RECEIVE:
                # A filter that is wider than the rights behind it is no fault: mosquitto's rules grant every one.
                self._lines.inform(principal.host, DELIVERY, known)
            else:
                self._lines.warn(principal.host, REQUEST, known)
        return work
