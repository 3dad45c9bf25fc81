"""The oracle's run: events in, tables of differences and a summary out.

Promises: the driver holds counts and a page of examples, never a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from canopy_mqtt.words import counted
from canopy_pipeline.errors import PipelineError
from canopy_pipeline.oracle import agreement, differ, expect, judge, subscription_spans
from canopy_pipeline.oracle.oracle_outcome import Loss, OracleOutcome
from canopy_pipeline.oracle.oracle_page import page
from canopy_pipeline.outputs import begin, check, finish
from canopy_pipeline.record import events_schema
from canopy_pipeline.record.segments import NO_RUN, Choice, covering, events, reading, told_before
from canopy_pipeline.runtime.engine import f
from canopy_pipeline.runtime.storage import storage
from canopy_pipeline.runtime.table_schema import Schema

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import Column, DataFrame, Row, SparkSession

COLUMNS: Final = (
    "seq", "kind", "run_id", "client_id", "topic", "qos", "topic_filter", "no_local", "reason", "n", "ref_seq",
    "from_seq", "to_seq",
)  # fmt: skip
TABLES: Final = (differ.MISSING, differ.UNEXPECTED, differ.WRONG)
EXAMPLES: Final = 100
"""Differences of a kind that the page shows; all of them are in the tables."""
FOUND: Final = Schema(outcome="string", **differ.DIFFERENCES)


def run(
    spark: SparkSession,
    inputs: Sequence[str],
    output: str,
    run_id: str | None = None,
    since: str | None = None,
    until: str | None = None,
) -> OracleOutcome:
    """Judge the recorded events; write missing, unexpected, wrong, summary.json and index.html into a folder.

    Raises:
        MisuseError: there is no such folder or run.
        PipelineError: there is nothing that can be judged, or deliveries were not recorded.
    """
    check(inputs, output, TABLES)
    place = storage(spark, output)
    with reading():
        coverage = covering(Choice(since=since, until=until))
        begin(place)
        # Who was subscribed to what is told before that.
        before = told_before(spark, inputs, since) if since is not None else None
        columns = COLUMNS if since is None else (*COLUMNS, "ts")
        table = events(spark, inputs, Choice(since=before, until=until), columns, coverage)
        outcome, found = judged(table, run_id, before is not None, coverage.since)
        outcome.coverage = coverage
        if outcome.lost:
            lose(outcome, asked(table, coverage.since), run_id)
        for name in TABLES:
            chosen = found.where(f.col("outcome") == name).drop("outcome")
            chosen.write.mode("overwrite").parquet(place.at(name))
        finish(place, outcome.summary(), page(outcome, examples(found)).html())
    return outcome


def lose(outcome: OracleOutcome, table: DataFrame, run_id: str | None = None) -> None:
    """Add the dropped messages by publisher, receiver and cause."""
    chosen = table if run_id is None else table.where(f.col("run_id") == run_id)
    published = chosen.where(f.col("kind").isin(events_schema.PUBLISH, events_schema.ARRIVE)).select(
        "run_id", f.col("seq").alias("ref_seq"), f.col("qos").alias("published"), f.col("client_id").alias("publisher")
    )
    drops = chosen.where(f.col("kind") == events_schema.DROP).select(
        "run_id",
        "ref_seq",
        f.coalesce("client_id", f.lit("")).alias("client_id"),
        f.coalesce("reason", f.lit("unknown")).alias("cause"),
        f.coalesce("n", f.lit(1)).alias("n"),
    )
    told = drops.join(published, ["run_id", "ref_seq"], "left")
    losses = keep(
        told.groupBy("client_id", "cause").agg(
            f.sum("n").alias("messages"),
            f.sum(f.when(f.col("published") > 0, f.col("n")).otherwise(0)).alias("reliable"),
            f.count_distinct("publisher").alias("publishers"),
            f.min("publisher").alias("publisher"),
        )
    )
    sums = losses.agg(f.count_distinct("client_id").alias("receivers"), f.sum("reliable").alias("reliable")).collect()[
        0
    ]
    outcome.receivers, outcome.reliable = sums["receivers"], sums["reliable"] or 0
    most = losses.orderBy(f.desc("messages"), "client_id", "cause").limit(EXAMPLES).collect()
    outcome.losses = [Loss(**row.asDict()) for row in most]


def keep(frame: DataFrame) -> DataFrame:
    """Compute a frame once, and drop its plan.

    What follows joins these frames with one another many times over. Were each still to carry its whole plan, as one
    that is merely cached does, analysing the last of them would take minutes.
    """
    return frame.localCheckpoint()


def asked(table: DataFrame, since: datetime | None) -> DataFrame:
    """Return the events of the wanted time."""
    return table if since is None else table.where(f.col("ts") >= f.lit(since))


def judged(
    table: DataFrame, run_id: str | None = None, cut: bool = False, since: datetime | None = None
) -> tuple[OracleOutcome, DataFrame]:
    """Return the counts and the differences: (outcome, *differ.DIFFERENCES).

    `cut`: what was before the first events is not there. `since`: what was before that is not judged.

    Raises:
        PipelineError: there is nothing that can be judged, or deliveries were not recorded.
    """
    tallies, named = keep(judge.counts(table)), keep(judge.gaps(table))
    told_again = keep(judge.snapshots(table))
    counted = keep(judge.blocks(tallies))
    unnamed = keep(judge.short(counted, named))
    if unnamed.limit(1).collect():
        # Where all numbers are there, they are not looked at one by one.
        unnamed = keep(judge.holes(unnamed, table, named))
    all_runs = keep(judge.runs(counted, named, unnamed, told_again, cut))
    twice = counted.where(f.col("rows") > f.col("high") - f.col("low") + 1).limit(1).collect()
    known = keep(judge.asked(all_runs, table, since)) if since is not None else judge.asked(all_runs, table, since)
    if run_id is not None:
        table, named = (each.where(f.col("run_id") == run_id) for each in (table, named))
        chosen = known.where(f.col("run_id") == run_id)
    else:
        chosen = known
    if twice:
        raise PipelineError(f"run {twice[0]['run_id']}: events are there twice: the same segments under two inputs?")
    outcome, told, grouped = tallied(tallies, table, chosen, run_id, since)
    published, all_spans = expect.publishes(table, chosen), keep(subscription_spans.spans(table, chosen))
    receipts = expect.receipts(table, chosen)
    several = bool(all_spans.where(expect.is_node(f.col("client_id"))).limit(1).collect())
    if several:
        receipts, less = _of_workers(outcome, table, published, receipts)
        told -= less
    plain, members = subscription_spans.ordinary(all_spans), subscription_spans.shared(all_spans)
    matched = keep(expect.matching(published, all_spans))
    sessions, groups = _sessions(published, receipts, matched, plain), None
    if not several and (grouped or members.limit(1).collect()):
        groups = _groups(published, receipts, matched, members)
    # What agrees is one receipt for each expected copy; so the rest tells how many were expected.
    rows, silent, beyond = surplus(sessions, groups)
    outcome.expected = told - beyond
    if silent and not outcome.delivered:
        raise PipelineError(
            f"no deliver event is recorded, and {silent:,} deliveries have no trace: record with "
            "`deliveries = true` in [recorder], without which nothing can be said of them"
        )
    if not rows:
        return outcome, table.sparkSession.createDataFrame([], FOUND.ddl)
    odd = keep(differ.named(sessions, groups))
    found = keep(differ.torn(odd, keep(judge.edges(table, named, unnamed, chosen)), published))
    counts = {row["outcome"]: int(row["count"]) for row in found.groupBy("outcome").count().collect()}
    outcome.missing = counts.get(differ.MISSING, 0)
    outcome.unexpected = counts.get(differ.UNEXPECTED, 0)
    outcome.wrong = counts.get(differ.WRONG, 0)
    outcome.unjudged += counts.get(differ.UNJUDGED, 0)
    return outcome, found


def _of_workers(
    outcome: OracleOutcome, table: DataFrame, published: DataFrame, receipts: DataFrame
) -> tuple[DataFrame, int]:
    """Return the receipts that can be judged where a worker's record is one of several, and how many cannot.

    Those of share groups cannot: no record says at which worker a group lives.
    """
    all_receipts = keep(receipts)
    kept = keep(expect.without_own(all_receipts.where(f.col("topic_filter").isNull()), published))
    grouped = all_receipts.where(f.col("topic_filter").isNotNull()).count()
    if grouped:
        outcome.unjudged += grouped
        outcome.notes.append(
            f"Not judged, since their members are at several workers: {counted(grouped, 'delivery', 'deliveries')} of "
            "share groups."
        )
    lost = expect.not_arrived(kept, published, table).agg(f.sum("messages").alias("sum")).collect()[0]["sum"]
    if lost:
        outcome.notes.append(
            f"Sent to another worker, and not arrived there as far as was recorded: {counted(int(lost), 'message')}."
        )
    return kept, all_receipts.count() - kept.count()


def _sessions(published: DataFrame, receipts: DataFrame, matched: DataFrame, plain: DataFrame) -> DataFrame | None:
    """Return the sessions that did not get their copies; None if all did."""
    heard = keep(agreement.audience(matched, plain))
    few = heard.limit(agreement.SENT + 1).count() <= agreement.SENT
    blocks = keep(agreement.doubtful(published, receipts, f.broadcast(heard) if few else heard))
    if not blocks.limit(1).collect():
        return None
    published, receipts = (agreement.within(rows, blocks) for rows in (published, receipts))
    wanted = expect.for_sessions(published, matched, plain)
    return keep(expect.beside_sessions(wanted, expect.of_sessions(receipts)).where("not agrees"))


def _groups(published: DataFrame, receipts: DataFrame, matched: DataFrame, members: DataFrame) -> DataFrame:
    """Return the share groups that did not get their copies."""
    wanted = expect.for_groups(published, matched, subscription_spans.groups(members))
    return keep(expect.beside_groups(wanted, expect.of_groups(receipts, members)).where("not agrees"))


def tallied(
    counts: DataFrame, table: DataFrame, known: DataFrame, run_id: str | None, since: datetime | None
) -> tuple[OracleOutcome, int, bool]:
    """Count the events without comparing any. Return the counts, the receipts of judged publishes, and True if one of
    these is a share group's."""
    outcome, told, grouped = OracleOutcome(), 0, False
    known_from, known_until = f.col("known_from"), f.col("known_until")
    tally = tally_of(counts, known)
    if since is not None or any(row["cut"] for row in tally):
        # What is known begins or ends within a block: these numbers are looked at one by one.
        among = asked(table, since).join(f.broadcast(known.select("run_id", "known_from", "known_until")), "run_id")
        parts = [(f.col(at) > known_from) & (f.col(at) < known_until) for at in ("seq", "ref_seq")]
        tally = tally_of(judge.counts(among, *(part.alias(str(at)) for at, part in enumerate(parts))), known)
    for row in tally:
        match row["kind"]:
            case events_schema.PUBLISH:
                outcome.publishes, outcome.judged = row["events"], row["judged"]
            case events_schema.DELIVER:
                outcome.delivered = row["events"]
            case events_schema.FORWARD:
                outcome.forwarded = row["events"]
            case events_schema.DROP:
                outcome.dropped[row["cause"]] = row["n"]
            case events_schema.SUBSCRIBE:
                outcome.subscriptions = row["events"]
            case events_schema.GAP:
                outcome.gaps, outcome.lost_events = row["events"], row["n"]
        outcome.unjudged += row["unjudged"]
        told += row["told"]
        grouped = grouped or bool(row["grouped"])
    headless = f.sum((~f.col("whole") & (known_until == 0)).cast("int"))
    later = f.sum((known_from > f.col("asked_from")).cast("int"))
    cut = f.sum(((known_until > 0) & (known_until <= f.col("last_seq"))).cast("int"))
    sums = {"headless": headless, "later": later, "cut": cut}
    about = known.agg(f.count("*").alias("runs"), *(each.alias(name) for name, each in sums.items())).collect()[0]
    outcome.runs = about["runs"]
    if not outcome.runs:
        raise PipelineError("no event of that time" if run_id is None else f"--run {run_id}: {NO_RUN}")
    if about["headless"]:
        outcome.notes.append(
            f"Not judged, since the beginning is not among the segments: {counted(about['headless'], 'run')}."
        )
    if about["later"]:
        outcome.notes.append(f"Judged from a snapshot of the subscriptions on: {counted(about['later'], 'run')}.")
    if about["cut"]:
        outcome.notes.append(
            f"Judged up to a gap after which subscriptions are not known: {counted(about['cut'], 'run')}."
        )
    if outcome.publishes and not outcome.judged:
        raise PipelineError("no publish can be judged: " + (" ".join(outcome.notes) or "subscriptions are not known"))
    return outcome, told, grouped


