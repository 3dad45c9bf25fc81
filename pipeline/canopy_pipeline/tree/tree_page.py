"""The topic tree as a page: where the messages and the bytes are, the hot topics, the explosions.

No table is brought to the driver: the `PREFIXES` largest are drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_mqtt.pages import BLUE, GREEN, Bar, Page, label, number
from canopy_mqtt.pages.page import ROWS
from canopy_mqtt.words import counted
from canopy_pipeline.record.coverage import Coverage
from canopy_pipeline.runtime.engine import f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

PREFIXES: Final = 100
"""Prefixes that are drawn: a page with more is not readable."""


def page(
    nodes: DataFrame, hot: DataFrame, explosions: DataFrame, seconds: float, coverage: Coverage
) -> tuple[Page, int, int]:
    """The page, how many prefixes there are, and how many explosions."""
    made = Page("Topic tree", "What each branch of the topic tree carries. canopy pipeline tree")
    coverage.show(made)
    # A prefix has at least its child's messages, and less depth: the largest are a tree again.
    largest = nodes.orderBy(f.desc("messages"), "depth", "prefix").limit(PREFIXES).collect()
    prefixes, exploded = nodes.count(), explosions.count()
    if not largest:
        made.paragraph("No messages.", "note")
        return made, prefixes, exploded
    root = largest[0]
    made.figures(
        {
            "messages": root["messages"],
            "topics": root["topics"],
            "prefixes": prefixes,
            "payload bytes": root["bytes"],
            "messages a second": root["messages"] / seconds,
            "topic explosions": exploded,
        }
    )
    shown = f"The {len(largest)} largest prefixes of {prefixes:,}, each below its parent; all are in the table tree."
    made.bars("messages", "Messages by branch", shown, _branches(largest, "messages", BLUE))
    made.bars("bytes", "Payload bytes by branch", "The same prefixes.", _branches(largest, "bytes", GREEN))
    made.heading("Hot topics")
    told = hot.orderBy(f.desc("messages"), "topic").limit(ROWS + 1).collect()
    made.table(
        ["topic", "messages", "share %", "bytes", "messages/s"],
        [
            [row["topic"], row["messages"], round(100 * row["share"], 2), row["bytes"], row["messages_per_s"]]
            for row in told
        ],
        "the table hot",
    )
    made.heading("Topic explosions")
    made.paragraph("Prefixes with many children that carry little each, or with ever more of them.", "note")
    made.table(
        ["prefix", "why", "children", "messages", "messages for each", "new over time", "as"],
        [
            [
                row["prefix"] or "(root)", row["why"], row["children"], row["messages"], row["per_child"],
                " ".join(number(each) for each in row["new_children"]), ", ".join(row["examples"]),
            ]
            for row in explosions.orderBy(f.desc("children"), "depth", "prefix").limit(ROWS + 1).collect()
        ],
        "the table explosions",
    )  # fmt: skip
    return made, prefixes, exploded


def _branches(nodes: list[Row], of: str, colour: str) -> list[Bar]:
    """Each prefix below its parent, the largest first."""
    children: dict[tuple[int, str], list[Row]] = {}
    for row in sorted(nodes, key=lambda row: (-row[of], row["prefix"])):
        children.setdefault((row["depth"] - 1, row["parent"] if row["depth"] else ""), []).append(row)
    found: list[Bar] = []
    waiting = children.get((-1, ""), [])
    while waiting:
        row = waiting.pop(0)
        name = (row["level"] or '""') if row["depth"] else "all topics"
        told = f"{number(row[of])} ({counted(row['topics'], 'topic')})"
        found.append(Bar(label(name), row[of], told, colour, depth=row["depth"]))
        waiting = children.get((row["depth"], row["prefix"]), []) + waiting
    return found
