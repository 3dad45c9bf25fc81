"""The catalogue: names, labels and topics, and that everything that rooms tell is in it once."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from canopy_mqtt import Broker, Settings
from canopy_mqtt.core import causes
from canopy_mqtt.core.causes import ALL
from canopy_mqtt.links.status import status
from canopy_mqtt.observe.figures import catalogue
from canopy_mqtt.observe.figures.broker import UPSTREAM
from canopy_mqtt.observe.figures.catalogue import FIGURES
from canopy_mqtt.observe.figures.figure import Kind
from canopy_mqtt.settings import Store, Sys, Upstream
from tests.e2e import wire
from tests.e2e.wire import Peer
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[3]
SELDOM = 86_400.0


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    settings = Settings(
        listen=("mqtt://127.0.0.1:0",),
        sys=Sys(interval=SELDOM),
        store=Store(path=str(tmp_path / "store")),
        upstream=(Upstream(name="up", url="mqtt://127.0.0.1:1"),),
    )
    async with Broker(settings) as running:
        yield running


def value(broker: Broker, name: str) -> dict[tuple[str, ...], Any]:
    """A figure as it is now, by its labels."""
    figure = next(each for each in FIGURES if each.name == name)
    return dict(figure.samples(broker.figures.read()))


def test_each_name_and_each_topic_is_there_once() -> None:
    names = [figure.metric for figure in FIGURES]
    assert len(set(names)) == len(names)
    topics = [topic.path for figure in FIGURES for topic in figure.topics]
    assert len(set(topics)) == len(topics)
    for figure in FIGURES:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", figure.metric), figure.metric
        assert figure.help
        assert not figure.help.endswith(".")
        assert figure.exported or figure.topics, figure.name
        for topic in figure.topics:
            assert set(re.findall(r"{(\w+)}", topic.path)) <= set(figure.labels)


async def test_no_topic_is_told_twice_and_each_is_of_a_figure(broker: Broker) -> None:
    told = [topic for topic, _ in catalogue.topics(broker.figures.read())]
    assert len(set(told)) == len(told)
    patterns = [
        re.compile(re.sub(r"\\{\w+\\}", ".+", re.escape(topic.path))) for figure in FIGURES for topic in figure.topics
    ]
    assert [topic for topic in told if not any(pattern.fullmatch(topic) for pattern in patterns)] == []


async def test_all_that_a_link_tells_is_there(broker: Broker) -> None:
    assert broker.links is not None
    told = [topic for topic, _ in status(broker.links.links["up"])]
    assert [topic.path.removeprefix("upstream/{name}/") for figure in UPSTREAM for topic in figure.topics] == told
    assert value(broker, "upstream_up") == {("up",): 0}


async def test_all_that_the_store_tells_is_there(broker: Broker) -> None:
    assert value(broker, "store_other") == {}
    assert value(broker, "store_failing") == {(): 0}


async def test_publishes_by_qos_packets_and_bytes(broker: Broker) -> None:
    """What came and what was sent, exactly, as the test's own client counts it."""
    peer = await Peer.join(broker.ports[0], "c")
    await peer.subscribe(("t/#", 2))
    sizes = 0
    for qos, packet_id in ((0, 0), (1, 1), (1, 2), (2, 3)):
        frame = wire.publish("t/x", b"payload", qos=qos, packet_id=packet_id)
        sizes += len(frame)
        await peer.send(frame)
    await until(lambda: value(broker, "messages_received") == {("0",): 1, ("1",): 2, ("2",): 1})
    await until(lambda: value(broker, "messages_sent") == {("0",): 1, ("1",): 2, ("2",): 1})
    counters = broker.router.counters
    # The same frames but for the identifiers, which have two bytes whatever they are.
    assert counters.publish_bytes_received == sizes
    await until(lambda: counters.publish_bytes_sent == sizes)
    # CONNECT, SUBSCRIBE and four PUBLISHes came; CONNACK, SUBACK, two PUBACKs, a PUBREC and the PUBLISHes went.
    assert value(broker, "packets_received") == {(): 6}
    await until(lambda: value(broker, "packets_sent") == {(): 9})
    assert value(broker, "connects") == {(): 1}
    peer.abort()


def test_all_causes_of_an_end_are_counted_apart() -> None:
    assert sorted(ALL) == sorted(
        value for name, value in vars(causes).items() if name.isupper() and isinstance(value, str)
    )


async def test_why_connections_ended(broker: Broker) -> None:
    assert value(broker, "connections_closed") == {(cause,): 0 for cause in ALL}
    peer = await Peer.join(broker.ports[0], "c")
    await peer.disconnect()
    await until(lambda: value(broker, "connections_closed")[("client-disconnect",)] == 1)


async def test_commits_are_timed(broker: Broker) -> None:
    assert broker.store is not None
    times = broker.store.commit_times
    assert times is not None
    before = times.count
    peer = await Peer.join(broker.ports[0], "c", clean=False, props=((wire.SESSION_EXPIRY, 100),))
    await until(lambda: times.count > before)
    peer.abort()


def test_what_sapccs_exporter_of_mosquitto_reads_is_there() -> None:
    """The topics of github.com/sapcc/mosquitto-exporter (main.go), but for build time stamps, which it ignores."""
    wanted = {
        "bytes/received",
        "bytes/sent",
        "messages/received",
        "messages/sent",
        "publish/bytes/received",
        "publish/bytes/sent",
        "publish/messages/received",
        "publish/messages/sent",
        "publish/messages/dropped",
        "uptime",
        "clients/maximum",
        "clients/total",
        "version",
        "clients/active",
        "clients/inactive",
    }
    assert wanted <= {topic.path for figure in FIGURES for topic in figure.topics}


def test_nothing_that_a_client_chooses_is_a_label() -> None:
    labels = {label for figure in FIGURES if figure.exported for label in figure.labels}
    assert labels == {"qos", "cause", "reason", "name", "hook", "alarm", "room", "node", "version", "python", "worker"}
    assert {figure.kind for figure in FIGURES if "place" in figure.labels} == {Kind.TEXT}