def tally_of(counts: DataFrame, known: DataFrame) -> list[Row]:
    """Count the events of each kind and cause, and the judged ones among them. `cut`: some of these counts are of
    events that are judged, and of others."""
    known_from, known_until = f.col("known_from"), f.col("known_until")

    def inside(low: str, high: str) -> Column:
        return (f.col(low) > known_from) & (f.col(high) < known_until)

    def cut(low: str, high: str) -> Column:
        return ~inside(low, high) & (f.col(high) > known_from) & (f.col(low) < known_until)

    within = f.coalesce(inside("ref_low", "ref_high"), f.lit(False))
    return (
        counts.join(f.broadcast(known.select("run_id", "known_from", "known_until")), "run_id")
        .groupBy("kind", "cause")
        .agg(
            f.sum("rows").alias("events"),
            f.sum("n").alias("n"),
            f.sum(f.when(inside("low", "high"), f.col("rows")).otherwise(0)).alias("judged"),
            f.sum(f.when(within, f.col("receipts")).otherwise(0)).alias("told"),
            f.sum(f.when(~within, f.col("receipts")).otherwise(0)).alias("unjudged"),
            f.max("grouped").alias("grouped"),
            f.max(cut("low", "high") | f.coalesce(cut("ref_low", "ref_high"), f.lit(False))).alias("cut"),
        )
        .orderBy("kind", "cause")
        .collect()
    )


