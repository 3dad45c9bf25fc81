"""The oracle agrees with a broker that is right, and names each thing that another one does wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from canopy_mqtt.words import counted
from canopy_pipeline.cli import app
from canopy_pipeline.errors import PipelineError
from canopy_pipeline.matching import matches as matched
from canopy_pipeline.oracle import agreement
from canopy_pipeline.oracle.differ import DIFFERENCES
from canopy_pipeline.oracle.oracle_job import judged, run
from canopy_pipeline.oracle.oracle_outcome import OracleOutcome
from canopy_pipeline.record.events_schema import EVENTS
from tests.pipeline.oracle.toy import FAULTS, Difference, Toy, matches
from tests.pipeline.recorded import Story, write_segment

# Many small Spark jobs: seconds on an idle machine, and not on one where others compile.
pytestmark = pytest.mark.timeout(400)

RUNS = 12


def table(spark: SparkSession, stories: Iterable[Story], folder: Path | None = None) -> DataFrame:
    """Their events; by files in a folder, which any engine reads."""
    if folder is not None:
        files = [
            write_segment(folder / str(number), story.events, manifest=False) for number, story in enumerate(stories)
        ]
        return spark.read.schema(EVENTS.ddl).parquet(*map(str, files))
    rows = [tuple(event.get(name) for name in EVENTS) for story in stories for event in story.events]
    return spark.createDataFrame(rows, EVENTS.ddl)


def findings(found: DataFrame) -> list[Difference]:
    named = found.select("outcome", "run_id", "seq", "client_id", "topic_filter", "why").collect()
    return [tuple(row) for row in named if row["outcome"] != "unjudged"]


def judge(
    spark: SparkSession, stories: list[Story] | list[Toy], folder: Path | None = None
) -> tuple[OracleOutcome, list[Difference]]:
    outcome, found = judged(table(spark, stories, folder))
    return outcome, findings(found)


def toys(first: str, faults: bool, steps: int = 120) -> list[Toy]:
    made = []
    for number in range(RUNS):
        toy = Toy(f"{first}{number:07x}", seed=number, first_seq=1, faults=faults)
        toy.live(steps)
        made.append(toy)
    return made


def test_filters_match_topics_as_the_specification_says(either: SparkSession) -> None:
    topics = ["a", "/", "/a", "a/", "a//b", "a/b", "a/b/c", "$SYS", "$SYS/a", "$SYS//a", "ä/\u00a0", "a/$b", "//"]
    topics.append("x" * 300)
    filters = ["#", "+", "+/+", "/+", "+/", "a/#", "a/+/#", "a/+", "a//#", "+/a/#", "$SYS/#", "$SYS/+", "+/b/+", "a/b"]
    filters += ["/#", "//", "+/+/+", "+/$b", "ä/+", "$SYS", "#x"[:1], "a", "/", "a/+/c", "+/#"]
    filters = sorted(set(filters))
    found = matched(
        either.createDataFrame([(each,) for each in topics], "topic string"),
        either.createDataFrame([(each,) for each in filters], "filter string"),
    )
    wanted = [(topic, each) for topic in topics for each in filters if matches(each, topic)]
    assert sorted(tuple(row) for row in found.collect()) == sorted(wanted)
    # Two of the specification's own examples, lest both be wrong in the same way.
    assert matches("sport/#", "sport")
    assert not matches("+/monitor/Clients", "$SYS/monitor/Clients")


def hole() -> Story:
    """A segment was taken away, and with it a subscription: nothing that comes after it can be judged."""
    story = small("ffffffff")
    story.seq = 70_000
    story.deliver("unknown", story.publish("p", "a"))
    story.publish("p", "a")
    story.add("connect", client_id="x", protocol=5)
    return story


def test_every_fault_is_found_and_named_and_nothing_else(
    duck: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that most of a record is found to agree, and some of it is not looked at closely.
    monkeypatch.setattr(agreement, "BLOCK", 8)
    monkeypatch.setattr(agreement, "SPANS", 2)
    right = toys("a", faults=False)
    wrong = toys("c", faults=True)
    torn = toys("d", faults=True)
    all_lies = [lie for toy in (*wrong, *torn) for lie in toy.lies]
    # Each kind of fault took place, and more than once.
    whys = Counter((outcome, why, client is None) for outcome, _, _, client, _, why in all_lies)
    assert len(whys) >= 8
    assert min(whys.values()) > 1
    assert len(FAULTS) == 12

    clear: list[Difference] = [lie for toy in wrong for lie in toy.lies]
    perhaps: list[Difference] = []
    for toy in torn:
        publishes = [event["seq"] for event in toy.events if event["kind"] == "publish"]
        ends = dict(zip(publishes, [*publishes[1:], toy.events[-1]["seq"]], strict=True))
        lost = [toy.lose(at, length) for at, length in ((60, 1 + toy.random.randrange(30)), (110, 3))]
        state = [event["from_seq"] for event in toy.events if event.get("reason") == "queue-full+state"]
        for lie in toy.lies:
            p = lie[2]
            until = ends.get(p, p + 2)
            touched = any(first <= until and p <= last for first, last in lost) or (state and p >= state[0])
            (perhaps if touched else clear).append(lie)
    # The broker was killed: the news of it is the next run's first event, and subscriptions begin anew.
    first = Toy("e0000001", seed=99)
    first.live(60)
    second = Toy("e0000002", seed=100, first_seq=first.seq + 41)
    second.gap(first.seq, first.seq + 40, "crash+state")
    second.live(60)
    right += [first, second]
    outcome, found = judge(duck, [*right, *wrong, *torn, hole()], tmp_path)
    assert Counter(found) - Counter(perhaps) == Counter(clear)
    assert outcome.verdict == "disagrees"
    assert outcome.unjudged > 0
    assert outcome.runs == 3 * RUNS + 3
    assert outcome.gaps == 2 * RUNS + 1
    cut = sum(any(event.get("reason") == "queue-full+state" for event in toy.events) for toy in torn) + 1
    assert outcome.notes == [f"Judged up to a gap after which subscriptions are not known: {counted(cut, 'run')}."]
    assert outcome.expected >= sum(toy.expected for toy in (*right, *wrong))
    assert outcome.missing + outcome.unexpected + outcome.wrong == len(found)
    kinds = Counter(event["kind"] for toy in (*right, *wrong, *torn, hole()) for event in toy.events)
    assert (outcome.publishes, outcome.delivered) == (kinds["publish"], kinds["deliver"])


@pytest.mark.long
def test_where_all_sessions_got_what_they_should_no_copy_is_compared(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story("0a1b2c3d")
    story.subscribe("s", "a", qos=1)
    for _ in range(3):
        story.deliver("s", story.publish("p", "a", qos=1), 1)
    story.add("connect", client_id="x", protocol=5)
    for name in ("for_sessions", "for_groups"):
        monkeypatch.delattr(f"canopy_pipeline.oracle.expect.{name}")
    outcome, found = judge(spark, [story])
    assert (outcome.verdict, outcome.expected, outcome.judged, found) == ("agrees", 3, 3, [])


def small(run_id: str = "0a1b2c3d", deliveries: bool = True, first_seq: int = 1) -> Story:
    story = Story(run_id, first_seq)
    story.subscribe("s", "a", qos=1)
    p = story.publish("p", "a", qos=1)
    if deliveries:
        story.deliver("s", p, 1)
    story.add("connect", client_id="x", protocol=5)
    return story


def swapped() -> Story:
    """As many copies as there should be: two for one client, and none for the other."""
    story = Story("0a1b2c3d")
    for client in "ab":
        story.subscribe(client, "t")
    at = story.publish("p", "t")
    story.deliver("a", at)
    story.deliver("a", at)
    return story


def crossed() -> Story:
    """Each of two clients gets as many copies as it should, but of the other's message."""
    story = Story("0a1b2c3d")
    for client in "ab":
        story.subscribe(client, f"t/{client}")
    one, other = story.publish("p", "t/a"), story.publish("p", "t/b")
    story.deliver("a", other)
    story.deliver("b", one)
    return story


