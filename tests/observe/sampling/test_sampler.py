"""The sample of what is published: exact while little comes in, right on average when much does, bounded always."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.codec.encoder import encode
from canopy_mqtt.core.codec.packets import V5, V311, Publish
from canopy_mqtt.core.hooks import NO_SAMPLE, SAMPLE_SHARE, PublishSampler
from canopy_mqtt.observe.sampling.sampler import (
    BYTES,
    CERTAIN_GAPS,
    MESSAGES,
    PREFIXES,
    PUBLISHERS,
    TOPICS,
    Sampler,
    Window,
)
from tests.core.harness import Network, limits
from tests.support.runs import for_each


def frame(topic: str, size: int) -> bytes:
    return encode(Publish(topic.encode(), bytes(size)), 4)


def started(rate: int = 1_000_000, most: int = 64, seed: int = 1, windows: tuple[float, ...] = (60.0,)) -> Sampler:
    return Sampler(windows, most, rate, Random(seed).random, 0.0)


def sampling(network: Network) -> Sampler:
    """A sampler that sees what the clients of a network publish."""
    sampler = started()
    network.router.sampler = sampler
    return sampler


def feed(sampler: Sampler, *frames: bytes, publisher: str = "p") -> None:
    """What the handler of a PUBLISH does, or of a run of them."""
    data = b"".join(frames)
    sampler.until -= len(data) + SAMPLE_SHARE * len(frames)
    if sampler.until < 0:
        sampler.take(data, 0, len(data), len(frames), b"", b"", publisher)


def counts(window: Window, measure: int, kind: int) -> dict[bytes, float]:
    return {each.name: each.count for each in window.counted[measure][kind].heaviest(1_000)}


def test_while_little_comes_in_everything_is_counted_exactly() -> None:
    sampler = started()
    for _ in range(3):
        feed(sampler, frame("a/b/c/d/e", 10), frame("a/x", 20), publisher="one")
    feed(sampler, frame("plain", 30), publisher="two")
    window = sampler.windows[0]
    assert counts(window, MESSAGES, TOPICS) == {b"a/b/c/d/e": 3, b"a/x": 3, b"plain": 1}
    assert counts(window, MESSAGES, PREFIXES) == {b"a/": 6, b"a/b/": 3, b"a/b/c/": 3}
    assert counts(window, MESSAGES, PUBLISHERS) == {b"one": 6, b"two": 1}
    assert counts(window, BYTES, TOPICS)[b"plain"] == len(frame("plain", 30))
    assert all(each.variance == 0.0 for each in window.counted[BYTES][TOPICS].heaviest(9))
    assert sampler.sampled == 7


@pytest.mark.crowd
@pytest.mark.parametrize("gap", [2, 700, 5_000])
@pytest.mark.parametrize("together", [1, 7])
def test_the_estimates_are_right_on_average(gap: int, together: int) -> None:
    """Small messages beside large ones, in runs and alone, over many seeded samples: within four standard errors."""
    frames = [frame("small", 5)] * 30 + [frame("middle", 900)] * 6 + [frame("large", 40_000)]
    true = {
        (measure, topic): float(sum(1 if measure == MESSAGES else len(each) for each in frames if topic in each))
        for measure in (MESSAGES, BYTES)
        for topic in (b"small", b"middle", b"large")
    }
    samples = 300
    sums = dict.fromkeys(true, 0.0)
    squares = dict.fromkeys(true, 0.0)
    told = dict.fromkeys(true, 0.0)
    for seed in range(samples):
        sampler = started(seed=seed)
        sampler.gap = gap
        sampler.skip()
        for at in range(0, len(frames), together):
            feed(sampler, *frames[at : at + together])
        for measure in (MESSAGES, BYTES):
            for each in sampler.windows[0].counted[measure][TOPICS].heaviest(9):
                sums[measure, each.name] += each.count
                squares[measure, each.name] += each.count**2
                told[measure, each.name] += each.variance
    for key, value in true.items():
        mean = sums[key] / samples
        variance = squares[key] / samples - mean**2
        assert abs(mean - value) <= 4 * (variance / samples) ** 0.5 + 1e-6 * value
        # What is told of the error is about what it is.
        assert told[key] / samples == pytest.approx(variance, rel=0.5, abs=1e-6 * value**2)


def test_messages_in_a_fixed_order_hide_nowhere() -> None:
    """One topic in each k-th place: a sample of each so-many-th message would miss it or see nothing else."""
    for period in (2, 16, 64, 100):
        sampler = started(seed=period)
        sampler.gap = 20_000
        sampler.skip()
        for number in range(period * 400):
            feed(sampler, frame("rare" if number % period == 0 else "often", 30))
        seen = counts(sampler.windows[0], MESSAGES, TOPICS).get(b"rare", 0.0)
        assert seen == pytest.approx(400, abs=400)


def test_a_flood_makes_the_sample_sparser_and_calm_makes_it_dense_again() -> None:
    sampler = started(rate=50)
    message = frame("t", 20)
    for _ in range(200_000):
        feed(sampler, message)
    # 50 at each gap, of which there were as many as it takes.
    assert sampler.gap > 1
    steps = 0
    while 4**steps < sampler.gap:
        steps += 1
    assert sampler.sampled <= 50 * (steps + 1)
    assert counts(sampler.windows[0], MESSAGES, TOPICS)[b"t"] == pytest.approx(200_000, rel=0.5)
    for _ in range(60):
        sampler.renew()
    assert sampler.gap == 1
    before = sampler.sampled
    feed(sampler, message)
    assert sampler.sampled == before + 1


@pytest.mark.crowd
def test_under_a_steady_load_a_second_has_about_as_many_as_it_may() -> None:
    sampler = started(rate=100)
    taken = []
    for _ in range(40):
        before = sampler.sampled
        for _ in range(5_000):
            feed(sampler, frame("t", 20))
        sampler.renew()
        taken.append(sampler.sampled - before)
    assert max(taken[20:]) <= 200
    assert sum(taken[20:]) >= 20 * 100 // 8


def test_of_a_very_long_message_the_work_is_that_of_a_short_one() -> None:
    drawn = 0

    def random() -> float:
        nonlocal drawn
        drawn += 1
        return 0.5

    sampler = Sampler((60.0,), 8, 1_000, random, 0.0)
    sampler.gap = 2
    sampler.skip()
    feed(sampler, frame("t", 1_000_000))
    assert counts(sampler.windows[0], MESSAGES, TOPICS) == {b"t": 1.0}
    assert drawn <= CERTAIN_GAPS


def test_a_window_forgets_and_tells_a_rate() -> None:
    sampler = started(windows=(60.0, 3_600.0))
    now = 0.0
    for _ in range(600):
        for _ in range(10):
            feed(sampler, frame("t", 20))
        now += 1.0
        sampler.pass_time(now)
    for window in sampler.windows:
        rate = counts(window, MESSAGES, TOPICS)[b"t"] / window.span
        assert rate == pytest.approx(10, rel=0.02)
    sampler.pass_time(now + 600)
    minute, hour = sampler.windows
    assert counts(minute, MESSAGES, TOPICS)[b"t"] / minute.span < 0.001
    assert counts(hour, MESSAGES, TOPICS)[b"t"] / hour.span > 1.0


def test_a_sampler_sees_what_is_published_while_it_is_in_place() -> None:
    network = Network(limits())
    publisher = network.client("p")
    nothing = network.router.sampler

    def publish() -> None:
        publisher.publish("t", b"x")
        network.settle()

    publish()
    assert NO_SAMPLE // 2 < nothing.until < NO_SAMPLE
    sampler = sampling(network)
    publish()
    assert counts(sampler.windows[0], MESSAGES, TOPICS) == {b"t": 1.0}
    network.router.sampler = PublishSampler()
    publish()
    assert sampler.sampled == 1


@for_each("version", [V311, V5])
@for_each("listeners", [0, 1, 2])
@for_each("qos", [0, 1, 2])
def test_it_sees_what_a_connection_published(version: int, listeners: int, qos: int) -> None:
    """In all ways that a PUBLISH takes: alone, in bursts, of one topic and of several, with properties, retained."""
    network = Network(limits())
    for number in range(listeners):
        network.client(f"s{number}", version).subscribe("a/#", qos=qos)
    publisher = network.client("p", version)
    sampler = sampling(network)
    sent = {b"a/one": 40, b"a/two": 21, b"b": 3}
    for topic, count in sent.items():
        for number in range(count):
            publisher.post(topic.decode(), b"payload" + bytes(number % 3), qos=qos)
    publisher.post("a/one", b"kept", qos=qos, retain=True)
    network.settle()
    window = sampler.windows[0]
    assert counts(window, MESSAGES, TOPICS) == {**sent, b"a/one": 41}
    assert counts(window, MESSAGES, PREFIXES) == {b"a/": 62}
    assert counts(window, MESSAGES, PUBLISHERS) == {b"p": 65}
    assert counts(window, BYTES, PUBLISHERS)[b"p"] > 65 * 7


MESSAGE = st.tuples(
    st.integers(0, 2),
    st.sampled_from(["a", "a/b", "a/b/c/d/e", "c"]),
    st.integers(0, 2),
    st.sampled_from([0, 1, 300]),
    st.booleans(),
)


@given(st.lists(st.tuples(MESSAGE, st.integers(1, 5)), max_size=30), st.sampled_from([0, 1, 37]), st.booleans())
def test_what_is_counted_agrees_with_what_was_published(
    steps: list[tuple[tuple[int, str, int, int, bool], int]], pace: int, listened: bool
) -> None:
    """Whatever comes together in a read, and however a read breaks it."""
    network = Network(limits(), pace)
    clients = [network.client(f"p{number}", version) for number, version in enumerate((V311, V5, V5))]
    if listened:
        network.client("s").subscribe("a/#", qos=1)
    sampler = sampling(network)
    topics: Counter[bytes] = Counter()
    publishers: Counter[bytes] = Counter()
    lengths: Counter[bytes] = Counter()
    for (number, topic, qos, size, retain), times in steps:
        client = clients[number]
        for _ in range(times):
            sent = client.post(topic, bytes(size), qos=qos, retain=retain)
            lengths[topic.encode()] += len(encode(sent, client.version))
        topics[topic.encode()] += times
        publishers[client.client_id.encode()] += times
    network.settle()
    window = sampler.windows[0]
    assert counts(window, MESSAGES, TOPICS) == topics
    assert counts(window, MESSAGES, PUBLISHERS) == publishers
    assert counts(window, BYTES, TOPICS) == lengths
    assert sampler.sampled == network.router.counters.messages_received


def test_an_alias_counts_for_the_topic_that_it_stands_for() -> None:
    network = Network(limits())
    publisher = network.client("p")
    sampler = sampling(network)
    publisher.post("a/long/topic", b"x", alias=1)
    publisher.send(Publish(b"", b"y", topic_alias=1))
    network.settle()
    assert counts(sampler.windows[0], MESSAGES, TOPICS) == {b"a/long/topic": 2.0}


def test_a_mounted_client_counts_under_the_broker_s_name_of_its_topics() -> None:
    network = Network(limits())
    publisher = network.mounted("p", V5, "tenant/")
    sampler = sampling(network)
    publisher.publish("t", b"x")
    network.settle()
    assert counts(sampler.windows[0], MESSAGES, TOPICS) == {b"tenant/t": 1.0}


def test_a_publish_that_ends_its_connection_breaks_nothing() -> None:
    network = Network(limits())
    publisher = network.client("p")
    sampler = sampling(network)
    publisher.judge.enabled = False
    publisher.raw(encode(Publish(b"t", b"x"), V5) + encode(Publish(b"t/#", b"x"), V5))
    assert publisher.closed
    assert counts(sampler.windows[0], MESSAGES, TOPICS) == {b"t": 1.0}
