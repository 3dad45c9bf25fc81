"""What the jobs of the pipeline compute, as somebody writes it by hand for one question: `python -m benchmarks.by_hand
JOB TOOL RECORD OUT`.

Owns the yardstick of `benchmarks.pipeline`: one SQL statement for each table, and the same in Polars. It looks for
nothing that is missing, makes no page, and replaces no hour; a message without a property `sent` has no latency.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import duckdb

BUCKET: Final = "(case when us < 32 then us else 32 + 16 * (k - 6) + (us >> (k - 5)) - 16 end)::int"
PUBLISHES: Final = "read_parquet('{record}/date=*/hour=*/*.parquet', hive_partitioning = false)"
ROLLUP: Final = f"""
create temp table counted as
select epoch_us(ts) // 60000000 as m, topic, client_id, count(*) as messages, sum(size)::bigint as bytes,
  min(size) as size_min, max(size) as size_max, count(*) filter (qos = 0) as qos0, count(*) filter (qos = 1) as qos1,
  count(*) filter (qos = 2) as qos2, count(*) filter (retain) as retained, min(epoch_us(ts)) as first_us,
  max(epoch_us(ts)) as last_us
from {PUBLISHES} where kind = 'publish' group by all;
create temp table aged as
with sent as (
  select epoch_us(ts) as t, topic, list_filter(properties, lambda p: p.key = 'sent')[1].value as v
  from {PUBLISHES} where kind = 'publish'
), late as (select t, topic, t - try_cast(v as bigint) as us from sent),
digits as (select *, floor(log2(us + 0.5))::int + 1 as k from late where us >= 0 and us < 2592000000000)
select t // 60000000 as m, topic, {BUCKET} as bucket, count(*) as n, min(us) as low, max(us) as high,
  sum(us)::bigint as total from digits group by all;
"""
TABLE: Final = """
copy (
  with rows as (
    select m // {unit} * {unit} as m, topic, sum(messages)::bigint as messages, sum(bytes)::bigint as bytes,
      min(size_min) as size_min, max(size_max) as size_max, sum(qos0)::bigint as qos0, sum(qos1)::bigint as qos1,
      sum(qos2)::bigint as qos2, sum(retained)::bigint as retained, min(first_us) as first_us, max(last_us) as last_us,
      count(distinct client_id) as publishers
    from counted group by all
  ), buckets as (
    select m // {unit} * {unit} as m, topic, bucket, sum(n)::bigint as n, min(low) as low, max(high) as high,
      sum(total)::bigint as total from aged group by all
  ), histograms as (
    select m, topic, sum(n)::bigint as latency_count, min(low) as latency_min_us, max(high) as latency_max_us,
      sum(total)::bigint as latency_sum_us,
      list({{'bucket': bucket, 'n': n}} order by bucket) as latency from buckets group by all
  )
  select to_timestamp(m * 60) as start, topic, messages, bytes, size_min, size_max, qos0, qos1, qos2, retained,
    to_timestamp(first_us / 1e6) as first_ts, to_timestamp(last_us / 1e6) as last_ts, publishers, latency_count,
    latency_min_us, latency_max_us, latency_sum_us, latency
  from rows left join histograms using (m, topic) order by start, topic
) to '{out}/{name}.parquet' (compression zstd)
"""
PUBLISHERS: Final = """
copy (
  select to_timestamp(m // 60 * 3600) as start, topic, client_id, sum(messages)::bigint as messages,
    sum(bytes)::bigint as bytes from counted group by all order by start, topic
) to '{out}/publishers.parquet' (compression zstd)
"""
TREE: Final = f"""
copy (
  with topics as (
    select topic, count(*) as messages, sum(size)::bigint as bytes from {PUBLISHES} where kind = 'publish' group by all
  ), prefixes as (
    select unnest(list_transform(range(len(string_split(topic, '/')) + 1), lambda n:
      array_to_string(string_split(topic, '/')[1:n], '/'))) as prefix, messages, bytes from topics
  )
  select prefix, sum(messages)::bigint as messages, sum(bytes)::bigint as bytes from prefixes group by all
) to '{{out}}/tree.parquet' (compression zstd)
"""
TABLES: Final = f"""
copy (
  select seq, ts, topic, string_split(topic, '/')[2] as line, (p->>'$.at')::timestamptz as measured,
    (p->>'$.power.watts')::double as watts, (p->>'$.phase')::int as phase
  from (select seq, ts, topic, decode(payload)::json as p from {PUBLISHES} where kind = 'publish')
) to '{{out}}/power.parquet' (compression zstd)
"""


def by_sql(*statements: str) -> Callable[[Path, Path], None]:
    """Return a job of DuckDB's."""

    def run(record: Path, out: Path) -> None:
        with duckdb.connect() as session:
            session.execute("set timezone = 'UTC'")
            for each in statements:
                session.execute(each.format(record=record, out=out))

    return run


def rollup_by_polars(record: Path, out: Path) -> None:
    """The table of minutes alone."""
    import polars as pl

    sent = pl.col("properties").list.eval(
        pl.element().filter(pl.element().struct.field("key") == "sent").struct.field("value")
    )
    at = pl.col("ts").cast(pl.Int64)
    minute = (at // 60_000_000 * 60_000_000).cast(pl.Datetime("us", "UTC"))
    rows = (
        pl.scan_parquet(f"{record}/date=*/hour=*/*.parquet", hive_partitioning=False)
        .filter(pl.col("kind") == "publish")
        .select(
            minute.alias("start"), "topic", "client_id", "size", "qos", "retain",
            at.alias("at"), (at - sent.list.first().cast(pl.Int64, strict=False)).alias("us"),
        )
        .with_columns(pl.when((pl.col("us") >= 0) & (pl.col("us") < 2_592_000_000_000)).then(pl.col("us")).alias("us"))
        .with_columns(((pl.col("us") + 0.5).log(2).floor().cast(pl.Int64) + 1).alias("k"))
        .with_columns(
            pl.when(pl.col("us") < 32)
            .then(pl.col("us"))
            .otherwise(32 + 16 * (pl.col("k") - 6) + pl.col("us") // pl.lit(2).pow(pl.col("k") - 5).cast(pl.Int64) - 16)
            .alias("bucket")
        )
    )  # fmt: skip
    counted = rows.group_by("start", "topic").agg(
        pl.len().alias("messages"), pl.col("size").sum().alias("bytes"), pl.col("size").min().alias("size_min"),
        pl.col("size").max().alias("size_max"), (pl.col("qos") == 0).sum().alias("qos0"),
        pl.col("retain").sum().alias("retained"), pl.col("client_id").n_unique().alias("publishers"),
        pl.col("us").count().alias("latency_count"), pl.col("us").sum().alias("latency_sum_us"),
        pl.col("bucket").drop_nulls().value_counts(name="n").alias("latency"),
    )  # fmt: skip
    counted.sink_parquet(out / "minutes.parquet", compression="zstd")


JOBS: Final[dict[tuple[str, str], Callable[[Path, Path], None]]] = {
    ("rollup", "sql"): by_sql(
        *ROLLUP.split(";\n")[:2],
        TABLE.replace("{unit}", "1").replace("{name}", "minutes"),
        TABLE.replace("{unit}", "60").replace("{name}", "hours"),
        PUBLISHERS,
    ),
    ("rollup", "polars"): rollup_by_polars,
    ("tree", "sql"): by_sql(TREE),
    ("tables", "sql"): by_sql(TABLES),
}

if __name__ == "__main__":
    job, tool, record, out = sys.argv[1:]
    JOBS[job, tool](Path(record), Path(out))
