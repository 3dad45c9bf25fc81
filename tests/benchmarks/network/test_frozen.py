"""Clients that do not read: what they missed is counted, and whole small runs beside them on real brokers."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.network import links
from benchmarks.network.frozen import Frozen, read_all
from benchmarks.network.links import LoadError
from benchmarks.network.loads import FanOut
from benchmarks.network.measure import Missed
from benchmarks.network.rows import BENCH, ROWS, sample_of
from benchmarks.network.streams import Ledger
from benchmarks.runner import Case
from canopy_load.brokers import frames
from canopy_load.brokers.process import HOST, BrokerFailed, BrokerProcess, Cores, free_port
from canopy_load.brokers.registry import PEERS
from tests.benchmarks.wires import SHAPE, Wires, packets, waiting

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m", "benchmarks", "network"]
FRAME = frames.publish("bench/0000", frames.payload(0, 0, 64))
MOSQUITTO_MISSING = PEERS["mosquitto"].missing()


class Script(socket.socket):
    """An end of a socket pair whose reads are written beforehand; None is a silence."""

    reads: list[bytes | None]
    asked = b""

    def recv(self, _size: int, _flags: int = 0, /) -> bytes:
        data = self.reads.pop(0)
        if data is None:
            raise TimeoutError
        return data

    def sendall(self, data: Any, _flags: int = 0, /) -> None:
        self.asked += bytes(data)


def script(wires: Wires, *reads: bytes | None) -> Script:
    made = wires.stack.enter_context(Script())
    made.reads = list(reads)
    return made


def test_reading_ends_where_the_broker_has_nothing_more(wires: Wires) -> None:
    whole = FRAME * 5
    sock = script(wires, whole[:70], whole[70:] + frames.PINGRESP + FRAME, frames.PINGRESP + frames.PINGRESP)
    assert read_all(sock, math.inf) == (6, False)
    assert sock.asked == frames.PINGREQ * 3


def test_a_broker_that_falls_silent_is_asked_again(wires: Wires) -> None:
    sock = script(wires, FRAME, None, None, frames.PINGRESP, frames.PINGRESP)
    assert read_all(sock, math.inf) == (1, False)
    assert sock.asked == frames.PINGREQ * 4


def test_a_broker_that_stays_silent_is_an_error(wires: Wires) -> None:
    near, _ = wires.pair()
    with pytest.raises(LoadError, match="not sent everything"):
        read_all(near, time.monotonic())


def test_what_came_before_the_connection_ended_counts(wires: Wires) -> None:
    near, far = wires.pair()
    far.sendall(FRAME * 3)
    far.shutdown(socket.SHUT_WR)
    assert read_all(near, math.inf) == (3, True)


def test_what_was_sent_and_did_not_come_was_missed(wires: Wires) -> None:
    def crowd(*received: int) -> Frozen:
        reads = [(FRAME * count + frames.PINGRESP, frames.PINGRESP) for count in received]
        return Frozen([script(wires, *each) for each in reads], filled=10)

    assert crowd(10, 4).thaw(sent=20, measured=15) == Missed(clients=2, messages=20 + 26, cut=0, full=True)
    # Fifteen of the twenty were measured: who missed fewer had room for some of them.
    assert crowd(15, 4, 16).thaw(sent=20, measured=15) == Missed(clients=3, messages=15 + 26 + 14, cut=0, full=False)


def test_who_was_disconnected_is_told_apart(wires: Wires) -> None:
    crowd = Frozen([script(wires, FRAME * 12, b""), script(wires, frames.PINGRESP)], filled=2)
    assert crowd.thaw(sent=10, measured=10) == Missed(clients=2, messages=12, cut=1, full=True)


def test_little_is_on_the_way_to_a_narrow_client(tmp_path: Path) -> None:
    port = free_port()
    with BrokerProcess(PEERS["relay"].command(port, tmp_path), port, Cores.choose().broker):
        narrow, wide = (
            [*links.open_clients(HOST, port, [name], narrow=name == "narrow")] for name in ("narrow", "wide")
        )
        try:
            sizes = [each.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) for each in (*narrow, *wide)]
            segments = [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) for each in (*narrow, *wide)]
        finally:
            links.close_all([*narrow, *wide])
    assert sizes[0] <= 2 * links.NARROW_BUFFER < sizes[1]
    assert segments[0] <= links.NARROW_SEGMENT < segments[1]


def test_many_topics_are_sent_in_turn_and_all_accounted_for(wires: Wires) -> None:
    (publisher, heard), (subscriber, hearing) = wires.pair(), wires.pair()
    load = FanOut(wires.loop, publisher, [subscriber], SHAPE, topics=4)
    load.start()
    sent = packets(waiting(heard))
    assert [frames.PublishShape.read(each, 0, frames.MQTT_3_1_1).topic for each in sent] == [
        f"bench/{number:04d}" for number in (0, 1, 2, 3) * 2
    ]
    assert load.sent == 8
    hearing.sendall(b"".join(sent[:3] + sent[4:]))
    wires.turn()
    assert load.ledger == Ledger(delivered=7, lost=1)
    with pytest.raises(ValueError, match="3 topics"):
        FanOut(wires.loop, publisher, [], SHAPE, topics=3)


def test_a_row_is_measured_with_its_settings() -> None:
    row = replace(ROWS["frozen-0"], settings=("queue.policy=first-come",))
    with pytest.raises(BrokerFailed, match="first-come"):
        sample_of(row, Case(BENCH.entrants["canopy"]))


def run(file: Path, broker: str, *rows: str) -> dict[str, Any]:
    """Run each row briefly, and return its only line by row."""
    arguments = [*rows, "--quick", "--seconds", "0.1", "--brokers", broker, "--json", str(file)]
    done = subprocess.run([*COMMAND, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {each["row"]: each["runs"][0][0] for each in json.loads(file.read_text())["results"]}


def check(name: str, line: dict[str, Any], frozen: int) -> None:
    """Whoever reads got everything, and who does not read had a full queue all the while."""
    figures = line["figures"]
    assert figures["rate/s"] > 0
    if name != "max-age":  # on a busy machine a tenth of a second can pass anywhere
        assert figures["lost"] == 0
    assert [note for note in line["notes"] if "frozen" in note or "doubled" in note] == [f"{frozen} frozen"]
    assert figures["missed"] > 0
    assert figures["rate × of without"] > 0


@pytest.mark.long
def test_whole_run_on_canopy(tmp_path: Path) -> None:
    rows = ("frozen-0", "frozen-5", "frozen-50-bursts", "drop-newest", "drop-oldest", "latest", "max-age")
    results = run(tmp_path / "out.json", "canopy", *rows)
    alone = results.pop("frozen-0")["figures"]
    assert "missed" not in alone
    assert alone["p99 µs"] > 0
    assert results["frozen-5"]["figures"]["p99 × of without"] > 0
    for name, line in results.items():
        check(name, line, {"frozen-5": 10, "frozen-50-bursts": 19}.get(name, 20))


@pytest.mark.long
@pytest.mark.skipif(MOSQUITTO_MISSING is not None, reason=str(MOSQUITTO_MISSING))
def test_whole_run_on_mosquitto(tmp_path: Path) -> None:
    check("frozen-5", run(tmp_path / "out.json", "mosquitto", "frozen-5")["frozen-5"], 10)
