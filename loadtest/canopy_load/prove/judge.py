"""From what happened to a judgement: which promises of MQTT the broker kept, broke, or could not be held to. A pure
function, ``judge``.

Owns: the promises by name, each with the statement that makes it; what a broker does not promise; and when the tool's
own lateness makes a finding worthless.

Promises: a finding names the operations that show it, and no others. Nothing is called kept that was never checked. A
loss that the broker's documentation announces is counted apart, and is no breach. The history stays as it is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final, Literal

from canopy_load.ledger.checker import Finding, check
from canopy_load.ledger.history import (
    Connect,
    Delivery,
    Ended,
    Event,
    History,
    Look,
    Operation,
    Ping,
    Publish,
    Subscribe,
)
from canopy_load.prove.plan import Fault
from canopy_load.prove.play import ABSENT, Proof
from canopy_mqtt.words import counted

PROMISES: Final = {
    "lost": "a message that was acknowledged comes to each subscriber [MQTT-4.3.2-1] [MQTT-4.3.3-1]",
    "twice": "a message with QoS 2 comes once [MQTT-4.3.3-1]",
    "order": "messages of a publisher, topic and QoS come in order [MQTT-4.6.0-6]",
    "lost to a group": "a message that was acknowledged comes to a member of each share group [MQTT-4.3.2-1]",
    "to two members": "a message comes to one member of a share group [MQTT-4.8.2-4]",
    "retained, the last": "a retained message is no older than the last one acknowledged [MQTT-3.3.1-5]",
    "retained, the same": "retained messages are the same at each look [MQTT-3.3.1-5]",
    "will missing": "the will of a client that lost its connection is published [MQTT-3.1.2-8]",
    "will twice": "a will with QoS 2 comes once [MQTT-4.3.3-1]",
    "will too early": "a will does not come before its delay is over [MQTT-3.1.2-8]",
    "will revoked": "a will does not come after a goodbye or a return in time [MQTT-3.1.2-10] [MQTT-3.1.3-9]",
    "session": "Session Present says whether the session is there [MQTT-3.2.2-2] [MQTT-3.2.2-3]",
    "one connection": "a new connection ends the one before it [MQTT-3.1.4-3]",
    "told 0x8E": "the connection that is taken over is told so, if it is told anything [MQTT-3.1.4-3]",
    "answered": "each PUBLISH and SUBSCRIBE is answered [MQTT-3.3.4-1] [MQTT-3.8.4-1]",
    "as sent": "what comes was sent before (section 3.3)",
    "altered": "topic and payload come as they were sent (section 3.3)",
    "QoS": "a message comes with the lower of its own QoS and that of the subscription [MQTT-3.8.4-8]",
    "asked for": "what comes matches a subscription (section 3.3.4)",
    "refused": "a message that was refused does not come (section 3.4.2.1)",
    "protocol": "the broker keeps to the protocol (section 4.13)",
}
"""Each promise, in the words of a report."""

ENDURING: Final = frozenset(
    {
        "lost", "lost to a group", "retained, the last", "retained, the same", "session", "twice", "to two members",
        "order", "will missing", "will twice", "will revoked",
    }
)  # fmt: skip
"""The promises that a broker can only keep over a kill if it has written what they are about to its disk."""

WILL_SECONDS: Final = 2.0
"""A will that was due, or withdrawn, in so many seconds before the broker went down may not have been seen by it."""
WILL_LATENESS: Final = 0.5
"""Seconds by which the tool may be late before delayed wills are not judged: a broker that is as late as it sees after
the return of a client that its connection was lost."""
MAX_LATENESS: Final = 2.0
"""Seconds by which the tool may be late while it waits, before what did not come is no finding any more."""

State = Literal["kept", "broken", "not judged"]


@dataclass(frozen=True)
class Durability:
    """What a broker promises of a kill. `window`: seconds before the kill; what it acknowledged in them may be lost."""

    window: float = 0.0
    says: str = ""
    """Its own words, for the report."""


@dataclass
class Ruling:
    """One promise: how often it was checked, could not be judged, was broken, and failed where it is not made."""

    promise: str
    checked: int = 0
    unjudged: int = 0
    findings: list[Finding] = field(default_factory=list)
    by_kind: Counter[str] = field(default_factory=Counter)
    """The findings, by kind of client."""
    not_promised: int = 0
    doubtful: int = 0
    """Findings that are worthless because the tool was late, or because what was missing was still coming."""

    @property
    def state(self) -> State:
        if self.findings:
            return "broken"
        return "kept" if self.checked > self.not_promised and not self.doubtful else "not judged"

    @property
    def statement(self) -> str:
        return PROMISES[self.promise]


@dataclass
class Judgement:
    proof: Proof
    rulings: list[Ruling]
    waits: dict[str, float]
    """The longest wait for an answer, in seconds, by packet that was waited for."""
    durability: Durability
    counts: dict[str, int]

    @property
    def broken(self) -> list[Ruling]:
        return [each for each in self.rulings if each.state == "broken"]

    @property
    def code(self) -> int:
        """The exit code: 0 nothing promised was broken, 1 something was, or the broker failed, 2 it could not be
        judged."""
        if self.broken or self.proof.failure:
            return 1
        return 2 if self.obstacle else 0

    @property
    def obstacle(self) -> str:
        """Why it could not be judged that nothing was broken; empty: it could."""
        if any(each.doubtful for each in self.rulings):
            if self.proof.rested:
                return "this tool itself was late while it waited"
            return "what had been missing was still coming when the time was over"
        absent = self.proof.absent
        if absent:
            name, why = next(iter(absent.items()))
            return f"{counted(len(absent), 'client')} could not connect at the end, such as {name}: {why}"
        if not any(each.promise == "lost" and each.state == "kept" for each in self.rulings):
            return "no message that was acknowledged could be followed to a subscriber"
        return ""


def judge(proof: Proof, durability: Durability = Durability()) -> Judgement:
    """Judge what happened."""
    history = _with_doubts(proof)
    verdict = check(history)
    rulings = {name: Ruling(name) for name in PROMISES}
    for name, ruling in rulings.items():
        ruling.checked, ruling.unjudged = verdict.checked[name], verdict.unjudged[name]
    late = proof.late_at_end > MAX_LATENESS or not proof.rested
    for finding in verdict.findings:
        ruling = rulings[finding.promise]
        events = [history.events[number] for number in finding.operations]
        if _excused(finding.promise, events, durability, proof):
            ruling.not_promised += 1
        elif finding.promise in ABSENT and late:
            ruling.doubtful += 1
        else:
            ruling.findings.append(finding)
            ruling.by_kind[_kind(proof, finding.client)] += 1
    return Judgement(proof, list(rulings.values()), _waits(history), durability, _counts(history))


def _with_doubts(proof: Proof) -> History:
    """Return the history in which nobody knows what became of wills that the broker may not have dealt with."""
    history = History()
    history.events = [
        replace(each, outcome="unknown", ended=inf) if isinstance(each, Publish) and _doubtful(each, proof) else each
        for each in proof.history.events
    ]
    return history


def _doubtful(will: Publish, proof: Proof) -> bool:
    """Return True for a will that was under way when the broker went down, and for a delayed one that was so while the
    broker was stopped, or may have been slow: it sees late that a connection is lost, and its delay ends later."""
    if not will.will or will.outcome == "unknown":
        return False
    if will.not_before and proof.late > WILL_LATENESS:
        return True
    margin = WILL_SECONDS + proof.late
    return any(
        will.began <= ended and began < will.ended + margin and (fault is not Fault.STOP or will.not_before > 0)
        for began, ended, fault in proof.outages
    )


def _excused(promise: str, events: list[Event], durability: Durability, proof: Proof) -> bool:
    """Return True if a kill took away what the broker does not promise to keep."""
    last = _time(events[-1])
    # What should not have come, or been said, is no consequence of a kill that was still to come.
    kills = [
        (began, ended)
        for began, ended, fault in proof.outages
        if fault is Fault.KILL and (promise in ABSENT or began <= last)
    ]
    if durability.window and promise in ENDURING:
        window = durability.window + proof.late
        return any(_overlaps(each, began - window, ended) for each in events for began, ended in kills)
    if promise == "session":
        return any(_unwritten(events[0], began, proof.history) for began, _ in kills)
    if promise == "to two members":
        # The session of the first one ended with the broker, and with it all that the broker knew of a message that it
        # had not acknowledged yet, and got again.
        publish, first, *_ = events
        assert isinstance(publish, Publish)
        assert isinstance(first, Delivery)
        clean = first.client in proof.plan.clients and proof.plan.clients[first.client].clean
        # What the broker had sent before the kill may be read, and noted, after it.
        return clean and any(first.at <= ended and began < publish.ended for began, ended in kills)
    return False


def _overlaps(event: Event, begin: float, end: float) -> bool:
    """Return True if what an event is about was under way in a span of time; a look changes nothing."""
    ended = event.ended if isinstance(event, Operation) else _time(event)
    return not isinstance(event, Look) and _time(event) <= end and begin <= ended


def _unwritten(connect: Event, kill: float, history: History) -> bool:
    """Return True if nothing that came before a kill said that the session of a connection is on the disk: a SUBACK
    says so, and the PUBCOMP of a message with QoS 2; a CONNACK does not."""
    began = _time(connect)
    if kill < began:
        return False
    own = [each for each in history.of(Operation) if each.client == connect.client and each.outcome == "ok"]
    connects = [each.began for each in own if isinstance(each, Connect) and each.began <= began and not each.present]
    fresh = max(connects, default=began)
    return not any(
        fresh <= each.began and each.ended <= kill
        for each in own
        if isinstance(each, Subscribe) or (isinstance(each, Publish) and each.qos == 2 and not each.will)
    )


def _time(event: Event) -> float:
    return (
        event.began if isinstance(event, Operation) else event.at if isinstance(event, Delivery | Ended | Look) else 0.0
    )


def _kind(proof: Proof, client: str) -> str:
    """Return the kind of a client, or of the members of a share group."""
    plan = proof.plan.clients.get(client)
    return "share group" if plan is None else plan.kind


def _waits(history: History) -> dict[str, float]:
    waits: dict[str, float] = {}
    for operation in history.of(Operation):
        if operation.outcome == "unknown" or operation.ended == inf:
            continue
        match operation:
            case Connect():
                name = "CONNACK"
            case Subscribe():
                name = "SUBACK"
            case Ping():
                name = "PINGRESP"
            case Publish() if not operation.will:
                name = "PUBACK" if operation.qos == 1 else "PUBCOMP"
            case _:
                continue
        waits[name] = max(waits.get(name, 0.0), operation.ended - operation.began)
    return waits


def _counts(history: History) -> dict[str, int]:
    published = [each for each in history.of(Publish) if not each.will]
    return {
        "published": len(published),
        "acknowledged": sum(each.outcome == "ok" for each in published),
        "delivered": len(history.of(Delivery)),
        "connections": sum(each.outcome == "ok" for each in history.of(Connect)),
        "wills": sum(each.will and each.outcome == "ok" for each in history.of(Publish)),
    }


def told(event: Event, origin: float = 0.0) -> str:
    """Return an operation or event as a line for people; times in seconds after `origin`."""
    match event:
        case Connect():
            present = ", Session Present" if event.present else ""
            what = f"CONNECT{' clean' if event.clean else ''} to {event.node}{present}"
        case Publish():
            packet = "the will" if event.will else "PUBLISH"
            retained = ", retained" if event.retain else ""
            what = f"{packet} {event.topic} number {event.sequence}, QoS {event.qos}{retained}"
        case Subscribe():
            what = f"SUBSCRIBE {event.topic_filter}, QoS {event.qos}"
        case Ping():
            what = "PINGREQ on the connection before"
        case Delivery():
            publisher, topic, qos = event.stream
            retained = ", RETAIN 1" if event.retained else ""
            what = f"got {topic} number {event.sequence} of {publisher} (QoS {qos}) with QoS {event.qos}{retained}"
        case Ended():
            code = "" if event.code is None else f" with DISCONNECT 0x{event.code:02x}"
            what = f"connection ended by {'the client' if event.own else 'the broker'}{code}"
        case Look():
            what = (
                f"retained messages: {', '.join(f'{topic} number {found[1]}' for topic, found in event.found.items())}"
            )
        case _:
            what = type(event).__name__
    at = f"{_time(event) - origin:9.3f} s"
    if isinstance(event, Operation):
        answer = event.outcome if event.ended == inf else f"{event.outcome} after {event.ended - event.began:.3f} s"
        what += f": {answer}"
    return f"{at}  {event.client}: {what}"
