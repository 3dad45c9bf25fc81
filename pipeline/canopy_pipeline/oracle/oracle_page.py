"""The oracle's page: the verdict, the counts, and examples of what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from canopy_mqtt.pages import Page
from canopy_mqtt.words import counted

if TYPE_CHECKING:
    from canopy_pipeline.oracle.oracle_outcome import OracleOutcome

HEADINGS: Final = ("run", "seq", "topic", "client", "filter", "why", "QoS", "expected QoS", "copies")
ABOUT: Final = {
    "missing": "Should have been delivered, and there is neither a delivery nor a drop of it.",
    "unexpected": "Was delivered, or dropped, and should not have been offered.",
    "wrong": "Was delivered as it should, but twice, or with another QoS.",
    "unjudged": "What a gap in the recording leaves open.",
}


def page(outcome: OracleOutcome, examples: dict[str, list[list[Any]]]) -> Page:
    """The whole page; `examples` by outcome, with the columns of the tables."""
    made = Page(
        "Oracle", "Recorded subscriptions replayed over recorded publishes, and compared with what was delivered."
    )
    text, good = outcome.headline()
    made.paragraph(text, "good" if good else "bad")
    outcome.coverage.show(made)
    for note in outcome.notes:
        made.paragraph(note, "note")
    made.figures(
        {
            "publishes": outcome.publishes,
            "judged": outcome.judged,
            "expected deliveries": outcome.expected,
            "delivered": outcome.delivered,
            "dropped": sum(outcome.dropped.values()),
            "missing": outcome.missing,
            "unexpected": outcome.unexpected,
            "wrong": outcome.wrong,
            "unjudged": outcome.unjudged,
            "gaps": outcome.gaps,
        }
    )
    if outcome.dropped:
        made.heading("Dropped, by cause")
        made.table(["cause", "messages"], sorted(outcome.dropped.items(), key=lambda each: -each[1]))
        made.heading("Dropped, by receiver and cause")
        rows = [[e.client_id, e.cause, e.messages, e.reliable, e.publisher, e.publishers] for e in outcome.losses]
        made.table(["to", "cause", "messages", "of QoS 1 or 2", "from", "publishers"], rows, "the record")
        made.paragraph(
            f"{counted(outcome.receivers, 'client')} lost something. What a queue shed later names no publisher.",
            "note",
        )
    for name, about in ABOUT.items():
        count = getattr(outcome, name)
        if count:
            made.heading(f"{name.capitalize()}: {count:,}")
            made.paragraph(about, "note")
            made.table(HEADINGS, examples.get(name, []), f"the table {name}")
    return made