@pytest.mark.parametrize(("tell", "faults"), [(swapped, (1, 0, 1)), (crossed, (2, 2, 0))])
def test_right_numbers_of_wrong_copies_are_no_agreement(
    duck: SparkSession, tell: Callable[[], Story], faults: tuple[int, int, int], tmp_path: Path
) -> None:
    story = tell()
    story.add("connect", client_id="x", protocol=5)
    outcome, _ = judge(duck, [story], tmp_path)
    assert (outcome.missing, outcome.unexpected, outcome.wrong) == faults


@pytest.mark.parametrize(
    ("story", "error"),
    [
        (small(deliveries=False), r"deliveries = true"),
        (small(first_seq=7), r"no publish can be judged: Not judged, since the beginning is not among"),
    ],
)
def test_what_cannot_be_judged_is_said_in_one_line(
    duck: SparkSession, story: Story, error: str, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match=error):
        judge(duck, [story], tmp_path)


def test_what_is_before_a_hole_is_judged_and_the_publish_at_its_edge_is_not(duck: SparkSession, tmp_path: Path) -> None:
    story = small()
    lost = story.publish("p", "a", qos=1)
    story.deliver("s", story.publish("p", "a", qos=1), 1)
    # Its delivery may be what was lost.
    story.publish("p", "a", qos=1)
    story.seq += 5
    story.deliver("unknown", story.publish("p", "a"))
    story.gap(story.seq, story.seq + 9, "queue-full")
    story.add("connect", client_id="x", protocol=5)
    outcome, found = judge(duck, [story], tmp_path)
    assert [(outcome, seq, why) for outcome, _, seq, _, _, why in found] == [
        ("missing", lost, "no deliver and no drop")
    ]
    assert (outcome.publishes, outcome.judged, outcome.unjudged) == (5, 4, 2)
    assert outcome.notes == ["Judged up to a gap after which subscriptions are not known: 1 run."]


