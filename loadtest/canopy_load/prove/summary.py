"""What a proof says in the end: the contents of its reports.

Owns: `Summary` and its JSON, ``summed``, which makes one of a judgement, and ``added``, which makes one of several
pieces.

Promises: all reports are made from a summary and say the same. It needs no history, and has no password.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from math import inf
from typing import Any, Final

from canopy_load.errors import LoadError
from canopy_load.ledger.checker import Finding
from canopy_load.ledger.history import Delivery, Event, Operation, Publish
from canopy_load.ledger.packet_log import told as packet_told
from canopy_load.ledger.told import packets, time_of, told
from canopy_load.prove import waits
from canopy_load.prove.faults import BROKER_FAULTS, Fault, rounds_for
from canopy_load.prove.judge import Durability, Judgement, Ruling, Tally, kind_of
from canopy_load.prove.plan import last_of_round
from canopy_load.prove.play import ABSENT, Facts, Proof
from canopy_load.shapes import shaped
from canopy_mqtt.version import __version__
from canopy_mqtt.words import counted

FORMAT: Final = "canopy prove 1"
SEED: Final = "{seed}"
UNTIL: Final = "{until}"
NONE: Final = "none"
"""In the place of a fault: a round without one of the broker."""
WITH_PACKETS: Final = 20
"""Findings of each promise that have their packets, and are on the page."""
ADDED: Final = (
    "timeline", "seeds", "identifiers", "obstacles", "failures", "rounds", "seconds", "starved", "foreign", "counts",
    "notes", "refused", "played",
)  # fmt: skip
"""What of several pieces is joined, or added up; the greatest of `GREATEST` counts."""
GREATEST: Final = ("late", "late_at_end", "interrupted")
OF_LINES: Final = ("checked", "unjudged", "not_promised", "doubtful", "findings")


class NoReport(LoadError):
    """A file is no report of a proof."""

    code = 2


@dataclass
class Case:
    """A finding, with the operations that show it, and their packets."""

    client: str
    kind: str
    what: str
    statement: str
    operations: list[str]
    packets: list[str]
    seed: int
    until: int
    """The step of the plan until which it must be played to see this."""


@dataclass
class Line(Tally):
    """A promise with the findings as they are reported."""

    findings: list[Case] = field(default_factory=list)

    @property
    def by_kind(self) -> Counter[str]:
        """The number of findings, by kind of client."""
        return Counter(each.kind for each in self.findings)


@dataclass
class Span:
    """A fault of the broker, in seconds since the beginning; `felt`: after its end, until those who waited had each
    answer."""

    fault: str
    began: float
    ended: float
    felt: dict[str, float]


@dataclass
class Second:
    """The operations of one second."""

    published: int = 0
    acknowledged: int = 0
    delivered: int = 0
    lost: int = 0
    wait: float = 0.0
    """The longest wait for an answer that ended in it, in seconds."""


@dataclass
class Settings:
    """What was asked for. `again`: the command that does it again; `replay`: the command that plays a part of a piece,
    with `SEED` and `UNTIL` in the place of both."""

    broker: str
    again: str
    replay: str
    options: dict[str, str] = field(default_factory=dict)
    promised: Durability = field(default_factory=Durability)
    unmade: dict[str, str] = field(default_factory=dict)
    """The faults that cannot be made here, with the reason: what they would show is not judged."""


@dataclass
class Summary(Facts):
    settings: Settings
    seeds: list[int]
    identifiers: list[str]
    targets: list[str]
    begun: str
    """UTC."""
    obstacles: list[str] = field(default_factory=list)
    """Why pieces could not be judged to the end."""
    failures: list[str] = field(default_factory=list)
    """Why the broker did not run any more."""
    starved: float = 0.0
    """Seconds for which tool or broker waited for a core."""
    counts: dict[str, int] = field(default_factory=dict)
    waits: dict[str, float] = field(default_factory=dict)
    played: dict[str, int] = field(default_factory=dict)
    """How often each fault of the plan happened; 0: its turn did not come. NONE: the rounds in which the broker had
    none, where others had one."""
    faults: list[Span] = field(default_factory=list)
    timeline: list[Second] = field(default_factory=list)
    promises: list[Line] = field(default_factory=list)
    version: str = __version__

    @property
    def broken(self) -> list[Line]:
        return [each for each in self.promises if each.state == "broken"]

    @property
    def turnless(self) -> list[str]:
        """The faults whose turn did not come."""
        return [each for each, times in self.played.items() if not times]

    @property
    def rounds_for_all(self) -> int:
        """The rounds of a piece in which each fault has its turn."""
        return rounds_for(Fault(each) for each in self.played if each in BROKER_FAULTS)

    @property
    def code(self) -> int:
        """The exit code: 0 nothing promised was broken, 1 something was, or the broker failed, 2 it could not be
        judged."""
        if self.broken or self.failures:
            return 1
        return 2 if self.obstacles else 0

    @property
    def verdict(self) -> str:
        """The verdict in a line."""
        if self.broken or self.failures:
            failed = [f"the broker failed: {each}" for each in self.failures[:1]]
            return "; ".join([*failed, f"{counted(len(self.broken), 'promise')} broken"])
        if self.obstacles:
            return f"could not judge: {self.obstacles[0]}"
        kept = sum(each.state == "kept" for each in self.promises)
        open_ = len(self.promises) - kept
        return f"nothing that was promised was broken; {kept} promises were checked, {open_} could not be"

    def dumps(self) -> str:
        made: dict[str, Any] = {"format": FORMAT, "verdict": self.verdict, "code": self.code, "seed": self.seeds[0]}
        made |= asdict(self)
        for line, each in zip(made["promises"], self.promises, strict=True):
            line["state"] = each.state
        return "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in made.items()) + "\n}\n"


def loads(text: str) -> Summary:
    """Read a summary from its JSON. Raises NoReport."""
    try:
        made = json.loads(text)
        if made["format"] != FORMAT:
            raise NoReport("it is of another version of this command")
        return shaped(made, Summary)
    except (ValueError, TypeError, KeyError) as error:
        raise NoReport(f"it is no report of canopy prove ({error})") from None


def summed(judgement: Judgement, settings: Settings) -> Summary:
    """Return the summary of a judgement."""
    proof = judgement.proof
    origin = proof.began
    felt = waits.felt(judgement.waits, len(proof.outages))
    return Summary(
        settings=settings,
        seeds=[proof.plan.seed],
        identifiers=[proof.identifier],
        targets=proof.targets,
        begun=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}",
        obstacles=[judgement.obstacle] if judgement.obstacle else [],
        failures=[proof.failure] if proof.failure else [],
        starved=proof.lateness.waited(proof.began, proof.ended),
        counts=judgement.counts,
        waits=waits.longest(judgement.waits),
        played=_played(proof),
        faults=[
            Span(str(fault), began - origin, ended - origin, felt[number])
            for number, (began, ended, fault) in enumerate(proof.outages)
        ],
        timeline=_timeline(judgement, origin),
        promises=[_line(judgement, each, origin) for each in judgement.rulings],
        **{each.name: getattr(proof, each.name) for each in fields(Facts)},
    )


def packets_of_findings(judgement: Judgement) -> list[str]:
    """Return all packets of the clients that findings are about, from their first operations to their last ones."""
    proof = judgement.proof
    events = [
        proof.history.events[number]
        for ruling in judgement.rulings
        for finding in ruling.findings
        for number in finding.operations
    ]
    if not events:
        return ["nothing was found: there are no packets to show"]
    begin = min(time_of(each) for each in events)
    end = max(each.ended if isinstance(each, Operation) and each.ended < inf else time_of(each) for each in events)
    lines = [
        (seen.at, packet_told(seen, name, proof.began))
        for name in sorted({each.client for each in events})
        for seen in (proof.logs[name].packets() if name in proof.logs else ())
        if begin <= seen.at <= end
    ]
    return [line for _, line in sorted(lines)]


def added(pieces: Sequence[Summary]) -> Summary:
    """Return one summary of pieces that were played one after the other."""
    made = deepcopy(pieces[0])
    for piece in pieces[1:]:
        offset = len(made.timeline)
        made.faults += [replace(each, began=each.began + offset, ended=each.ended + offset) for each in piece.faults]
        for name in ADDED:
            setattr(made, name, _sum(getattr(made, name), getattr(piece, name)))
        for name in GREATEST:
            setattr(made, name, max(getattr(made, name), getattr(piece, name)))
        made.absent |= piece.absent
        for packet, seconds in piece.waits.items():
            made.waits[packet] = max(seconds, made.waits.get(packet, 0.0))
        for line, each in zip(made.promises, piece.promises, strict=True):
            for name in OF_LINES:
                setattr(line, name, getattr(line, name) + getattr(each, name))
    return made


def _sum(one: Any, other: Any) -> Any:
    """Return two lists, figures, or tables of figures as one."""
    if isinstance(one, dict):
        return {name: one.get(name, 0) + other.get(name, 0) for name in one | other}
    return one + other


def _played(proof: Proof) -> dict[str, int]:
    happened = proof.of_clients + Counter(fault for _, _, fault in proof.outages)
    made = {str(each): happened[each] for each in proof.plan.faults}
    if rounds_for(proof.plan.faults) > 1:
        made[NONE] = sum(not each.faults for each in proof.plan.rounds[: proof.rounds])
    return made


def _line(judgement: Judgement, ruling: Ruling, origin: float) -> Line:
    cases = [
        _case(judgement, finding, origin, shown=number < WITH_PACKETS) for number, finding in enumerate(ruling.findings)
    ]
    return Line(**{**vars(ruling), "findings": cases})


def _case(judgement: Judgement, finding: Finding, origin: float, *, shown: bool) -> Case:
    proof = judgement.proof
    events = [proof.history.events[number] for number in finding.operations]
    last = max((each.step for each in events), default=-1)
    return Case(
        client=finding.client,
        kind=kind_of(proof, finding.client),
        what=finding.what,
        statement=finding.statement,
        operations=[told(each, origin) for each in events],
        packets=packets(events, proof.logs, origin) if shown else [],
        seed=proof.plan.seed,
        # What was lost may have been so by a fault that came later in the round.
        until=last_of_round(proof.plan, last),
    )


def _timeline(judgement: Judgement, origin: float) -> list[Second]:
    made: list[Second] = []

    def second(at: float) -> Second:
        number = max(0, int(at - origin))
        made.extend(Second() for _ in range(number + 1 - len(made)))
        return made[number]

    events = judgement.proof.history.events
    for each in events:
        if isinstance(each, Publish) and not each.will:
            second(each.began).published += 1
            if each.outcome == "ok":
                second(each.ended).acknowledged += 1
        elif isinstance(each, Delivery):
            second(each.at).delivered += 1
    for ruling in judgement.rulings:
        for finding in ruling.findings if ruling.promise in ABSENT else ():
            found: Event = events[finding.operations[-1]]
            second(time_of(found)).lost += 1
    for wait in judgement.waits:
        if wait.answered:
            at = second(wait.until)
            at.wait = max(at.wait, wait.seconds)
    return made