def surplus(*odd: DataFrame | None) -> tuple[int, int, int]:
    """Count the rows that do not agree: all, those without a receipt, and receipts beyond the expected ones."""

    def counts(frame: DataFrame) -> list[int]:
        total, expected = f.col("delivers") + f.col("drops"), f.col("expected")
        strangers = f.coalesce(f.size("strangers"), f.lit(0)) if "strangers" in frame.columns else f.lit(0)
        silent = (expected & (total == 0)).cast("int")
        sums = [f.sum(each) for each in (f.lit(1), silent, total + strangers - expected.cast("int"))]
        found = frame.agg(*(each.alias(str(at)) for at, each in enumerate(sums))).collect()[0]
        return [int(each or 0) for each in found]

    rows, silent, beyond = (
        sum(each) for each in zip((0, 0, 0), *(counts(each) for each in odd if each is not None), strict=True)
    )
    return rows, silent, beyond


def examples(found: DataFrame) -> dict[str, list[list[Any]]]:
    """A few differences of each kind, the first ones, for the page."""
    shown: dict[str, list[list[Any]]] = {}
    for outcome in (differ.MISSING, differ.UNEXPECTED, differ.WRONG, differ.UNJUDGED):
        chosen = found.where(f.col("outcome") == outcome).orderBy("run_id", "seq", "client_id", "topic_filter")
        shown[outcome] = [[row[name] for name in differ.DIFFERENCES] for row in chosen.limit(EXAMPLES).collect()]
    return shown
