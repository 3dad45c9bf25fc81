"""The result of a run, as data: every report is made from it.

Owns: the shape of the results. `as_json` is the JSON summary; the reports (``report``) add files beside it.

Promises: latencies are microseconds from the intended time of sending; times are seconds since the stages began
(negative while clients connect); counts are messages unless their name says otherwise. A figure that could not be had
is None, never 0.

``ledger.deliveries`` and ``checks.expected`` find out what is lost or doubled.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from canopy_load.brokers.stats import counted_percentile

FORMAT: Final = 3
"""Version of the JSON summary; it grows when a key changes its meaning or goes away."""

Limit = Literal["broker", "generator", "neither", "unknown"]


@dataclass
class Latency:
    """A distribution in microseconds; None if nothing was measured."""

    count: int = 0
    min: float | None = None
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    p999: float | None = None
    max: float | None = None
    counts: dict[int, int] = field(default_factory=dict, repr=False)
    """The whole distribution: microseconds (three significant digits) to how many took so long. Not in the JSON."""

    @classmethod
    def of(cls, counts: dict[int, int]) -> Latency:
        """That of some counts by microseconds."""
        total = sum(counts.values())
        if not total:
            return cls()
        p50, p90, p99, p999 = (counted_percentile(counts, percent) for percent in (50, 90, 99, 99.9))
        mean = sum(value * count for value, count in counts.items()) / total
        return cls(total, float(min(counts)), mean, p50, p90, p99, p999, float(max(counts)), counts)


@dataclass
class Deliveries:
    """Deliveries of some messages to some subscribers: the expected ones and the received ones.

    expected = received + lost + unconfirmed, where `received` counts each message once. Copies and deliveries that
    could not be judged are counted apart.
    """

    expected: int = 0
    received: int = 0
    lost: int = 0
    """Expected messages that had not come when the drain was over."""
    duplicates: int = 0
    """Further copies with QoS 0 or 2, or with QoS 1 and without DUP on one connection."""
    redelivered: int = 0
    """Further copies that QoS 1 allows: marked DUP, or after a reconnection."""
    overlapping: int = 0
    """Further copies for a client of which several filters match, which the specification allows."""
    reordered: int = 0
    """Messages that came after a later one of the same stream."""
    altered: int = 0
    """Messages that came with another topic or payload than they were sent with."""
    unconfirmed: int = 0
    """Messages that did not come and that the broker has not acknowledged (the publisher's connection broke)."""
    unjudged: int = 0
    """Messages sent while the subscriber was coming or going: it is not known whether they were due."""
    retained: int = 0
    """Retained messages that came with a subscription."""
    told_lost: int = 0
    """Losses of which Canopy told the subscribers in band (user property `canopy-lost`)."""

    @property
    def faults(self) -> int:
        """Lost, duplicates, reordered and altered ones together."""
        return self.lost + self.duplicates + self.reordered + self.altered


@dataclass
class GroupResult:
    """One group of clients. `deliveries` are those to its clients."""

    name: str
    clients: int
    publishes: bool
    subscribes: bool
    frozen: bool = False
    """It froze, or read at a limited rate: its losses are the policy's, and are not in the result's totals."""
    sent: int = 0
    unsent: int = 0
    """Messages that were due by the scenario's rate and could not be sent before the stages were over."""
    refused: int = 0
    """PUBLISH packets the broker answered with a reason code from 0x80."""
    requests: int = 0
    """Messages that asked for an answer."""
    answered: int = 0
    """Requests that got one."""
    answered_again: int = 0
    """Further answers to the same requests."""
    connects: int = 0
    connects_failed: int = 0
    connections_lost: int = 0
    """Ended by the broker, or broken."""
    subscribes_refused: int = 0
    deliveries: Deliveries = field(default_factory=Deliveries)
    latency: Latency = field(default_factory=Latency)


@dataclass
class Pair:
    """The deliveries from one publisher to one subscriber. The members of a shared subscription are one subscriber."""

    publisher: str
    subscriber: str
    group: str
    deliveries: Deliveries


@dataclass
class Second:
    """A second of the run, or less where a stage ended."""

    start: float
    seconds: float
    stage: str
    measured: bool
    clients_up: int = 0
    offered: int = 0
    """Messages that were due."""
    sent: int = 0
    received: int = 0
    foreign: int = 0
    """Messages of others that came to subscribers: they are counted and not judged."""
    bytes_sent: int = 0
    bytes_received: int = 0
    gaps: int = 0
    """Messages seen to be missing in this second, since a later one came, less those that came after all (so it may be
    negative); of groups that read as fast as they can. Whether they are lost or unconfirmed is found at the end."""
    slow_gaps: int = 0
    """The same of groups that read slowly or freeze."""
    copies: int = 0
    """Further copies of messages, to groups that read as fast as they can. Which of them are duplicates, redelivered
    or overlapping is found at the end."""
    connects: int = 0
    connections_lost: int = 0
    subscribes: int = 0
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None
    latencies: dict[int, int] = field(default_factory=dict)
    """Microseconds (three significant digits) to deliveries."""
    late_p99: float | None = None
    """The generator's own lateness, in microseconds."""
    generator_cpu: float = 0.0
    """Cores' worth, of all its processes together."""
    generator_busiest: float = 0.0
    """Share of a core used by the busiest of its processes."""
    generator_waited: float = 0.0
    """Share of the time for which one of its processes was ready to run while others had its core, at the most."""
    broker_cpu: float | None = None
    broker_memory: int | None = None
    """Bytes resident."""


@dataclass
class Reconciled:
    """The drops that the broker reports, compared with the messages that are missing."""

    seen: int
    """Missing deliveries, of all groups."""
    reported: int | None
    """Drops of application messages in the broker's own `$SYS` ledger during the run; None: it publishes none."""
    by_cause: dict[str, int] = field(default_factory=dict)
    told: int = 0
    """Losses told in band (`canopy-lost`)."""
    agrees: bool | None = None
    """True if the two counts are the same; None if the broker publishes none, or if it reports more than is missing,
    which may be other clients'."""
    why: str = ""
    """In a sentence, for people."""


@dataclass
class ThresholdResult:
    text: str
    """As it was written, `p99 < 50ms`."""
    figure: str
    value: float | None
    """The measured value: microseconds, a share from 0 to 1, or a number; None: there was nothing to measure."""
    met: bool


UNJUDGED: Final = 0.01
"""Share of the deliveries that broken connections may leave unjudged before the whole counts as unjudged."""

LATE_FLOOR: Final = 1_000
"""Microseconds of the generator's own lateness that disturb nothing. They are subtracted: there is no step here."""

PARTLY: Final = 0.1
"""Disturbance from which the latencies are partly the generator's own."""

SPOILED: Final = 0.5
"""Disturbance from which they are not the broker's."""

UNSENT: Final = 0.01
"""Share of the messages that may stay unsent at the end before the verdict names a cause."""


@dataclass
class Result:
    """One run of one scenario on one target."""

    run: str
    scenario: str
    description: str
    scenario_text: str
    """The scenario as it was played, in TOML."""
    target: str
    broker: str
    """The broker's name for itself (`$SYS/broker/version`), or the name that the generator knows."""
    begun: str
    """ISO 8601, UTC."""
    interrupted: bool
    environment: dict[str, str]
    processes: int
    stages: list[dict[str, Any]]
    """`name`, `start`, `seconds`, `measured`."""
    measured_seconds: float
    sent: int = 0
    """Messages sent in the measured stages; `groups` count the whole run."""
    received: int = 0
    foreign: int = 0
    """Messages of others that subscribers received in the measured stages."""
    foreign_rate: float = 0.0
    send_rate: float = 0.0
    """Messages a second in the measured stages."""
    receive_rate: float = 0.0
    deliveries: Deliveries = field(default_factory=Deliveries)
    """Of the whole run, to all groups that read as fast as they can."""
    latency: Latency = field(default_factory=Latency)
    """Of groups that read as fast as they can."""
    late: Latency = field(default_factory=Latency)
    """The generator's own lateness: from the moment when a message was due and the connection would have taken it."""
    connect: Latency = field(default_factory=Latency)
    """From the intended time of the connection attempt to the CONNACK."""
    subscribe: Latency = field(default_factory=Latency)
    """From SUBSCRIBE to SUBACK."""
    round_trip: Latency = field(default_factory=Latency)
    """From the intended time of a request to its answer."""
    closed_loop: bool = False
    """True if all publishers waited for deliveries: their latency is that of a full window."""
    generator_cpu: float = 0.0
    """Cores' worth in the measured stages."""
    generator_busiest: float = 0.0
    generator_waited: float = 0.0
    generator_us: float | None = None
    """Microseconds of the generator's CPU for each delivery."""
    broker_cpu: float | None = None
    broker_us: float | None = None
    """Microseconds of the broker's CPU for each delivery."""
    broker_memory: int | None = None
    """Bytes resident at the most."""
    limit: Limit = "unknown"
    verdict: str = ""
    """In a sentence: whose figures these are."""
    errors: dict[str, int] = field(default_factory=dict)
    """Each kind of error, in words, and its count."""
    reconciled: Reconciled | None = None
    thresholds: list[ThresholdResult] = field(default_factory=list)
    """The thresholds and their outcomes."""
    groups: list[GroupResult] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    """Every pair; in JSON those that missed or doubled something, the worst first, at most 1,000."""
    seconds: list[Second] = field(default_factory=list)

    @property
    def disturbed(self) -> float:
        """The share of the latency that may be the generator's own, from 0 to 1.

        It is the greater of two shares: of the latency's 99th percentile, what is the generator's own lateness (its
        99th percentile, above `LATE_FLOOR`); and of the time, that for which a process of the generator was ready to
        run while others had its core, so that it was late to read what came. More of either never makes it smaller.
        """
        late, latency = max(0.0, (self.late.p99 or 0.0) - LATE_FLOOR), self.latency.p99
        share = late / max(latency, late) if late and latency else 0.0
        return min(1.0, max(self.generator_waited, share))

    @property
    def unjudged_share(self) -> float:
        """The share of deliveries of which it is not known whether they were due."""
        of = self.deliveries
        return of.unjudged / (of.expected + of.unjudged) if of.unjudged else 0.0

    @property
    def missed(self) -> list[ThresholdResult]:
        return [each for each in self.thresholds if not each.met]

    @property
    def broken(self) -> int:
        """Connections that broke, or that the broker ended, or that could not be made: none of them by the scenario."""
        return sum(group.connections_lost + group.connects_failed for group in self.groups)

    @property
    def requests(self) -> int:
        return sum(group.requests for group in self.groups)

    @property
    def unanswered(self) -> int:
        return self.requests - sum(group.answered for group in self.groups)

    @property
    def unsent(self) -> int:
        """Messages that were due by the scenario's rates and could not be sent."""
        return sum(group.unsent for group in self.groups)

    @property
    def too_much_unsent(self) -> bool:
        """True if more than `UNSENT` of the messages that were due could not be sent."""
        return self.unsent > UNSENT * (self.unsent + sum(group.sent for group in self.groups))

    @property
    def too_little_judged(self) -> bool:
        """True if broken connections left more than `UNJUDGED` of the deliveries without a judgement."""
        return self.broken > 0 and self.unjudged_share > UNJUDGED

    def as_json(self) -> dict[str, Any]:
        """The summary: everything but the seconds' distributions and the pairs in which all was well."""
        data = asdict(self)
        data["format"] = FORMAT
        data["disturbed"] = self.disturbed
        for second in data["seconds"]:
            del second["latencies"]
        for each in (data, *data["groups"]):
            for name in ("latency", "late", "connect", "subscribe", "round_trip"):
                each.get(name, {}).pop("counts", None)
        worst = sorted(self.pairs, key=lambda pair: -pair.deliveries.faults)
        data["pairs"] = [asdict(pair) for pair in worst[:1000] if pair.deliveries.faults]
        return data
