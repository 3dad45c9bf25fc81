"""What costs most, of a broker that runs: the lists agree with what clients did, and stay small."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from typing import Any

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core.hooks import PublishSampler
from canopy_mqtt.observe import top as module
from canopy_mqtt.observe.figures import catalogue
from canopy_mqtt.observe.sampling.sampler import Sampler
from canopy_mqtt.observe.top import WINDOWS, By, NoSuchList, Of, Top
from tests.e2e.wire import Peer
from tests.support.runs import for_each


@pytest.fixture(autouse=True)
def every_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test counts by the hour what a broker counts by the second."""
    monkeypatch.setattr(module, "SAMPLES", 100_000)


def broker(**top: Any) -> Broker:
    return Broker(
        Settings.model_validate(
            {
                "listen": ("mqtt://127.0.0.1:0",),
                "shutdown": {"flush_timeout": 0.0},
                "sys": {"interval": 0.0},
                "top": top,
            }
        )
    )


def shares(found: module.TopList) -> dict[str, float]:
    """Each place's part of all."""
    return {place.name: place.value / found.total for place in found.places}


async def test_the_lists_agree_with_what_clients_did() -> None:
    async with broker() as served:
        port = served.ports[0]
        listener = await Peer.join(port, "listener")
        await listener.subscribe("plant/#")
        one, two = await Peer.join(port, "one"), await Peer.join(port, "two")
        for number in range(12):
            await one.publish(f"plant/a/{number % 3}", b"x" * 10, qos=1)
        for _ in range(4):
            await two.publish("plant/b", b"x" * 1_000, qos=1)
        top = served.top
        assert shares(top.list("publishers", "messages")) == pytest.approx({"one": 0.75, "two": 0.25})
        assert shares(top.list("topics", "messages")) == pytest.approx(
            {"plant/a/0": 0.25, "plant/a/1": 0.25, "plant/a/2": 0.25, "plant/b": 0.25}
        )
        assert shares(top.list("prefixes", "messages")) == pytest.approx({"plant/#": 1.0, "plant/a/#": 0.75})
        # Of three prefixes that say the same the longest is told, in a list of one as well.
        await one.publish("deep/er/and/deeper", b"x" * 5_000, qos=1)
        assert list(shares(top.list("prefixes", "bytes", None, 1))) == ["deep/er/and/#"]
        assert next(iter(shares(top.list("topics", "bytes")))) == "deep/er/and/deeper"
        everything = top.list("topics", "messages")
        assert everything.gap == 1
        assert all(place.error == place.deviation == 0.0 for place in everything.places)
        assert [place.name for place in top.list("publishers", "messages", None, 1).places] == ["one"]
        walked = _walked_anew(top)
        assert shares(walked) == pytest.approx({"listener": 1.0})
        assert walked.total * walked.seconds == pytest.approx(16)
        for peer in (listener, one, two):
            peer.abort()


def _walked_anew(top: Top) -> module.TopList:
    """The messages of subscribers, after a walk in one turn."""
    top._due = 0.0
    timer = top._timer
    assert timer is not None
    timer.cancel()
    top._beat()
    return top.list("subscribers", "messages")


async def test_a_walk_goes_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 1)
    async with broker() as served:
        peers = [await Peer.join(served.ports[0], f"c{number}") for number in range(3)]
        top = served.top
        assert _walked_anew(top).places == []
        turns = 0
        while top._walked is None:
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 2
        for peer in peers:
            peer.abort()


async def test_what_breaks_in_a_beat_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SubscriberWalk", None)
    async with broker() as served:
        top = served.top
        _walked_anew(top)
        assert served.faults.counts["top"] == 1
        monkeypatch.undo()
        _walked_anew(top)
        assert served.faults.counts["top"] == 1
        assert top._walked is not None


async def test_switched_off_nothing_is_counted() -> None:
    async with broker(counters=0) as served:
        assert type(served.router.sampler) is PublishSampler
        assert served.top._timer is None
        with pytest.raises(NoSuchList, match=r"top\.counters"):
            served.top.list("topics", "messages")
        assert list(served.top.all(3)) == []


@pytest.mark.parametrize(
    ("of", "by", "window"), [("topics", "lag", None), ("publishers", "drops", None), ("topics", "messages", 61.0)]
)
async def test_what_is_not_counted(of: Of, by: By, window: float | None) -> None:
    async with broker() as served:
        with pytest.raises(NoSuchList):
            served.top.list(of, by, window)
        assert served.top.list("topics", "messages", 3_600.0).seconds == 3_600.0


async def test_sys_has_the_first_places() -> None:
    async with broker() as served:
        one = await Peer.join(served.ports[0], "one")
        for topic in ("a/1", "a/1", "a/1", "a/1", "a/2", "a/2", "a/2", "a/3", "a/3", "a/4"):
            await one.publish(topic, b"x", qos=1)
        topics = dict(sys_topics(served))
        told = json.loads(topics["top/topics/messages"])
        assert [place["name"] for place in told] == ["a/1", "a/2", "a/3"]
        assert told[0]["value"] == pytest.approx(4 / 3 * told[1]["value"], rel=0.01)
        assert json.loads(topics["top/publishers/bytes"])[0]["name"] == "one"
        one.abort()
    async with broker(counters=0) as served:
        assert [topic for topic, _ in sys_topics(served) if topic.startswith("top/")] == []


def sys_topics(served: Broker) -> list[tuple[str, str]]:
    return list(catalogue.topics(served.figures.read()))


@for_each("counters", [16, 256])
def test_full_lists_of_the_longest_names_take_so_many_bytes_and_no_more(counters: int) -> None:
    tracemalloc.start()
    try:
        sampler = Sampler(WINDOWS, counters, 100_000, iter(()).__next__, 0.0)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for number in range(3 * counters):
            topic = b"%07d/%s/%s/%s" % (number, b"a" * 300, b"b" * 300, b"c" * 60_000)
            sampler._add(1.0, 0.0, 60_000, topic, b"%0300d" % number)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    lists = 2 * 3 * len(WINDOWS)
    assert after - before < counters * lists * 650


@for_each(
    ("given", "told"),
    [
        # All below one longer prefix: the longer one alone says it.
        ([("a/#", 10.0), ("a/b/#", 10.0), ("a/b/c/#", 9.5)], ["a/b/c/#"]),
        ([("a/#", 10.0), ("a/b/#", 6.0), ("a/c/#", 4.0)], ["a/#", "a/b/#", "a/c/#"]),
        ([("/#", 3.0), ("a/#", 2.0), ("/a/#", 1.0)], ["/#", "a/#", "/a/#"]),
    ],
)
def test_a_prefix_is_told_where_it_says_more_than_a_longer_one(given: list[tuple[str, float]], told: list[str]) -> None:
    places = [module.TopEntry(name, value) for name, value in given]
    assert [place.name for place in module._without_duplicates(places)] == told
