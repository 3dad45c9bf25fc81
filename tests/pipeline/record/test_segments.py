"""Which segments make the table of events, and what is said of those that cannot."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from canopy_mqtt.record.files.segment import Segment
from canopy_mqtt.record.schema import SCHEMA
from canopy_pipeline.compact import compact_job as compact
from canopy_pipeline.errors import DamagedError, MisuseError, PipelineError
from canopy_pipeline.record import segments
from canopy_pipeline.record.events_schema import EVENTS
from canopy_pipeline.record.segments import Choice, events, find, reading
from canopy_pipeline.runtime.storage import MANIFESTS, Local, Storage, parquet
from tests.pipeline.folder import elsewhere, record
from tests.pipeline.recorded import BEGIN, Story, beside


def told() -> Story:
    story = Story()
    story.subscribe("s", "a/#", qos=1)
    for at in range(10):
        story.publish("p", f"a/{at}", b"payload", qos=at % 3, properties=[{"key": "k", "value": "v"}])
        story.pause(60)
    story.unsubscribe("s", "a/#")
    return story


def test_spark_reads_every_column_as_it_was_written(spark: SparkSession, tmp_path: Path) -> None:
    story = told()
    story.write(tmp_path, segments=3)
    read = events(spark, [str(tmp_path)])
    assert read.schema.names == [*EVENTS] == SCHEMA.names
    rows = [row.asDict(recursive=True) for row in read.orderBy("seq").collect()]
    assert [row["seq"] for row in rows] == [event["seq"] for event in story.events]
    assert rows[1]["payload"] == b"payload"
    assert rows[1]["properties"] == [{"key": "k", "value": "v"}]
    assert rows[1]["recv_ns"] == story.events[1]["recv_ns"]
    chosen = Choice(kinds=("publish",), since="2026-11-21T16:02", until="2026-11-21T16:04", run="0a1b2c3d")
    assert events(spark, [str(tmp_path)], chosen, ["topic"]).select("topic").orderBy("topic").collect() == [
        ("a/2",),
        ("a/3",),
    ]


def test_what_cannot_be_read_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="no such file or folder"):
        events(spark, [str(tmp_path / "absent")])
    with pytest.raises(PipelineError, match="no segment in it"):
        events(spark, [str(tmp_path)])
    good, torn = told().write(tmp_path, segments=2)
    whole = torn.read_bytes()
    torn.write_bytes(whole[:-3])
    with pytest.raises(PipelineError, match=rf"{torn.name}: not a whole Parquet file"):
        events(spark, [str(tmp_path)])
    # Whole at its ends, and damaged in the middle.
    torn.write_bytes(whole[:4] + b"\0" * (len(whole) // 2) + whole[4 + len(whole) // 2 :])
    with pytest.raises(PipelineError, match=rf"{torn.name}: .*; move it away"), reading():
        events(spark, [str(tmp_path)]).collect()
    pq.write_table(pa.table({"topic": ["a"]}), good)
    shutil.rmtree(tmp_path / "_manifests")
    torn.unlink()
    with pytest.raises(PipelineError, match=r"no recorded events: it has no column seq, kind, ts, recv_ns, run_id"):
        events(spark, [str(tmp_path)])


def merge(folder: Path) -> None:
    """Both segments of a folder as one, with a manifest that says so; what it replaces is still there."""
    first, second = sorted(folder.rglob("seg-*.parquet"))
    merged = first.with_name("merged-1-12.parquet")
    tables = [pq.read_table(path, partitioning=None) for path in (first, second)]
    pq.write_table(pa.concat_tables(tables), merged)
    beside(folder, merged).write_text(
        json.dumps({"replaces": [str(path.relative_to(folder)) for path in (first, second)]})
    )


def test_a_day_or_an_hour_of_a_record_is_no_record(tmp_path: Path) -> None:
    told().write(tmp_path, segments=2)
    merge(tmp_path)
    for part in ("date=2026-11-21", "date=2026-11-21/hour=16/"):
        with pytest.raises(MisuseError, match="is a part of a record; give its folder, and --since and --until"):
            find(None, [f"{tmp_path}/{part}"])
    assert [file.place for file in find(None, [str(tmp_path)])] == ["date=2026-11-21/hour=16/merged-1-12.parquet"]
    # A copy without the manifests cannot be told apart.
    shutil.rmtree(tmp_path / "_manifests")
    with pytest.raises(PipelineError, match="copy _manifests too"):
        find(None, [str(tmp_path)])


def test_what_was_removed_meanwhile_is_said_to_be(spark: SparkSession, tmp_path: Path) -> None:
    first, _ = told().write(tmp_path, segments=2)
    table = events(spark, [str(tmp_path)])
    first.unlink()
    with pytest.raises(PipelineError, match=rf"{first.name}: was removed while it was to be read"), reading():
        table.collect()


def test_a_folder_whose_name_looks_like_a_pattern(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "a [1]" / "{b,c}" / "*?" / "\\d"
    told().write(folder)
    assert events(spark, [str(folder)]).count() == len(told().events)


def test_a_flipped_bit_is_refused_with_the_name_of_its_segment(spark: SparkSession, tmp_path: Path) -> None:
    # Without a manifest, whose checksum would be looked at first.
    [written] = told().write(tmp_path, manifests=False)
    rows = pq.read_table(written, partitioning=None)
    # As the recorder writes it, but not compressed: no other check stands before the page's own.
    pq.write_table(rows, written, compression="none", use_dictionary=False, write_page_checksum=True)
    content = bytearray(written.read_bytes())
    content[content.index(b"a/5")] ^= 1
    written.write_bytes(content)
    with pytest.raises(DamagedError, match=f"{written.name}: is damaged") as refused, reading():
        events(spark, [str(tmp_path)], columns=["topic"]).select("topic").collect()
    assert refused.value.exit_code == 1


def test_recorder_and_compaction_put_a_checksum_beside_every_page(tmp_path: Path) -> None:
    events_ = told().events
    rows = [{name: event.get(name) for name in SCHEMA.names} for event in events_]
    for at in (0, 6):
        [batch] = pa.Table.from_pylist(rows[at : at + 6], SCHEMA).combine_chunks().to_batches()
        segment = Segment(tmp_path, "0a1b2c3d", at + 1, round(events_[at]["ts"].timestamp() * 1e6))
        segment.add(batch)
        segment.finish()
    later = Story(first_seq=13, begin=BEGIN + timedelta(hours=1))
    later.publish("p", "a")
    later.write(tmp_path)
    assert compact.run(str(tmp_path), timedelta(0), 1 << 20, timedelta(hours=1), now=BEGIN + timedelta(days=1)).merged
    for path in (segment.path, *tmp_path.rglob("merged-*.parquet")):
        about = pq.ParquetFile(path).metadata.row_group(0)
        for number in range(about.num_columns):
            column = about.column(number)
            content = bytearray(path.read_bytes())
            begin = column.dictionary_page_offset or column.data_page_offset
            content[begin + column.total_compressed_size - 1] ^= 1
            with pytest.raises(OSError, match=r"(?i)crc|checksum"):
                pq.ParquetFile(pa.BufferReader(bytes(content)), page_checksum_verification=True).read()


def test_a_time_is_read_from_the_segments_that_hold_it(duck: SparkSession, tmp_path: Path) -> None:
    written = told().write(tmp_path, segments=6)
    # Events 5 and 6 of 12, in the third of six; a minute each from the second on.
    chosen = Choice(since="2026-11-21T16:03", until="2026-11-21T16:05")
    assert [file.path for file in find(duck, [str(tmp_path)], choice=chosen)] == [f"file:{written[2]}"]
    assert events(duck, [str(tmp_path)], chosen).count() == 2
    assert events(duck, [str(tmp_path)], Choice(since="2027-01-01")).count() == 0


def test_many_segments_are_read_by_their_folders_and_only_they(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, ...]] = []

    def noted(reader: object, *paths: str) -> object:
        read.append(paths)
        return parquet(reader, *paths)  # type: ignore[arg-type]

    monkeypatch.setattr(segments, "MANY_FILES", 6)
    monkeypatch.setattr(segments, "parquet", noted)
    told().write(tmp_path / "a b", segments=6)
    assert events(spark, [str(tmp_path / "a b")]).count() == 12
    assert read[-1] == (f"file:{tmp_path}/a b/date=2026-11-21/hour=16",)
    # Another file in the folder: they are read by their names.
    extra = Story(first_seq=13)
    extra.publish("p", "a")
    extra.write(tmp_path / "a b")[0].rename(tmp_path / "a b" / "date=2026-11-21" / "hour=16" / "merged-13-13.parquet")
    assert events(spark, [str(tmp_path / "a b")]).count() == 12
    assert len(read[-1]) == 6


def test_storage_is_listed_by_folders_and_no_whole_segment_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "a b,{c", hours=3)
    here, there = Local(tmp_path / "a b,{c"), elsewhere(tmp_path / "a b,{c")
    for suffix, under in ((".parquet", ""), (".json", MANIFESTS), (".parquet", "date=2026-11-21/hour=17")):
        listed = there.files(suffix, under)
        assert [(file.place, file.size) for file in listed] == [
            (file.place, file.size) for file in here.files(suffix, under)
        ]
        assert listed
    asked: list[str] = []
    monkeypatch.setattr(Storage, "ends", lambda *_: asked.append("a file"))
    monkeypatch.setattr(segments, "storage", lambda *_: there)
    assert len(find(None, [str(tmp_path)])) == 12
    assert not asked
