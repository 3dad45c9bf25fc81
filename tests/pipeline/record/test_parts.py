"""The record of several workers for the jobs: one record, each folder with numbers and gaps of its own."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from canopy_pipeline.compact import compact_job
from canopy_pipeline.oracle import oracle_job
from canopy_pipeline.oracle.oracle_outcome import AGREES, DISAGREES, OracleOutcome
from canopy_pipeline.plan import plan_job
from canopy_pipeline.record.coverage import Coverage
from canopy_pipeline.record.segments import Choice, events
from canopy_pipeline.retention import retention_job
from canopy_pipeline.rollup import rollup_job
from tests.pipeline.folder import NOW, record, seen
from tests.pipeline.recorded import Story, write_segment

HOUR: Final = timedelta(hours=1)


def two_workers(root: Path, lost: str = "") -> Path:
    """A client of one worker publishes for one of the other, and for one of its own. `lost`: the kind of an event that
    is left out."""
    first, second = Story("0a0a0a0a"), Story("0b0b0b0b")
    second.subscribe("s1", "a/#", 1)
    first.subscribe("$node/w1", "a/#", 2)
    first.subscribe("s0", "a/b", 0)
    # The other worker wants it, too: what this one has brought does not go back.
    second.subscribe("$node/w0", "a/b", 2)
    published = first.publish("p", "a/b", qos=1)
    first.deliver("s0", published)
    if lost != "forward":
        first.add("forward", client_id="$node/w1", qos=1, ref_seq=published)
    came = second.add("arrive", client_id="$node/w0", topic="a/b", size=1, qos=1, retain=False)
    if lost != "deliver":
        second.deliver("s1", came, 1)
    for name, story in (("w0", first), ("w1", second)):
        for end in (None, None):
            # No publish is the last event, of which nobody knows whether all is there.
            story.add("connect", client_id="c", address="h:1", protocol=5, reason=end)
        write_segment(root / name, story.events)
    return root


def judge(duck: SparkSession, *roots: Path) -> OracleOutcome:
    return oracle_job.run(duck, [*map(str, roots)], str(roots[0].with_name("out")))


@pytest.mark.parametrize("several", [False, True])
def test_what_one_worker_published_was_delivered_at_the_other(
    duck: SparkSession, tmp_path: Path, several: bool
) -> None:
    """So it is of nodes, each of which records for itself: a list of records is as a directory of them."""
    root = two_workers(tmp_path / "record")
    outcome = judge(duck, *((root / "w0", root / "w1") if several else (root,)))
    assert outcome.verdict == AGREES
    assert (outcome.publishes, outcome.delivered, outcome.forwarded, outcome.expected) == (1, 2, 1, 3)
    assert outcome.notes == []
    assert outcome.coverage.complete


@pytest.mark.parametrize("lost", ["forward", "deliver"])
def test_what_is_lost_on_the_way_is_found(duck: SparkSession, tmp_path: Path, lost: str) -> None:
    outcome = judge(duck, two_workers(tmp_path / "record", lost))
    assert (outcome.verdict, outcome.missing, outcome.unexpected) == (DISAGREES, 1, 0)


def test_what_does_not_arrive_is_told(duck: SparkSession, tmp_path: Path) -> None:
    root = two_workers(tmp_path / "record")
    more = Story("0c0c0c0c")
    more.subscribe("$node/w1", "a/#", 2)
    more.add("forward", client_id="$node/w1", qos=0, ref_seq=more.publish("p", "a/x"))
    more.add("connect", client_id="c", address="h:1", protocol=5)
    write_segment(root / "w2", more.events)
    outcome = judge(duck, root)
    assert outcome.verdict == AGREES
    assert outcome.notes == ["Sent to another worker, and not arrived there as far as was recorded: 1 message."]


def test_share_groups_over_workers_are_not_judged(duck: SparkSession, tmp_path: Path) -> None:
    root = two_workers(tmp_path / "record")
    home = Story("0c0c0c0c")
    home.subscribe("$node/w1", "$node/w2/members/1/g/t", 2)
    home.subscribe("m", "$share/g/t", 1)
    for client in ("$node/w1", "m"):
        kind = "forward" if client.startswith("$") else "deliver"
        home.add(kind, client_id=client, qos=0, ref_seq=home.publish("p", "t"), topic_filter="$share/g/t")
    came = home.add("arrive", client_id="$node/w1", topic="t", size=1, qos=0, retain=False, topic_filter="$share/g/t")
    home.deliver("m", came, 0, "$share/g/t")
    home.add("connect", client_id="c", address="h:1", protocol=5)
    write_segment(root / "w2", home.events)
    outcome = judge(duck, root)
    assert (outcome.verdict, outcome.missing, outcome.unexpected, outcome.unjudged) == (AGREES, 0, 0, 3)
    assert outcome.notes == ["Not judged, since their members are at several workers: 3 deliveries of share groups."]


def test_the_broker_s_own_messages_may_stay_at_their_worker(duck: SparkSession, tmp_path: Path) -> None:
    root = two_workers(tmp_path / "record")
    own = Story("0c0c0c0c")
    own.subscribe("$node/w1", "#", 2)
    own.publish(None, "a/presence")
    own.add("forward", client_id="$node/w1", qos=0, ref_seq=own.publish(None, "a/b"))
    own.add("connect", client_id="c", address="h:1", protocol=5)
    write_segment(root / "w2", own.events)
    outcome = judge(duck, root)
    assert (outcome.verdict, outcome.missing, outcome.unexpected) == (AGREES, 0, 0)


def test_a_publish_is_counted_once(duck: SparkSession, tmp_path: Path) -> None:
    root = two_workers(tmp_path / "record")
    for inputs in ([root], [root / "w0", root / "w1"]):
        outcome = rollup_job.run(duck, [*map(str, inputs)], str(tmp_path / "out"))
        assert outcome.messages == 1


def test_each_folder_has_its_own_gaps(duck: SparkSession, tmp_path: Path) -> None:
    for name, numbers in (("w0", (1, 2)), ("w1", (1, 3))):
        story = Story(f"0000000{name[1]}")
        for seq in numbers:
            story.seq = seq
            story.publish("p", "a")
        write_segment(tmp_path / name, story.events)
    coverage = Coverage()
    assert events(duck, [str(tmp_path)], Choice(), coverage=coverage).count() == 4
    [finding] = coverage.findings
    assert finding.said.startswith(f"{tmp_path}/w1")
    assert finding.events == 1


def test_a_worker_that_has_no_segment_yet_is_no_fault(duck: SparkSession, tmp_path: Path) -> None:
    record(tmp_path / "w0", hours=1)
    (tmp_path / "w1" / "_manifests").mkdir(parents=True)
    coverage = Coverage()
    events(duck, [str(tmp_path)], Choice(), coverage=coverage)
    assert coverage.complete


def test_retention_keeps_the_newest_of_all_folders(tmp_path: Path) -> None:
    older = record(tmp_path, hours=2)
    newer = record(tmp_path / "w1", hours=3)
    newest = newer[8:]
    room = sum(path.stat().st_size for path in [*newest, older[-1]])
    outcome = retention_job.run(str(tmp_path), None, room, now=NOW)
    # The last one of each folder stays.
    assert [path for path in (*older, *newer) if path.exists()] == [older[-1], *newest]
    assert outcome.left == room
    assert [line.split(" removed ")[0] for line in outcome.lines(False)[-2:-1]] == ["w1:"]
    assert (tmp_path / "w1" / "_manifests" / "removed.jsonl").exists()


def test_small_segments_of_each_folder_are_merged(tmp_path: Path) -> None:
    before = {name: seen(tmp_path / name) for name in ("w0", "w1") if record(tmp_path / name, hours=1)}
    outcome = compact_job.run(str(tmp_path), HOUR, 1 << 20, HOUR, now=NOW)
    assert [place[:8] for place, _ in outcome.merged] == ["w0/date=", "w1/date="]
    assert {name: seen(tmp_path / name) for name in before} == before
    assert outcome.coverage.complete


def test_a_plan_is_for_the_clients_of_all_workers(duck: SparkSession, tmp_path: Path) -> None:
    root = two_workers(tmp_path / "record")
    plan_job.run(duck, [str(root)], str(tmp_path / "out"))
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert "$node" not in json.dumps(summary)
