"""One tree: the tables `tree`, `hot` and `explosions`, and the page.

Promises: publishes are read once; what is made of them is kept by topic. An earlier run's tables are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from canopy_mqtt.words import counted
from canopy_pipeline.errors import MisuseError
from canopy_pipeline.outputs import PAGE, begin, check, finish
from canopy_pipeline.record.coverage import Coverage
from canopy_pipeline.record.events_schema import PUBLISH
from canopy_pipeline.record.segments import Choice, Say, covering, events, reading, unsaid
from canopy_pipeline.runtime.engine import f
from canopy_pipeline.runtime.storage import parquet, storage
from canopy_pipeline.tree.tree_page import page
from canopy_pipeline.tree.tree_transforms import PUBLISHES, by_topic, explosions, hot, tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOT: Final = 100
TABLES: Final = ("tree", "hot", "explosions")


@dataclass(frozen=True)
class TreeOutcome:
    output: str
    messages: int
    topics: int
    prefixes: int
    explosions: int
    coverage: Coverage

    def summary(self) -> dict[str, Any]:
        about = {name: getattr(self, name) for name in ("messages", "topics", "prefixes", "explosions")}
        return {**about, "coverage": self.coverage.summary()}

    def line(self) -> str:
        return (
            f"{counted(self.messages, 'message')}, {counted(self.topics, 'topic')}, "
            f"{counted(self.prefixes, 'prefix', 'prefixes')}, "
            f"{counted(self.explosions, 'topic explosion')}: {self.output}/{PAGE}"
        )


def run(
    spark: SparkSession,
    inputs: Sequence[str],
    output: str,
    choice: Choice | None = None,
    hottest: int = HOT,
    say: Say = unsaid,
) -> TreeOutcome:
    """The tables and the page of all publishes that are there.

    Raises:
        MisuseError: an option makes no sense.
        PipelineError: there is nothing to read, or it cannot be read.
    """
    if hottest < 1:
        raise MisuseError(f"--hot {hottest}: must be at least 1")
    check(inputs, output, TABLES)
    only = replace(choice or Choice(), kinds=(PUBLISH,))
    coverage = covering(only)
    place = storage(spark, output)
    begin(place)
    publishes = events(spark, inputs, only, PUBLISHES, coverage)
    with reading():
        topics = by_topic(publishes).persist()
        try:
            span = topics.agg(
                f.count(f.lit(1)).alias("topics"),
                f.sum("messages").alias("messages"),
                f.min(f.unix_micros("first_ts")).alias("first"),
                f.max(f.unix_micros("last_ts")).alias("last"),
            ).collect()[0]
            messages = int(span["messages"] or 0)
            if not messages:
                say("no messages: the tables are empty")
            first = int(span["first"] or 0)
            # One message has no rate: a second is the least.
            seconds = max((int(span["last"] or 0) - first) / 1e6, 1.0)
            tree(topics, seconds).write.mode("overwrite").option("compression", "zstd").parquet(place.at("tree"))
            nodes = parquet(spark.read, place.at("tree"))
            loudest = hot(topics, hottest, seconds, messages)
            loudest.coalesce(1).write.mode("overwrite").parquet(place.at("hot"))
            found = explosions(nodes, first, seconds)
            found.coalesce(1).write.mode("overwrite").parquet(place.at("explosions"))
        finally:
            topics.unpersist()
        hottest_, exploding = (parquet(spark.read, place.at(name)) for name in ("hot", "explosions"))
        drawn, prefixes, exploded = page(nodes, hottest_, exploding, seconds, coverage)
        outcome = TreeOutcome(output, messages, int(span["topics"]), prefixes, exploded, coverage)
        finish(place, outcome.summary(), drawn.html())
    return outcome
