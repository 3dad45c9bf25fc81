"""What the oracle says first: who lost what and why, and what nobody judged."""

from __future__ import annotations

from typing import Any

from canopy_pipeline.oracle.oracle_outcome import Loss, OracleOutcome
from canopy_pipeline.record.coverage import Coverage, Finding


def outcome(**more: int) -> OracleOutcome:
    """All is well, but for what a test says."""
    made: dict[str, Any] = {"publishes": 100, "judged": 100, "expected": 200, "delivered": 200, **more}
    return OracleOutcome(runs=1, **made)


def test_all_is_well_only_where_everything_was_read_and_judged() -> None:
    assert outcome().headline() == (
        "Every message that was recorded went where it should, and the broker dropped none.",
        True,
    )
    text, good = outcome(judged=40, unjudged=7).headline()
    assert not good
    assert text.startswith("Every message that could be judged went where it should")
    assert "Not judged: 60 of 100 publishes (60.0 %), and 7 deliveries and drops." in text
    incomplete = outcome()
    incomplete.coverage = Coverage(events=90, segments=2)
    incomplete.coverage.add(Finding("hole", None, 91, 100, 10, "numbers 91 to 100 are missing"))
    # What is missing stands on the page by itself.
    assert incomplete.headline() == (
        "Every message that could be judged went where it should, and the broker dropped none.",
        False,
    )


def test_drops_are_no_agreement() -> None:
    found = outcome(receivers=5, reliable=2325)
    found.dropped = {"queue-full": 4900, "expired": 67}
    found.losses = [
        Loss("slow", "queue-full", 4900, 2300, 3, "p1"),
        Loss("", "expired", 60, 25, 1, "p2"),
        Loss("late", "expired", 7, 0, 0, None),
        Loss("other", "expired", 1, 0, 0, None),
    ]
    assert (found.verdict, found.fine) == ("drops", True)
    text, good = found.headline()
    assert not good
    assert text == (
        "The broker dropped 4,967 messages: 4,900 from p1 and 2 more to slow (queue-full), 60 from p2 to a share group "
        "(expired), 7 to late (expired), and to 2 other clients. At least 2,325 of them were published with QoS 1 or "
        "2. All else that could be judged went where it should."
    )
    assert found.line().endswith(": drops")
    assert found.summary()["losses"][0]["publishers"] == 3


def test_a_disagreement_says_what_is_missing() -> None:
    found = outcome(missing=3, unexpected=1)
    assert (found.verdict, found.fine) == ("disagrees", False)
    assert "of 200 deliveries that were due 3 are missing without a word" in found.headline()[0]
