"""The topic tree as a page: where the messages and the bytes are, the hot topics, the explosions.

No table is brought to the driver: the `PREFIXES` largest are drawn.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Row

from broker.words import counted
from canopy_pages import Page, Plot, number, treemap
from canopy_pages.page import ROWS
from pipeline.record.coverage import Coverage
from pipeline.runtime.engine import f

PREFIXES: Final = 600
"""Prefixes of a plot: a browser draws so many at once."""


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
    shown = f"The {len(largest)} largest prefixes of {prefixes:,}; click to go in, and at the top to come back."
    made.plot(_treemap(largest, "messages", "Messages by branch", shown))
    made.plot(_treemap(largest, "bytes", "Payload bytes by branch", "The same prefixes."))
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


def _treemap(nodes: list[Row], of: str, title: str, about: str) -> Plot:
    # Ids with their depth: "" is the root, and the first level of "/a" too.
    shown = [
        (
            f"{row['depth']} {row['prefix']}", f"{row['depth'] - 1} {row['parent']}" if row["depth"] else "",
            (row["level"] or '""') if row["depth"] else "all topics", row[of],
            row["prefix"] if row["depth"] else "all topics",
            f"{counted(row['topics'], 'topic')}, {counted(row['children'], 'child', 'children')}",
        )
        for row in nodes
    ]  # fmt: skip
    return treemap(of, shown, of, title, about)
