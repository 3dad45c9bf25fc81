"""A block is doubtful exactly where a session did not get what it should, or nobody can tell so cheaply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from pyspark.sql import SparkSession

from pipeline.oracle import agreement, expect, spans
from pipeline.record.schema import EVENTS
from tests.pipeline.recorded import Story

Tell = Callable[[Story], object]


def right(story: Story) -> None:
    """What may happen, and is told as it should be."""
    story.subscribe("x", "a/#", qos=1)
    story.subscribe("x", "a/+", qos=2)
    story.subscribe("y", "a/b", qos=0)
    # Two filters of one session: the higher QoS counts, once.
    first = story.publish("p", "a/b", qos=2)
    story.deliver("x", first, 2)
    story.deliver("y", first, 0)
    story.subscribe("y", "a/b", qos=1, no_local=True)
    second = story.publish("y", "a/b", qos=2)
    story.deliver("x", second, 2)
    story.unsubscribe("x", "a/+")
    third = story.publish(None, "a/b", qos=2)
    story.deliver("x", third, 1)
    story.deliver("y", third, 1)
    story.publish("p", "c")


def swapped(story: Story) -> None:
    """As many copies as there should be: two for one, and none for the other."""
    for client in "ab":
        story.subscribe(client, "t")
    at = story.publish("p", "t")
    story.deliver("a", at)
    story.deliver("a", at)


def crossed(story: Story) -> None:
    """Each of two clients gets as many as it should, but of one publish both."""
    for client in "ab":
        story.subscribe(client, f"t/{client}")
    one, other = story.publish("p", "t/a"), story.publish("p", "t/b")
    story.deliver("a", other)
    story.deliver("b", one)


def lost(story: Story) -> None:
    story.subscribe("a", "t")
    story.publish("p", "t")


def beyond(story: Story) -> None:
    story.subscribe("a", "t")
    story.unsubscribe("a", "t")
    story.deliver("a", story.publish("p", "t"))


def own(story: Story) -> None:
    story.subscribe("a", "t", no_local=True)
    story.deliver("a", story.publish("a", "t"))


def qos(story: Story) -> None:
    story.subscribe("a", "t", qos=1)
    story.deliver("a", story.publish("p", "t", qos=2), 2)


def dropped(story: Story) -> None:
    """It says so itself; whether that copy was due is then looked at."""
    story.subscribe("a", "t")
    story.drop("a", "full-bytes", ref_seq=story.publish("p", "t"))


def often(story: Story) -> None:
    """More spans than are looked at here."""
    for _ in range(agreement.SPANS + 1):
        story.subscribe("a", "t")
    story.deliver("a", story.publish("p", "t"))


def shared(story: Story) -> None:
    """Of share groups nothing is said here."""
    story.subscribe("a", "$share/g/t")
    story.deliver("a", story.publish("p", "t"), 0, "$share/g/t")
    story.publish("p", "t")


WELL: Final[tuple[Tell, ...]] = (right, shared)
ILL: Final[tuple[Tell, ...]] = (swapped, crossed, lost, beyond, own, qos, dropped, often)


def doubtful(spark: SparkSession, stories: list[Story]) -> set[tuple[str, int]]:
    rows = [tuple(event.get(name) for name in EVENTS) for story in stories for event in story.events]
    table = spark.createDataFrame(rows, EVENTS.ddl)
    runs = [(story.run_id, 0, story.seq, story.seq - 1) for story in stories]
    known = spark.createDataFrame(runs, "run_id string, known_from long, known_until long, last_seq long")
    published, receipts = expect.publishes(table, known), expect.receipts(table, known)
    all_spans = spans.spans(table, known).localCheckpoint()
    heard = agreement.audience(expect.matching(published, all_spans), spans.ordinary(all_spans))
    return {(row["run_id"], row["block"]) for row in agreement.doubtful(published, receipts, heard).collect()}


def test_faults_and_what_nobody_can_tell_cheaply_are_doubtful_and_nothing_else(spark: SparkSession) -> None:
    stories = []
    for tell in (*WELL, *ILL):
        story = Story(tell.__name__)
        tell(story)
        stories.append(story)
    assert {run for run, _ in doubtful(spark, stories)} == {tell.__name__ for tell in ILL}


def test_only_the_block_of_the_publish_is_doubtful(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "BLOCK", 8)
    story = Story("0a1b2c3d")
    story.subscribe("a", "t")
    for number in range(30):
        at = story.publish("p", "t")
        if number != 17:
            story.deliver("a", at)
        else:
            missed = at
    assert doubtful(spark, [story]) == {("0a1b2c3d", missed // 8)}
