"""The topic tree against DuckDB on the same segments, and what is called an explosion."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from canopy_pipeline.tree import tree_job, tree_transforms
from tests.pipeline.recorded import Story

NODES = """
with topics as (
  select topic, string_split(topic, '/') as levels, count(*) as messages, sum(size) as bytes
  from read_parquet('{folder}/**/seg-*.parquet') where kind = 'publish' group by all
), laid as (
  select unnest(range(0, len(levels) + 1)) as depth, * from topics
)
select depth::int as depth, array_to_string(levels[1:depth], '/') as prefix, sum(messages)::bigint as messages,
  sum(bytes)::bigint as bytes, coalesce(sum(messages) filter (depth = len(levels)), 0)::bigint as own_messages,
  count(*) as topics, count(distinct levels[depth + 1]) filter (depth < len(levels)) as children
from laid group by 1, 2 order by 1, 2
"""

ORPHANS = """
select c.prefix from read_parquet('{tree}') c left join read_parquet('{tree}') p
on p.depth = c.depth - 1 and p.prefix = c.parent where c.depth > 0 and p.prefix is null
"""


def story() -> Story:
    """A steady fleet, one topic for each request, identifiers that were all there at once, odd topics."""
    chance = random.Random(3)
    told = Story()
    for at in range(2400):
        told.now = told.begin + timedelta(seconds=at)
        match at % 6:
            case 0:
                told.publish("r", f"rpc/{at}/answer", b"1")
            case 1 if at < 600:
                told.publish("o", f"once/{at}", b"12")
            case 2:
                told.publish("d", chance.choice(["/", "//", "a", "a/", "/a", "ä/π", "a/b/c/d/e"]), b"x" * 7)
            case _:
                told.publish("f", f"fleet/{chance.randrange(60)}/state", b"x" * chance.randrange(9))
    return told


def test_the_tree_is_what_duckdb_makes_of_the_segments(
    duck: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Also where a name looks like a pattern.
    recorded, out = tmp_path / "recorded", tmp_path / "out [1]"
    story().write(recorded, segments=3)
    monkeypatch.setattr(tree_transforms, "MANY", 95)
    monkeypatch.setattr(tree_transforms, "GROWING", 50)
    outcome = tree_job.run(duck, [str(recorded)], str(out), hottest=5)
    # DuckDB too sees a pattern there, and has no way to say that it is none.
    found_in = str(out).replace("[1]", "*1*")
    with duckdb.connect() as session:
        found = session.sql(
            "select depth, prefix, messages, bytes, own_messages, topics, children from "
            f"read_parquet('{found_in}/tree/*.parquet') order by 1, 2"
        ).fetchall()
        assert found == session.sql(NODES.format(folder=recorded)).fetchall()
        assert outcome.prefixes == len(found)
        hot = session.sql(
            f"select topic, messages, round(share, 6) from read_parquet('{found_in}/hot/*.parquet')"
        ).fetchall()
        counted = session.sql(
            "select topic, count(*) as counted, round(counted / 2400, 6) "
            f"from read_parquet('{recorded}/**/seg-*.parquet') "
            "group by all order by counted desc, topic limit 5"
        ).fetchall()
        assert sorted(hot) == sorted(counted)
        orphans = session.sql(ORPHANS.format(tree=f"{found_in}/tree/*.parquet")).fetchall()
        assert orphans == []
        explosions = session.sql(
            "select prefix, why, children, messages, len(new_children), list_sum(new_children)::int, growing from "
            f"read_parquet('{found_in}/explosions/*.parquet') order by children desc"
        ).fetchall()
    # One topic for each request goes on growing; those that were there at once are many; a fleet is neither.
    assert explosions == [
        ("rpc", "many, growing", 400, 400, 8, 400, True),
        ("once", "many", 100, 100, 8, 100, False),
    ]
    # Instants, as in the record: what has no zone, other readers compare with it in theirs. And not in nanoseconds.
    times = {file.parent.name: pq.read_schema(file).field("first_ts").type for file in out.glob("[th]*/*.parquet")}
    assert times == dict.fromkeys(("tree", "hot"), pa.timestamp("us", tz="UTC"))
    page = (out / "index.html").read_text()
    assert "all topics" in page
    assert "many, growing" in page
