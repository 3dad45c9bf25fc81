"""From what happened to a judgement: which promises of MQTT the broker kept, broke, or could not be held to. A pure
function, ``judge``.

Owns: the promises by name, each with the statement that makes it; what a broker does not promise; and when the tool's
own lateness makes a finding worthless.

Promises: a finding names the operations that show it, and no others. Nothing is called kept that was never checked. A
loss that the broker's documentation announces is counted apart, and is no breach. The history stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from math import inf
from typing import Any, Final, Literal

from canopy_load.ledger.apart import Apart, of_session
from canopy_load.ledger.checker import Finding, check
from canopy_load.ledger.history import (
    Connect,
    Delivery,
    Ended,
    Event,
    History,
    Look,
    Operation,
    Publish,
    Subscribe,
)
from canopy_load.ledger.told import time_of
from canopy_load.prove import waits
from canopy_load.prove.faults import PARTITIONS, STARTS, Fault
from canopy_load.prove.play import ABSENT, Proof
from canopy_load.prove.waits import Wait
from canopy_mqtt.words import counted

PROMISES: Final = {
    "lost": "a message that was acknowledged comes to each subscriber [MQTT-4.3.2-1] [MQTT-4.3.3-1]",
    "twice": "a message with QoS 2 comes once [MQTT-4.3.3-1]",
    "twice with QoS 0": "a message with QoS 0 comes at most once (section 4.3.1)",
    "order": "messages of a publisher, topic and QoS come in order [MQTT-4.6.0-6]",
    "DUP": "DUP is 1 in what is sent again on another connection, else 0 [MQTT-3.3.1-1] [MQTT-3.3.1-3]",
    "lost to a group": "a message that was acknowledged comes to a member of each share group [MQTT-4.3.2-1]",
    "to two members": "a message comes to one member of a share group [MQTT-4.8.2-4]",
    "first of a group": "what comes for a share group while nobody is connected goes to the member that connects first",
    "starved": "a member of a share group that stays connected gets messages, too (section 4.8.2)",
    "retained, the last": "a retained message is no older than the last one acknowledged [MQTT-3.3.1-5]",
    "retained, the same": "retained messages are the same at each look [MQTT-3.3.1-5]",
    "retained, each node": "retained messages are the same at each node [MQTT-3.3.1-5]",
    "will missing": "the will of a client that lost its connection is published [MQTT-3.1.2-8]",
    "will twice": "a will with QoS 2 comes once [MQTT-4.3.3-1]",
    "will too early": "a will does not come before its delay is over [MQTT-3.1.2-8]",
    "will revoked": "a will does not come after a goodbye or a return in time [MQTT-3.1.2-10] [MQTT-3.1.3-9]",
    "session": "Session Present says whether the session is there [MQTT-3.2.2-2] [MQTT-3.2.2-3]",
    "one connection": "a new connection ends the one before it [MQTT-3.1.4-3]",
    "told 0x8E": "the connection that is taken over is told so, if it is told anything [MQTT-3.1.4-3]",
    "CONNECT answered": "each CONNECT is answered, or its connection ends [MQTT-3.1.4-5]",
    "answered": "each PUBLISH, SUBSCRIBE and UNSUBSCRIBE is answered [MQTT-3.3.4-1] [MQTT-3.8.4-1] [MQTT-3.10.4-4]",
    "UNSUBACK": "an UNSUBACK does not deny a subscription that there was (section 3.11.3)",
    "dropped": "the broker does not end connections again and again without a reason (section 4.13)",
    "in time": "answers come within the time after a fault that the broker promises",
    "keep alive": "a connection ends on which nothing comes for longer than its Keep Alive [MQTT-3.1.2-22]",
    "as sent": "what comes was sent before (section 3.3)",
    "altered": "topic and payload come as they were sent (section 3.3)",
    "QoS": "a message comes with the lower of its own QoS and that of the subscription [MQTT-3.8.4-8]",
    "asked for": "what comes matches a subscription (section 3.3.4)",
    "unsubscribed": "what is published after the UNSUBACK does not come [MQTT-3.10.4-2]",
    "No Local": "with No Local a message does not come back to its publisher [MQTT-3.8.3-3]",
    "RETAIN": "RETAIN is as sent with Retain As Published, else 0 in a new message [MQTT-3.3.1-12] [MQTT-3.3.1-13]",
    "Retain Handling": "with Retain Handling 2 a SUBSCRIBE brings no retained messages [MQTT-3.3.1-11]",
    "refused": "a message that was refused does not come (section 3.4.2.1)",
    "protocol": "the broker keeps to the protocol (section 4.13)",
}
"""Each promise, in the words of a report."""

ENDURING: Final = frozenset(
    {
        "lost", "lost to a group", "first of a group", "retained, the last", "retained, the same",
        "retained, each node", "session", "twice", "to two members", "order", "will missing", "will twice",
        "will revoked", "unsubscribed", "Retain Handling", "DUP", "UNSUBACK",
    }
)  # fmt: skip
"""The promises that a broker can only keep over a kill if it has written what they are about to its disk."""

OF_GROUPS: Final = frozenset({"lost to a group", "first of a group", "to two members"})
"""The promises that are about a share group."""
OF_RETAINED: Final = frozenset({"retained, the last", "retained, the same", "retained, each node"})
"""The promises about retained messages alone."""
KILLS: Final = (Fault.KILL, Fault.KILL_ALL, Fault.KILL_WORKER)
WILL_SECONDS: Final = 1.0
"""A will that was due, or withdrawn, in so many seconds before the broker went down may not have been seen by it.
Between a quiet phase and the next fault there are more."""
WILL_LATENESS: Final = 0.5
"""Seconds by which the tool may be late, or for which tool or broker may wait for a core meanwhile, before a delayed
will is not judged: such a broker sees after the return of a client that its connection was lost."""
MAX_LATENESS: Final = 2.0
"""Seconds by which the tool may be late while it waits, or for which tool or broker may wait for a core, before what
did not come is no finding any more."""

MOMENT: Final = 1.0
"""Seconds within which a message that was acknowledged has come to the other nodes, if nothing is wrong."""

State = Literal["kept", "broken", "not judged"]


@dataclass(frozen=True)
class Durability:
    """What a broker promises of faults. `window`: seconds before a kill; what it acknowledged in them may be lost."""

    window: float = 0.0
    says: str = ""
    """Its own words, for the report."""
    recovery: float = 0.0
    """Seconds after the end of a fault within which it answers everybody again; 0: it promises nothing of that."""
    volatile: bool = False
    """True if nothing outlives its process, however that ends."""
    share_queue: bool = False
    """True if what waits for a share group is for the member that connects first. No statement asks for it."""
    relinked: float = 0.0
    """Seconds after a fault within which nodes reach each other again; 0: as one (`Apart`)."""
    shared: bool = False
    """True if durable sessions and share groups, and nothing else, outlive the process of a node."""
    workers: bool = False
    """True if several processes serve the clients: a message is at the others a moment after its PUBACK."""


@dataclass
class Tally:
    """One promise: how often it was checked, could not be judged, and failed where it is not made."""

    promise: str
    statement: str
    checked: int = 0
    unjudged: int = 0
    not_promised: int = 0
    doubtful: int = 0
    """Findings that are worthless because the tool was late, or because what was missing was still coming."""
    findings: list[Any] = field(default_factory=list)

    @property
    def state(self) -> State:
        if self.findings:
            return "broken"
        return "kept" if self.checked > self.not_promised and not self.doubtful else "not judged"


@dataclass
class Ruling(Tally):
    """A promise with the findings in the history."""

    findings: list[Finding] = field(default_factory=list)


@dataclass
class Judgement:
    proof: Proof
    rulings: list[Ruling]
    waits: list[Wait]
    counts: dict[str, int]

    @property
    def broken(self) -> list[Ruling]:
        return [each for each in self.rulings if each.state == "broken"]

    @property
    def obstacle(self) -> str:
        """Why it could not be judged that nothing was broken; empty: it could."""
        if any(each.doubtful for each in self.rulings):
            if self.proof.rested and self.proof.late_at_end > MAX_LATENESS:
                return "this tool itself was late while it waited"
            if self.proof.rested:
                return f"tool or broker waited for a core for {self.proof.starved_at_end:.1f} s of the last wait"
            return "what had been missing was still coming when the time was over"
        absent = self.proof.absent
        if absent:
            name, why = next(iter(absent.items()))
            return f"{counted(len(absent), 'client')} could not connect at the end, such as {name}: {why}"
        if any(each.promise == "lost" and each.state == "not judged" for each in self.rulings):
            return "no message that was acknowledged could be followed to a subscriber"
        return ""


def judge(proof: Proof, durability: Durability = Durability()) -> Judgement:
    """Judge what happened."""
    history = _with_doubts(proof, durability.shared)
    verdict = check(history, proof.blind)
    found = waits.waits(proof)
    waits.check(proof, found, durability.recovery, verdict)
    rulings = {
        name: Ruling(name, statement, verdict.checked[name], verdict.unjudged[name])
        for name, statement in PROMISES.items()
    }
    database = _Shared(proof, durability.relinked) if durability.shared else None
    apart = Apart(proof.history, partial(_cut, proof, durability.relinked), database) if durability.relinked else None
    late = max(proof.late_at_end, proof.starved_at_end) > MAX_LATENESS or not proof.rested
    for finding in verdict.findings:
        ruling = rulings[finding.promise]
        events = [history.events[number] for number in finding.operations]
        client = proof.plan.clients.get(finding.client)
        keeps = client is not None and not client.clean and of_session(finding, events, durability.shared)
        everywhere = durability.shared and (keeps or finding.promise in OF_GROUPS)
        in_table = durability.shared and finding.promise in OF_RETAINED
        volatile = durability.shared and not (everywhere or in_table)
        promised = replace(durability, volatile=True) if volatile else durability
        excused = (
            apart
            and not in_table
            and apart.excuse(finding.promise, events, everywhere, _is_of_database(proof, durability, events))
        )
        stale = in_table and database is not None and database.is_stale(events)
        if excused or stale or _excused(finding.promise, events, promised, proof):
            ruling.not_promised += 1
        elif finding.promise == "first of a group" and proof.late > WILL_LATENESS:
            # The first member may not have acknowledged what it had, and so have had no room for more.
            ruling.unjudged += 1
        elif finding.promise in ABSENT and late:
            ruling.doubtful += 1
        else:
            ruling.findings.append(finding)
    return Judgement(proof, list(rulings.values()), found, _counts(history) | dict(verdict.at_most_once))


def _is_of_database(proof: Proof, durability: Durability, events: list[Event]) -> bool:
    """Return True if a finding is about a message of a session that all nodes have in a database."""
    publisher = proof.plan.clients.get(events[0].client)
    return durability.shared and isinstance(events[0], Publish) and publisher is not None and not publisher.clean


def _with_doubts(proof: Proof, shared: bool) -> History:
    """Return the history in which nobody knows what became of wills that the broker may not have dealt with."""
    history = History()
    history.events = [
        replace(each, outcome="unknown", ended=inf)
        if isinstance(each, Publish) and _doubtful(each, proof, shared)
        else each
        for each in proof.history.events
    ]
    return history


def _doubtful(will: Publish, proof: Proof, shared: bool) -> bool:
    """Return True for a will that was under way when the broker went down, and for a delayed one that was so while the
    broker was stopped, or may have been slow: it sees late that a connection is lost, and its delay ends later.

    `shared`: nodes with one database also count one that is stopped as dead, and may not have its client's goodbye.
    """
    if not will.will or will.outcome == "unknown":
        return False
    waited = proof.lateness.waited(will.lost_at, will.not_before + WILL_SECONDS)
    if will.not_before and max(proof.late, waited) > WILL_LATENESS:
        return True
    return any(
        will.since <= ended
        and began < will.ended + WILL_SECONDS + proof.late + proof.lateness.waited(will.since, began)
        and (fault is not Fault.STOP or will.not_before > 0 or shared)
        for began, ended, fault in proof.outages
    )


def _excused(promise: str, events: list[Event], durability: Durability, proof: Proof) -> bool:
    """Return True if the broker does not promise it, or a kill took away what it does not promise to keep."""
    if promise == "first of a group" and not durability.share_queue:
        return True
    if promise == "Retain Handling" and durability.workers and _still_on_its_way(events, proof):
        return True
    last = time_of(events[-1])
    fatal = STARTS if durability.volatile else KILLS
    # What should not have come, or been said, is no consequence of a kill that was still to come.
    kills = [
        (began, ended)
        for began, ended, fault in proof.outages
        if fault in fatal and (promise in ABSENT or began <= last)
    ]
    if (durability.window or durability.volatile) and promise in ENDURING:
        window = inf if durability.volatile else durability.window + proof.late
        return any(_overlaps(each, began - window, ended) for each in events for began, ended in kills)
    if promise == "session":
        return any(_unwritten(events[0], began, proof.history) for began, _ in kills)
    if promise == "to two members":
        if all(_may_be_read_late(*pair, proof) for pair in pairwise(events[1:])):
            return True
        # The session of the first one ended with the broker, and with it all that the broker knew of a message that it
        # had not acknowledged yet, and got again.
        publish, first, *_ = events
        assert isinstance(publish, Publish)
        assert isinstance(first, Delivery)
        clean = first.client in proof.plan.clients and proof.plan.clients[first.client].clean
        # What the broker had sent before the kill may be read, and noted, after it.
        return clean and any(first.at <= ended and began < publish.ended for began, ended in kills)
    return False


def _may_be_read_late(one: Event, other: Event, proof: Proof) -> bool:
    """Return True if two members may have a copy with QoS 1 since the connection of one of them had ended: it read
    what the broker had sent before only when the other one had got it, too."""
    if one.client == other.client:
        return True
    moment = MOMENT + proof.late + proof.lateness.waited(time_of(one), time_of(other) + MOMENT)
    return (
        isinstance(one, Delivery)
        and one.qos == 1
        and any(
            each.client in (one.client, other.client) and time_of(one) <= each.at <= time_of(other) + moment
            for each in proof.history.of(Ended)
        )
    )


def _still_on_its_way(events: list[Event], proof: Proof) -> bool:
    """Return True if a message that was acknowledged before a SUBSCRIBE may not have been at its worker then."""
    asked, *_, publish, _ = events
    assert isinstance(publish, Publish)
    began = time_of(asked)
    moment = MOMENT + proof.late + proof.lateness.waited(publish.ended, began)
    # It waits for a worker that is away, or stands still.
    ends = [ended for since, ended, _ in proof.outages if since <= began and publish.ended <= ended + moment]
    return began <= max([publish.ended, *ends]) + moment


class _Shared:
    """What may go wrong between nodes with one database (`InDatabase`)."""

    def __init__(self, proof: Proof, relinked: float) -> None:
        """`relinked`: see `Durability`."""
        self._proof, self._relinked = proof, relinked

    def hung(self, one: str, other: str, began: float, ended: float) -> bool:
        way = self._proof.targets.index(one), self._proof.targets.index(other)
        return any(
            fault.fault is Fault.STOP
            and fault.loses(*way)
            and since <= ended
            and began <= until + self._relinked + self._moment(until, began)
            for since, until, fault in self._proof.inflicted
        )

    def at_once(self, since: float, at: float) -> bool:
        return at <= since + self._moment(since, at)

    def is_stale(self, events: list[Event]) -> bool:
        """Return True if a node may have shown what it knew of retained messages, since the database was away: it may
        not have learned yet what was acknowledged elsewhere a moment before that."""
        newer = [each.ended for each in events if isinstance(each, Publish) and each.outcome == "ok"]
        looks = [each.at for each in events if isinstance(each, Look)]
        return bool(newer) and any(
            since <= min(newer) + self._moment(min(newer), since) for at in looks for since in self._away(at, at)
        )

    def away(self, began: float, ended: float) -> bool:
        return bool(self._away(began, ended))

    def _away(self, began: float, ended: float) -> list[float]:
        """Return since when the database was away in that time, or a moment before."""
        return [
            since
            for since, until, fault in self._proof.inflicted
            if fault.fault in (Fault.STORE_PAUSED, Fault.STORE_RESTART)
            and since <= ended
            and began <= until + self._moment(until, began)
        ]

    def cut_off(self, node: str, began: float, ended: float) -> bool:
        here = self._proof.targets.index(node)
        ways = [(here, there) for there in range(len(self._proof.targets)) if there != here]
        return any(
            since <= ended
            and began <= until + self._moment(until, began) + (self._relinked if fault.fault in PARTITIONS else 0.0)
            for since, until, fault in self._proof.inflicted
            if (fault.fault is Fault.STOP and here in fault.nodes)
            or (fault.fault in PARTITIONS and any(fault.loses(*way) or fault.loses(*way[::-1]) for way in ways))
        )

    def _moment(self, since: float, at: float) -> float:
        return MOMENT + self._proof.late + self._proof.lateness.waited(since, at)


def _cut(proof: Proof, relinked: float, one: str, other: str, since: float, at: float) -> bool:
    """Return True if what a node had at a time may not have reached another one by a later time."""
    waited = proof.lateness.waited(since - relinked, at)
    # Nodes that wait for a core give each other up, and dial again.
    moment = MOMENT + proof.late + waited + (relinked if waited > MOMENT else 0.0)
    way = proof.targets.index(one), proof.targets.index(other)
    return at <= since + moment or any(
        (fault.loses(*way) or fault.loses(*way[::-1])) and began - moment <= since and at <= ended + relinked + moment
        for began, ended, fault in proof.inflicted
    )


def _overlaps(event: Event, begin: float, end: float) -> bool:
    """Return True if what an event is about was under way in a span of time; a look changes nothing."""
    ended = event.ended if isinstance(event, Operation) else time_of(event)
    return not isinstance(event, Look) and time_of(event) <= end and begin <= ended


def _unwritten(connect: Event, kill: float, history: History) -> bool:
    """Return True if nothing that came before a kill said that the session of a connection is on the disk: a SUBACK
    says so, and the PUBCOMP of a message with QoS 2; a CONNACK does not."""
    began = time_of(connect)
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


def kind_of(proof: Proof, client: str) -> str:
    """Return the kind of a client, or of the members of a share group."""
    plan = proof.plan.clients.get(client)
    return "share group" if plan is None else plan.kind


def _counts(history: History) -> dict[str, int]:
    published = [each for each in history.of(Publish) if not each.will]
    return {
        "published": len(published),
        "acknowledged": sum(each.outcome == "ok" for each in published),
        "delivered": len(history.of(Delivery)),
        "connections": sum(each.outcome == "ok" for each in history.of(Connect)),
        "wills": sum(each.will and each.outcome == "ok" for each in history.of(Publish)),
    }
