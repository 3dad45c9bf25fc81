"""How long clients waited for the broker, and what it promises of that.

Owns: `Wait`, and the verdicts that need a time: a CONNECT without an answer, a broker that takes too long after a
fault, a connection that outlives its Keep Alive, how long each fault was felt.

Promises: a wait begins anew when a fault of the broker ends: what it could not do while it was down counts for nothing.
A client that does not read waits for nobody. What the tool's lateness, or a wait for a core, explains is no finding.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Final

from canopy_load.ledger.checker import Verdict
from canopy_load.ledger.history import Connect, Ended, Hush, Operation, Ping, Publish, Subscribe, Unsubscribe
from canopy_load.prove.play import Proof
from canopy_load.prove.roles import KEEP_ALIVE_MARGIN
from canopy_mqtt.core.codec import reason_codes

ANSWER: Final = 5.0
"""Seconds after the last fault that a broker must have had to answer a CONNECT."""
GAP: Final = 1.5
"""Seconds between two attempts to connect that belong to one wait."""
FELT: Final = ("CONNACK", "SUBACK", "PUBACK", "PUBCOMP")
"""The answers by which it is told how long a fault was felt."""
DROPS: Final = 3
"""Seconds in which the broker ends connections without a reason before that is a finding: networks break, too."""
REASONS: Final = frozenset(
    {
        reason_codes.NOT_AUTHORIZED, reason_codes.SERVER_BUSY, reason_codes.MESSAGE_RATE_TOO_HIGH,
        reason_codes.QUOTA_EXCEEDED, reason_codes.ADMINISTRATIVE_ACTION, reason_codes.RETAIN_NOT_SUPPORTED,
        reason_codes.QOS_NOT_SUPPORTED, reason_codes.USE_ANOTHER_SERVER, reason_codes.SERVER_MOVED,
        reason_codes.MAXIMUM_CONNECT_TIME,
    }
)  # fmt: skip
"""The Reason Codes of a DISCONNECT for which a broker need not have been wrong."""


@dataclass(frozen=True)
class Wait:
    """A wait for an answer, of one client, until it came or the history ended. `since`: when the request was sent, or
    later the last fault before the answer ended."""

    packet: str
    operation: Operation
    began: float
    since: float
    until: float
    answered: bool
    outage: int
    """The number of the fault whose end it begins with; -1: none."""

    @property
    def seconds(self) -> float:
        return self.until - self.since


class _Outages:
    """The times at which faults of the broker ended."""

    def __init__(self, proof: Proof) -> None:
        self._ends = sorted((ended, number) for number, (_, ended, _) in enumerate(proof.outages))

    def last(self, began: float, until: float) -> tuple[float, int]:
        """Return when a wait began to count, and the number of the fault that had ended then."""
        at = bisect_right(self._ends, until, key=lambda each: each[0]) - 1
        if at < 0 or self._ends[at][0] < began:
            return began, -1
        return self._ends[at]


def waits(proof: Proof) -> list[Wait]:
    """Return all waits for answers."""
    outages = _Outages(proof)
    made: list[Wait] = []

    def add(packet: str, operation: Operation, began: float, until: float, answered: bool) -> None:
        since, outage = outages.last(began, until)
        made.append(Wait(packet, operation, began, since, until, answered, outage))

    connects: dict[str, list[Connect]] = {}
    for each in proof.history.of(Operation):
        plan = proof.plan.clients.get(each.client)
        if plan is not None and plan.kind == "frozen":
            continue
        if isinstance(each, Connect):
            connects.setdefault(each.client, []).append(each)
        elif each.outcome == "ok" and each.ended < inf and (packet := _answer(each)):
            add(packet, each, each.began, each.ended, True)
    for attempts in connects.values():
        begun = attempts[0]
        for one, other in pairwise([*attempts, None]):
            assert one is not None
            if one.outcome == "ok":
                add("CONNACK", one, begun.began, one.ended, True)
            elif other is None and one.client in proof.absent:
                add("CONNACK", one, begun.began, proof.ended, False)
            if other is not None and (one.outcome == "ok" or other.began - min(one.over, one.ended) > GAP):
                begun = other
    return made


def _answer(operation: Operation) -> str:
    match operation:
        case Subscribe():
            return "SUBACK"
        case Unsubscribe():
            return "UNSUBACK"
        case Ping():
            return "PINGRESP"
        case Publish() if not operation.will and operation.qos:
            return "PUBACK" if operation.qos == 1 else "PUBCOMP"
    return ""


def longest(found: list[Wait]) -> dict[str, float]:
    """Return the longest wait for each answer that came, faults included, in seconds."""
    made: dict[str, float] = {}
    for each in found:
        if each.answered:
            made[each.packet] = max(made.get(each.packet, 0.0), each.until - each.began)
    return made


def felt(found: list[Wait], outages: int) -> list[dict[str, float]]:
    """Return for each fault of the broker the longest time from its end until those who waited then had each answer."""
    made: list[dict[str, float]] = [{} for _ in range(outages)]
    for each in found:
        if each.outage >= 0 and each.packet in FELT and each.answered:
            of = made[each.outage]
            of[each.packet] = max(of.get(each.packet, 0.0), each.seconds)
    return made


def check(proof: Proof, found: list[Wait], bound: float, verdict: Verdict) -> None:
    """Check what needs a time. `bound`: seconds within which the broker promises to answer after a fault; 0: it
    promises nothing."""
    outages = _Outages(proof)
    for connect in proof.history.of(Connect):
        if connect.outcome == "ok":
            verdict.keep("CONNECT answered")
        elif connect.silent:
            since, _ = outages.last(connect.began, connect.over)
            if connect.over - since - _excuse(proof, since, connect.over) < ANSWER:
                verdict.unjudged["CONNECT answered"] += 1
                continue
            what = f"no CONNACK within {connect.over - since:.1f} s, and the connection stayed open"
            verdict.hold("CONNECT answered", False, "[MQTT-3.1.4-5]", connect.client, (connect,), what)
    for each in found if bound else ():
        late = _excuse(proof, each.since, each.until)
        after = f" after the {proof.outages[each.outage][2]} was over" if each.outage >= 0 else ""
        came = "came" if each.answered else "did not come"
        what = f"{each.packet} {came} within {each.seconds:.1f} s{after}; it promises {bound:g} s"
        kept = each.seconds <= bound + late
        if kept and not each.answered:
            verdict.unjudged["in time"] += 1
            continue
        verdict.hold("in time", kept, "its own promise", each.operation.client, (each.operation,), what)
    ends = {each.connection: each for each in proof.history.of(Ended)}
    for hush in proof.history.of(Hush):
        over = ends.get(hush.connection)
        until = over.at if over is not None else proof.ended
        since, _ = outages.last(hush.at, until)
        within = 1.5 * hush.keep_alive + KEEP_ALIVE_MARGIN
        kept = until - since <= within + _excuse(proof, since, until)
        if kept and (over is None or over.own):
            verdict.unjudged["keep alive"] += 1
            continue
        what = f"nothing came for {until - since:.1f} s on a connection with a Keep Alive of {hush.keep_alive} s"
        shown = (proof.history.events[hush.connection], hush, *([over] if over is not None else []))
        verdict.hold("keep alive", kept, "[MQTT-3.1.2-22]", hush.client, shown, what)
    _check_drops(proof, verdict)


def _check_drops(proof: Proof, verdict: Verdict) -> None:
    """Check that connections do not end again and again without a reason."""
    drops = _drops(proof)
    again = len({int(each.at) for each in drops}) >= DROPS
    verdict.checked["dropped"] += sum(each.outcome == "ok" for each in proof.history.of(Connect)) - len(drops)
    for over in drops:
        shown = (proof.history.events[over.connection], over)
        what = f"the broker ended this connection, and {len(drops)} in all, without a reason"
        if again:
            verdict.hold("dropped", False, "section 4.13", over.client, shown, what)
        else:
            verdict.unjudged["dropped"] += 1


def _drops(proof: Proof) -> list[Ended]:
    """Return the ends of connections for which no reason can be seen: the client did not end it, was not silent, read
    what came and had no other connection; nothing was wrong with the broker, and no Reason Code says what it is."""
    last: dict[str, Connect] = {}
    made = []
    for event in proof.history.events:
        if isinstance(event, Connect):
            last[event.client] = event
        elif isinstance(event, Ended) and not event.own and not event.broke and event.code not in REASONS:
            plan = proof.plan.clients.get(event.client)
            held = plan is not None and plan.kind in ("frozen", "keep alive")
            faulty = any(began <= event.at <= ended + ANSWER for began, ended in proof.blind)
            present = last.get(event.client) is proof.history.events[event.connection]
            if present and not held and not faulty:
                made.append(event)
    return made


def _excuse(proof: Proof, begin: float, end: float) -> float:
    """Return the seconds that are not the broker's."""
    return proof.late + proof.lateness.waited(begin, end)
