"""`OracleOutcome`: what the oracle found, which is `summary.json`, and what is said of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from canopy_mqtt.words import counted
from canopy_pipeline.record.coverage import Coverage

AGREES: Final = "agrees"
DROPS: Final = "drops"
"""The broker routed all messages correctly, and dropped some of them on the way."""
DISAGREES: Final = "disagrees"
NAMED: Final = 3
"""Losses that the headline names one by one."""


@dataclass(frozen=True)
class Loss:
    """Messages that the broker dropped, by receiver, cause and (as far as the record says) publisher. `reliable`: those
    of them published with QoS 1 or 2. A later drop of a queue names no message: then `publishers` and `reliable` do not
    count it."""

    client_id: str
    cause: str
    messages: int
    reliable: int
    publishers: int
    publisher: str | None
    """One of the publishers."""

    def text(self) -> str:
        more = f" and {self.publishers - 1:,} more" if self.publishers > 1 else ""
        source = f" from {self.publisher}{more}" if self.publisher is not None else ""
        return f"{self.messages:,}{source} to {self.client_id or 'a share group'} ({self.cause})"


@dataclass
class OracleOutcome:
    """The oracle's findings; `summary.json` has the same names.

    `expected` counts what judged publishes should have brought: a copy for each session, one for each share group.
    `dropped`: messages that the broker said it dropped, by cause. `unjudged`: deliveries, drops and expected ones of
    which nobody can tell whether they are right.
    """

    runs: int = 0
    publishes: int = 0
    judged: int = 0
    subscriptions: int = 0
    expected: int = 0
    delivered: int = 0
    forwarded: int = 0
    """Of the expected ones: to other workers, or nodes, which have delivered it on."""
    dropped: dict[str, int] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    """The receivers that lost most, with the causes; `receivers` counts all that lost something."""
    receivers: int = 0
    reliable: int = 0
    """Dropped messages that were published with QoS 1 or 2, as far as the record says which were dropped."""
    missing: int = 0
    unexpected: int = 0
    wrong: int = 0
    unjudged: int = 0
    gaps: int = 0
    lost_events: int = 0
    notes: list[str] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)

    @property
    def verdict(self) -> str:
        """The verdict on the broker, as far as was recorded: it agrees with the specification, disagrees, or drops."""
        if self.missing or self.unexpected or self.wrong:
            return DISAGREES
        return DROPS if self.lost else AGREES

    @property
    def lost(self) -> int:
        """Messages that the broker says it dropped."""
        return sum(self.dropped.values())

    @property
    def fine(self) -> bool:
        return self.verdict != DISAGREES

    def summary(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict, "coverage": self.coverage.summary()}

    def headline(self) -> tuple[str, bool]:
        """Return the result in a few sentences, and True if all of it is good."""
        good = self.verdict == AGREES and not self.unsure and self.coverage.complete
        said = []
        if self.verdict == DISAGREES:
            said.append(
                f"The broker and the specification disagree: of {self.expected:,} deliveries that were due "
                f"{self.missing:,} are missing without a word and {self.wrong:,} are wrong; {self.unexpected:,} went "
                "to somebody who should not have had them."
            )
        if self.lost:
            named = ", ".join(loss.text() for loss in self.losses[:NAMED])
            others = self.receivers - len({loss.client_id for loss in self.losses[:NAMED]})
            more = f", and to {counted(others, 'other client')}" if others > 0 else ""
            reliable = f" At least {self.reliable:,} of them were published with QoS 1 or 2." if self.reliable else ""
            said.append(f"The broker dropped {counted(self.lost, 'message')}: {named}{more}.{reliable}")
        if self.verdict == AGREES:
            what = "Every message that was recorded" if good else "Every message that could be judged"
            said.append(f"{what} went where it should, and the broker dropped none.")
        elif self.verdict == DROPS:
            said.append("All else that could be judged went where it should.")
        if self.unsure:
            skipped = self.publishes - self.judged
            share = 100.0 * skipped / self.publishes if self.publishes else 0.0
            said.append(
                f"Not judged: {skipped:,} of {self.publishes:,} publishes ({share:.1f} %), and {self.unjudged:,} "
                "deliveries and drops."
            )
        return " ".join(said), good

    @property
    def unsure(self) -> bool:
        """True if a part of the record cannot be judged."""
        return bool(self.unjudged or self.judged < self.publishes)

    def line(self) -> str:
        return (
            f"{counted(self.publishes, 'publish', 'publishes')}, {self.expected:,} deliveries expected, "
            f"{self.delivered:,} delivered, {f'{self.forwarded:,} sent to other workers, ' if self.forwarded else ''}"
            f"{sum(self.dropped.values()):,} dropped; {self.missing:,} missing, {self.unexpected:,} unexpected, "
            f"{self.wrong:,} wrong, {self.unjudged:,} unjudged, {counted(self.gaps, 'gap')}: {self.verdict}"
        )
