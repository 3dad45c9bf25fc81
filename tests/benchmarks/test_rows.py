"""The rows of the runner's benchmarks: their loads over socket pairs, and whole small runs on real brokers."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import runner, store
from benchmarks.network.links import LoadError
from benchmarks.network.loads import QuietPairs
from benchmarks.network.streams import Ledger
from benchmarks.runner import Bench
from benchmarks.scale import clients
from benchmarks.scale.clients import Crowd, source_address, why_not
from benchmarks.scale.filters import frames_of
from canopy_load.brokers import frames
from canopy_load.brokers.database import database_missing
from canopy_load.brokers.frames import FrameError, PublishShape
from canopy_load.brokers.registry import PEERS
from tests.benchmarks.wires import SHAPE, Wires, waiting

LONG = pytest.mark.long
UNSTORED = pytest.mark.skipif(database_missing() != "", reason=database_missing())
ABSENT = pytest.mark.skipif(PEERS["mosquitto"].missing() is not None, reason="mosquitto is not installed")


def test_a_round_visits_every_topic_and_as_many_filters_as_it_can() -> None:
    shapes = [PublishShape.read(frame, 0, frames.MQTT_3_1_1) for frame in frames_of(5, 10, 64, SHAPE)]
    topics = [shape.topic for shape in shapes]
    assert len(shapes) == len(set(topics)) == 64
    assert {topic.split("/")[1] for topic in topics} == {"00005"}
    assert {topic.split("/")[3] for topic in topics} == {f"{number:07d}" for number in range(10)}


def test_deliveries_on_many_topics_are_all_accounted_for(wires: Wires) -> None:
    publisher, heard = wires.pair()
    subscriber, hearing = wires.pair()
    built = frames_of(0, 10, 64, SHAPE)
    load = QuietPairs(wires.loop, [publisher], [subscriber], SHAPE, [built])
    load.start()
    assert waiting(heard) == b"".join(built[:8])
    hearing.send(b"".join(built[:3]) + built[3][:50])
    wires.turn()
    hearing.send(built[3][50:] + built[5])  # message 4 is lost
    wires.turn()
    assert load.ledger == Ledger(delivered=5, lost=1)
    assert waiting(heard) == b"".join(built[8:12])
    hearing.send(built[9][:-1] + b"y")
    with pytest.raises(FrameError, match="changed"):
        wires.turn()


def test_a_crowd_pings_in_turn_and_counts_the_answers(wires: Wires) -> None:
    ends = [wires.pair() for _ in range(4)]
    load = Crowd(wires.loop, [near for near, _ in ends], keep_alive=40)
    load.start()
    begin = load.tick(0.0)
    following = load.tick(begin + 25.0)
    assert following == pytest.approx(begin + 30.0)
    assert [waiting(far) for _, far in ends] == [frames.PINGREQ] * 3 + [b""]
    for _, far in ends[:2]:
        far.send(frames.PINGRESP)
    wires.turn()
    assert (load.ledger.delivered, load.missing()) == (2, 1)
    ends[0][1].send(frames.PUBLISH.to_bytes(1, "big") + b"\x00")
    with pytest.raises(LoadError, match="PUBLISH to an idle client"):
        wires.turn()


def test_clients_come_from_as_many_addresses_as_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [source_address(number) for number in (0, 9_999, 10_000)] == ["127.0.0.2", "127.0.0.2", "127.0.0.3"]
    monkeypatch.setattr(clients, "raise_file_limit", lambda _: False)
    assert "52,100 open files" in (why_not(52_000) or "")
    monkeypatch.setattr(clients, "raise_file_limit", lambda _: True)
    assert why_not(52_000) is None
    assert "no address" in (why_not(3_000_000) or "")


def test_publishes_to_the_absent_stay_within_their_window(wires: Wires) -> None:
    """Acknowledgements that come in pieces count when they are whole."""
    near, far = wires.pair()
    load = store.ToAway(wires.loop, [near], SHAPE)
    load.start()
    sent = waiting(far)
    size = len(sent) // 8
    puback = b"\x40\x02\x00\x01"
    far.send(puback * 3 + puback[:2])
    wires.turn()
    assert waiting(far) == b""
    far.send(puback[2:])
    wires.turn()
    assert (load.ledger.delivered, load.missing()) == (4, 8)
    assert len(waiting(far)) == 4 * size


def test_a_puback_is_timed_from_when_its_publish_was_due(wires: Wires) -> None:
    near, far = wires.pair()
    load = store.PacedAcks(wires.loop, [near], 1.0)
    load.start()
    due = load.tick(0.0) if load.tick(0.0) else 0.0
    load.tick(due)
    assert load.missing() == 1
    far.send(b"\x40\x02\x00\x01")
    wires.turn()
    assert (load.missing(), load.ledger.delivered, len(load.waits)) == (0, 1, 1)


CLUSTER = ("durable", "away", "devices", "reconnect", "failover")
SMALL = ["--quick", "--seconds", "0.05", "--sizes", "40"]


@pytest.mark.parametrize(
    ("bench", "row", "brokers"),
    [
        pytest.param("scale", "filters", "canopy", marks=LONG),
        ("scale", "clients", "relay"),
        ("store", "pairs", "canopy-full"),
        pytest.param("store", "away", "canopy-full", marks=LONG),
        pytest.param("store", "away", "mosquitto-each", marks=[LONG, ABSENT]),
        pytest.param("store", "latency", "canopy-full", marks=LONG),
        pytest.param("store", "retained", "canopy-normal", marks=LONG),
        pytest.param("store", "start", "canopy-full", marks=LONG),
        pytest.param("upstream", "table", "canopy", marks=LONG),
        ("upstream", "fold", "canopy"),
        pytest.param("connecting", "tls", "canopy", marks=LONG),
        pytest.param("connecting", "tls", "mosquitto", marks=[LONG, ABSENT]),
        pytest.param("delay", "crowd", "canopy", marks=LONG),
        pytest.param("delay", "fan-in", "canopy", marks=LONG),
        pytest.param("delay", "busy-pairs", "canopy", marks=LONG),
        pytest.param("upstream", "local", "canopy", marks=LONG),
        pytest.param("upstream", "bridge", "canopy", marks=LONG),
        pytest.param("upstream", "bridge", "mosquitto", marks=[LONG, ABSENT]),
        pytest.param("nodes", "bursts", "canopy", marks=LONG),
        pytest.param("nodes", "lone", "canopy", marks=LONG),
        *(pytest.param("cluster", row, "canopy", marks=[LONG, UNSTORED]) for row in CLUSTER),
        pytest.param("inprocess", "ten", "in-process", marks=LONG),
    ],
)
def test_a_small_run(bench: str, row: str, brokers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing fails, nothing is lost, every figure is there, and no folder is left."""
    asked: Bench = import_module(f"benchmarks.{bench}").BENCH
    file = tmp_path / "out.json"
    folder = tmp_path / "folders"
    folder.mkdir()
    flags = [row, "--brokers", brokers, "--directory", str(folder), "--json", str(file), *SMALL]
    assert runner.main(asked, flags) == 0, capsys.readouterr().out
    for result in json.loads(file.read_text())["results"]:
        assert result["failure"] == ""
        assert result["steps"]
        for figures in result["steps"].values():
            assert not figures.get("lost")
            assert all(value is None or value >= 0 for name, value in figures.items() if name != "B each")
    assert list(folder.iterdir()) == []