def test_the_command_says_what_it_found_and_ends_with_1(tmp_path: Path) -> None:
    right, wrong = small("00000001"), small("00000002")
    wrong.publish("p", "a")
    wrong.deliver("elsewhere", wrong.publish("p", "b"))
    wrong.add("connect", client_id="x", protocol=5)
    source, output = tmp_path / "in", tmp_path / "out"
    right.write(source)
    wrong.write(source)

    def command() -> Any:
        return CliRunner().invoke(app, ["oracle", "--input", str(source), "--output", str(output)])

    said = command()
    assert said.exit_code == 1, said.output
    assert "1 missing, 1 unexpected, 0 wrong" in said.output
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["verdict"], summary["expected"], summary["runs"]) == ("disagrees", 3, 2)
    page = (output / "index.html").read_text()
    assert "elsewhere" in page
    assert "no deliver and no drop" in page
    assert pq.read_table(output / "wrong").schema.names == [*DIFFERENCES]
    missing = pq.read_table(output / "missing").to_pylist()
    assert [(row["topic"], row["client_id"], row["topic_filter"]) for row in missing] == [("a", "s", "a")]


def snapshot(toy: Toy) -> int:
    """All subscriptions, told again."""
    begun = toy.seq
    for (client, topic_filter), granted in toy.held.items():
        toy.subscribe(client, topic_filter, granted.qos, granted.no_local, reason="snapshot")
    return toy.add("snapshot", ref_seq=begun, n=len(toy.held))


def test_a_record_whose_beginning_is_gone_is_judged_from_a_snapshot_on(duck: SparkSession, tmp_path: Path) -> None:
    toy = Toy("0a0b0c0d", seed=3, faults=True)
    toy.live(120)
    begun = toy.seq
    known = snapshot(toy)
    toy.live(240)
    del toy.events[: begun // 2]
    later = [lie for lie in toy.lies if lie[2] > known]
    assert len(later) > 3
    assert len(later) < len(toy.lies)
    outcome, found = judge(duck, [toy], tmp_path / "whole")
    assert Counter(found) == Counter(later)
    assert outcome.notes == ["Judged from a snapshot of the subscriptions on: 1 run."]
    # One in whose midst subscriptions were lost tells nothing.
    toy.events = [event for event in toy.events if event["seq"] != begun]
    toy.events.append({**toy.events[-1], "kind": "gap", "seq": toy.seq, "from_seq": begun, "to_seq": begun, "n": 1,
                       "reason": "queue-full+state"})  # fmt: skip
    with pytest.raises(PipelineError, match="the beginning is not among the segments"):
        judge(duck, [toy], tmp_path / "lost")


def test_a_time_is_judged_by_what_was_told_before_it(duck: SparkSession, tmp_path: Path) -> None:
    toy = Toy("0a0b0c0d", seed=3, faults=True)
    read = []
    # Each part in a segment of its own; the time that is asked for begins with the sixth.
    for part in range(8):
        if part == 5:
            after = toy.seq
            since = f"{toy.now:%Y-%m-%dT%H:%M:%S}"
        if part in (1, 3):
            snapshot(toy)
        toy.live(60)
        read.append(write_segment(tmp_path / "recorded", toy.events))
        written, toy.events = toy.events, []
        toy.pause(600)
    later = [lie for lie in toy.lies if lie[2] >= after]
    assert len(later) > 3
    # What is not needed is gone: the parts before the last snapshot but one.
    read[0].write_bytes(b"")
    outcome = run(duck, [str(tmp_path / "recorded")], str(tmp_path / "out"), since=since)
    found = [pq.read_table(tmp_path / "out" / name) for name in ("missing", "unexpected", "wrong")]
    assert sorted(seq for table in found for seq in table["seq"].to_pylist()) == sorted(lie[2] for lie in later)
    publishes = [event["seq"] for event in written if event["kind"] == "publish"]
    assert outcome.judged == outcome.publishes > len(publishes)
    assert outcome.notes == []
    assert outcome.coverage.complete
