"""The measurements of growth: their loads over socket pairs, and whole small runs on real brokers."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.network import links
from benchmarks.network.links import LoadError, Loop, receive
from benchmarks.network.loads import Shape
from benchmarks.network.streams import Ledger
from benchmarks.scale import clients, crowd, filters, start
from benchmarks.scale.cli import on_store, parse, starter
from benchmarks.scale.clients import ClientPlan
from benchmarks.scale.crowd import Crowd, source_address, why_not
from benchmarks.scale.filters import FilterPlan
from benchmarks.scale.phases import Outcome
from benchmarks.scale.report import HEADINGS, cells, table
from benchmarks.scale.spread import SpreadPairs, filter_of, frames_of, topic_of
from benchmarks.scale.start import StartPlan
from loadtest.brokers import frames
from loadtest.brokers.frames import FrameError, PublishShape
from loadtest.brokers.process import Cores
from loadtest.brokers.registry import PEERS

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", "benchmarks.scale"]
SHAPE = Shape(window=8, burst=4)
ANYWHERE = Cores(None, None)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as open_things:
        yield open_things


def pair(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    near, far = (stack.enter_context(end) for end in socket.socketpair())
    near.setblocking(False)
    far.setblocking(False)
    return near, far


def waiting(sock: socket.socket) -> bytes:
    buffer = memoryview(bytearray(1 << 16))
    return bytes(buffer[: receive(sock, buffer)])


def test_a_topic_belongs_to_one_filter_of_one_client() -> None:
    assert topic_of(7, 3, 42).split("/") == [*filter_of(7, 42).replace("+", "00003").split("/")[:-1], "x"]
    assert len({len(topic_of(*each)) for each in ((0, 0, 0), (99_999, 16_383, 9_999_999))}) == 1


def test_a_round_visits_every_topic_and_as_many_filters_as_it_can() -> None:
    shapes = [PublishShape.read(frame, 0, frames.MQTT_3_1_1) for frame in frames_of(5, 10, 64, SHAPE)]
    topics = [shape.topic for shape in shapes]
    assert len(shapes) == len(set(topics)) == 64
    assert {topic.split("/")[1] for topic in topics} == {"00005"}
    assert {topic.split("/")[3] for topic in topics} == {f"{number:07d}" for number in range(10)}
    few = [PublishShape.read(frame, 0, frames.MQTT_3_1_1).topic for frame in frames_of(5, 10, 4, SHAPE)]
    assert len(few) == SHAPE.cycle
    assert few[:4] * (SHAPE.cycle // 4) == few


def test_deliveries_on_many_topics_are_all_accounted_for(stack: ExitStack) -> None:
    loop = stack.enter_context(Loop())
    publisher, heard = pair(stack)
    subscriber, hearing = pair(stack)
    built = frames_of(0, 10, 64, SHAPE)
    load = SpreadPairs(loop, [publisher], [subscriber], [built], SHAPE)
    load.start()
    assert waiting(heard) == b"".join(built[:8])
    hearing.send(b"".join(built[:3]) + built[3][:50])
    loop.turn(0)
    hearing.send(built[3][50:] + built[5])  # message 4 is lost
    loop.turn(0)
    assert load.ledger == Ledger(delivered=5, lost=1)
    assert waiting(heard) == b"".join(built[8:12])
    hearing.send(built[9][:-1] + b"y")
    with pytest.raises(FrameError, match="changed"):
        loop.turn(0)


def test_a_message_nobody_sent_is_an_error(stack: ExitStack) -> None:
    loop = stack.enter_context(Loop())
    subscriber, hearing = pair(stack)
    SpreadPairs(loop, [pair(stack)[0]], [subscriber], [frames_of(0, 10, 64, SHAPE)], SHAPE)
    hearing.send(frames_of(1, 10, 64, SHAPE)[0])
    with pytest.raises(FrameError, match="nobody sent"):
        loop.turn(0)


def test_a_crowd_pings_in_turn_and_counts_the_answers(stack: ExitStack) -> None:
    loop = stack.enter_context(Loop())
    ends = [pair(stack) for _ in range(4)]
    load = Crowd(loop, [near for near, _ in ends], keep_alive=40)
    load.start()
    begin = load.tick(0.0)
    following = load.tick(begin + 25.0)
    assert following == pytest.approx(begin + 30.0)
    assert [waiting(far) for _, far in ends] == [frames.PINGREQ] * 3 + [b""]
    for _, far in ends[:2]:
        far.send(frames.PINGRESP)
    loop.turn(0)
    assert (load.ledger.delivered, load.missing()) == (2, 1)
    load.stop()
    load.tick(begin + 1000.0)
    assert waiting(ends[3][1]) == b""
    ends[0][1].send(frames.PUBLISH.to_bytes(1, "big") + b"\x00")
    with pytest.raises(LoadError, match="PUBLISH to an idle client"):
        loop.turn(0)


def test_clients_come_from_several_addresses() -> None:
    assert [source_address(number) for number in (0, 9_999, 10_000, 49_999)] == [
        "127.0.0.2",
        "127.0.0.2",
        "127.0.0.3",
        "127.0.0.6",
    ]


def test_too_few_open_files_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "raise_file_limit", lambda _: False)
    assert "52,100 open files" in (why_not(52_000) or "")
    monkeypatch.setattr(crowd, "raise_file_limit", lambda _: True)
    assert why_not(52_000) is None
    assert "no address" in (why_not(3_000_000) or "")


def test_filters_on_canopy() -> None:
    """Every phase, small: nothing is lost, and the publishes find their one filter."""
    plan = FilterPlan(40, clients=4, pairs=2, hot_topics=2, cold_topics=64, seconds=0.05)
    outcome = Outcome("canopy", plan.filters)
    filters.run(outcome, plan, starter(PEERS["canopy"], ["routing.match_cache=16"], ANYWHERE))
    assert [phase.name for phase in outcome.phases] == [
        "hot-without",
        "cold-without",
        "subscribe",
        "hot",
        "cold",
        "unsubscribe",
        "leave",
    ]
    assert [outcome.sample(name).units for name in ("subscribe", "unsubscribe", "leave")] == [40, 20, 20]
    assert sum(phase.sample.lost + phase.sample.doubled for phase in outcome.phases) == 0
    assert outcome.sample("cold").without is outcome.sample("cold-without")
    lines = cells(outcome)
    assert len(lines) == 7
    assert [line[0] for line in lines] == ["40", *[""] * 6]


def test_clients_on_the_relay() -> None:
    plan = ClientPlan(50, keep_alive=10, pairs=2, rate=500.0, seconds=0.05)
    outcome = Outcome("relay", plan.clients)
    clients.run(outcome, plan, starter(PEERS["relay"], [], ANYWHERE))
    assert [phase.name for phase in outcome.phases] == ["paced-without", "connect", "keep-alive", "paced", "leave"]
    assert outcome.sample("connect").units == outcome.sample("leave").units == 50
    assert outcome.sample("keep-alive").units > 0
    assert sum(phase.sample.lost for phase in outcome.phases) == 0
    paced = outcome.sample("paced")
    assert paced.p99_us is not None
    assert paced.without is outcome.sample("paced-without")


def test_a_start_on_canopy(tmp_path: Path) -> None:
    """The second process has what the first one kept."""
    plan = StartPlan(3, filters=2, retained=70)
    outcome = Outcome("canopy", plan.sessions)
    start_on = on_store([], ANYWHERE)
    start.run(outcome, plan, start_on, tmp_path)
    assert outcome.sample("start").spent.broker > 0
    with start_on(tmp_path) as process, ExitStack() as stack:
        everything = links.open_clients("127.0.0.1", process.port, ["reader"])
        stack.callback(links.close_all, everything)
        links.subscribe_all(everything, lambda _: [("state/#", 0)])
        for _ in range(plan.retained):
            links.expect(everything[0], frames.PUBLISH | 1)


def test_the_command_runs_sizes_in_turn_and_writes_them_down(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    small = ["--keep-alive", "20", "--pairs", "2", "--rate", "200", "--seconds", "0.05"]
    done = subprocess.run(
        [*COMMAND, "clients", "--sizes", "40,9000000", "--brokers", "canopy", *small, "--json", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr  # the second size cannot be run anywhere
    data = json.loads(file.read_text())
    first, second = data["outcomes"]
    assert (first["size"], first["failure"], len(first["phases"])) == (40, None, 5)
    assert first["phases"][1]["sample"]["units"] == 40
    assert second["failure"].startswith("not run: more than")
    assert second["failure"] in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "filters|clients|start"),
        (["filters", "--brokers", "hive"], "no broker 'hive'"),
        (["filters", "--brokers", ","], "at least one broker"),
        (["filters", "--sizes", "10,many"], "many"),
        (["filters", "--filters", "1"], "2 clients or more"),
        (["clients", "--pairs", "0"], "pairs"),
        (["start", "--filters", "65"], "1 to 64 filters"),
        (["clients", "--keep-alive", "70000"], "keep alive"),
        (["clients", "--seconds", "0"], "--seconds"),
        (["clients", "--json", "/nowhere/at/all.json"], "no directory /nowhere/at"),
    ],
)
def test_wrong_flags_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_the_flags_make_plans() -> None:
    job = parse(["filters", "--sizes", "100,1000000", "--set", "routing.trie=compact"])
    assert list(job.plans.values()) == [FilterPlan(100, 100), FilterPlan(1_000_000, 200)]
    assert job.settings == ["routing.trie=compact"]
    assert parse(["clients"]).plans == {50_000: ClientPlan(50_000)}
    assert parse(["start"]).plans == {100_000: StartPlan(100_000)}


def test_a_size_that_failed_has_a_line_that_says_why() -> None:
    text = table([Outcome("canopy", 50_000, failure="not run: too many")])
    assert text.splitlines()[0].split()[:3] == list(HEADINGS[:3])
    assert text.splitlines()[2].split("  ")[0] == "50,000"
    assert text.endswith("not run: too many")
