"""The plan's run: for each downstream broker a curve, and a recommended set of upstream topic filters.

Promises: what comes to the driver is bounded, at most `FILTERS` topic filters and `TOPICS` topics of a broker. Beyond
that filters are cut to fewer levels first, and the topics with the least traffic are left out of the curve; both is
said, and what the recommended set costs is then counted over all topics.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from canopy_pipeline.errors import MisuseError, PipelineError
from canopy_pipeline.outputs import begin, check, finish
from canopy_pipeline.plan import plan_transforms
from canopy_pipeline.plan.filter_folding import Folding, Topic, choose, filters_at
from canopy_pipeline.plan.plan_outcome import Plan, PlanOutcome
from canopy_pipeline.plan.plan_page import page
from canopy_pipeline.record.coverage import Coverage
from canopy_pipeline.record.segments import Choice, events, reading
from canopy_pipeline.runtime.engine import f
from canopy_pipeline.runtime.storage import storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILTERS: Final = 20_000
"""Topic filters of a broker that are folded on the driver."""
TOPICS: Final = 50_000
"""Topics without a subscriber, those with the most bytes, which give the costs of folding."""
DEPTHS: Final = (8, 6, 5, 4, 3, 2, 1)
"""The depths to which filters are cut, one after the other, while there are too many."""
HEADROOM: Final = 10.0
"""Per cent of the wanted bytes that may be over-forwarded by default."""

SUBSCRIPTIONS: Final = ("seq", "kind", "ts", "run_id", "client_id", "topic_filter")
PUBLISHES: Final = ("kind", "topic", "size")


class NothingError(PipelineError):
    """No client subscribed to anything that could be asked for upstream."""


def run(
    spark: SparkSession,
    inputs: Sequence[str],
    output: str,
    traffic: Sequence[str] = (),
    max_filters: int | None = None,
    headroom: float = HEADROOM,
) -> PlanOutcome:
    """Plan for the broker behind each input; write curve, plan-NAME.toml, summary.json and index.html into a folder.

    `traffic`: recordings of the upstream broker; without them, the publishes of all inputs stand for it.

    Raises:
        MisuseError: an option makes no sense, or there is no such folder.
        PipelineError: a segment is corrupt, or nobody subscribed to anything.
    """
    if max_filters is not None and max_filters < 1:
        raise MisuseError(f"--max-filters {max_filters}: must be at least 1")
    if not 0 <= headroom < math.inf:
        raise MisuseError(f"--headroom {headroom:g}: must be a percentage of 0 or more")
    check([*inputs, *traffic], output, ["curve"])
    place = storage(spark, output)
    begin(place)
    plans = []
    with reading():
        coverage = Coverage()
        published = events(spark, traffic or inputs, Choice(), PUBLISHES, coverage)
        topics = plan_transforms.traffic(published).localCheckpoint()
        for name, path in named(inputs).items():
            table = events(spark, [path], Choice(), SUBSCRIPTIONS, coverage=coverage if traffic else None)
            held = plan_transforms.subscribed(table)
            plans.append(planned(name, held, topics, max_filters, headroom))
        rows = [
            (p.broker, s.filters, s.over_bytes, s.over_messages, p.wanted_bytes, p.wanted_messages, at == p.chosen)
            for p in plans
            for at, s in enumerate(p.steps)
        ]
        spark.createDataFrame(rows, plan_transforms.CURVE.ddl).write.mode("overwrite").parquet(place.at("curve"))
    for plan in plans:
        place.write(f"plan-{plan.broker}.toml", plan.toml.encode())
    if len(plans) == 1:
        place.write("plan.toml", plans[0].toml.encode())
    outcome = PlanOutcome(plans, coverage)
    finish(place, outcome.summary(), page(plans, coverage).html())
    return outcome


def named(inputs: Sequence[str]) -> dict[str, str]:
    """Return a file name for each input: the end of its path."""
    names: dict[str, str] = {}
    for path in inputs:
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", path.rstrip("/").rpartition("/")[2]).strip("-.") or "broker"
        name, number = plain, 2
        while name in names:
            name, number = f"{plain}-{number}", number + 1
        names[name] = path
    return names


def planned(
    broker: str, held: DataFrame, topics: DataFrame, max_filters: int | None = None, headroom: float = HEADROOM
) -> Plan:
    """The plan of one broker: `held` has its distinct topic filters (filter), `topics` the traffic (topic, …).

    Raises:
        PipelineError: it has no topic filter that could be asked for upstream.
    """
    notes = []
    everything = held.localCheckpoint()
    # `$SYS/…` and its like are each broker's own.
    originals = everything.where(~f.col("filter").startswith("$"))
    own = everything.count() - (count := originals.count())
    if own:
        notes.append(f"{own:,} topic filters that begin with $ are left out: they are about the broker itself.")
    if not count:
        raise NothingError(f"{broker}: nobody subscribed to anything: there is nothing to plan")
    unwanted = plan_transforms.unmatched(topics, originals).localCheckpoint()
    total, over = _sums(topics), _sums(unwanted)
    folded = originals
    for depth in DEPTHS:
        if folded.count() <= FILTERS:
            break
        folded = plan_transforms.cut(originals, depth)
    if folded is not originals:
        notes.append(f"{count:,} topic filters are more than {FILTERS:,}: the curve begins where they are cut short.")
    first = [row["filter"] for row in folded.limit(FILTERS + 1).collect()]
    if len(first) > FILTERS:
        raise PipelineError(
            f"{broker}: more than {FILTERS:,} first levels in its topic filters: only `#` would cover them"
        )
    dearest = unwanted.orderBy(f.desc("bytes"), "topic").limit(TOPICS)
    priced = [Topic(row["topic"], row["messages"], row["bytes"]) for row in dearest.collect()]
    folding = Folding(first, priced)
    steps = folding.steps()
    wanted = (total[0] - over[0], total[1] - over[1])
    at = choose(steps, max_filters, wanted[1] * headroom / 100.0)
    filters = filters_at(folding.first, steps, at)
    plan = Plan(
        broker, count, filters, steps[at].over_bytes, steps[at].over_messages, wanted[1], wanted[0], steps, at, notes
    )
    left_out = over[1] - sum(topic.bytes for topic in priced)
    if left_out:
        # Now over all topics, not only those that the curve was priced by.
        chosen = unwanted.sparkSession.createDataFrame([(each,) for each in filters], "filter string")
        plan.over_messages, plan.over_bytes = _sums(plan_transforms.matched(unwanted, chosen))
        plan.notes.append(
            f"The curve is priced by the {TOPICS:,} dearest unwanted topics; {100 * left_out / over[1]:.1f} %"
            " of the unwanted bytes are on others, and count in the recommended set only."
        )
    return plan


def _sums(topics: DataFrame) -> tuple[int, int]:
    row = topics.agg(f.sum("messages").alias("messages"), f.sum("bytes").alias("bytes")).collect()[0]
    return row["messages"] or 0, row["bytes"] or 0
