"""What folding saves an upstream broker, and what it costs the edge.

Owns five measurements (`main` lists them), each printed as a table that docs/benchmarks-upstream.md shows.

    python -m benchmarks.upstream [table] [fold] [local] [bridge] [outage] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.bridge import mosquitto_bridge
from broker.app import Broker
from broker.core.codec.decoder import Decoder
from broker.core.codec.encoder import encode, publish
from broker.core.codec.packets import V5, Connect, Publish, Subscribe, SubscriptionRequest
from broker.settings import Settings, Shutdown, Sys, Upstream
from broker.upstream.filters.ledger import Ledger, UpstreamSubscriptions
from loadtest.brokers.process import BrokerProcess, Cores, free_port, raise_file_limit
from loadtest.brokers.registry import PEERS, Order, python_module

HOST: Final = "127.0.0.1"
PATIENCE: Final = 300.0
QUIET: Final = 3.0
"""Seconds after which a figure of `$SYS`, published every second, is taken for the last."""

WINDOW: Final = 10_000
"""Messages under way at most: the queues of no broker run over."""


class Client:
    """A blocking MQTT 5.0 client that says little."""

    def __init__(self, port: int, name: str) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = Decoder(1 << 20, server=False, version=V5)
        self.send(encode(Connect(name, V5), V5))
        self.wait(1, 2)

    def patience(self, seconds: float) -> None:
        """How long `wait` waits for more; then it raises TimeoutError."""
        self._socket.settimeout(seconds)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def subscribe(self, topic_filters: Sequence[str]) -> None:
        requests = [SubscriptionRequest(each, 0) for each in topic_filters]
        self.send(encode(Subscribe(1, requests), V5))
        self.wait(1, 9)

    def wait(self, count: int, kind: int) -> bytes:
        """Read until so many packets of a kind have come; of a PUBLISH, the last one's payload."""
        last = b""
        decoder = self._decoder
        while True:
            while decoder.next_frame():
                if decoder.header >> 4 == kind:
                    count -= 1
                    if kind == 3 and count == 0:
                        last = decoder.publish().payload
                    if count == 0:
                        return last
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the broker closed the connection")
            decoder.feed(data)

    def close(self) -> None:
        self._socket.close()


# -- table -----------------------------------------------------------------------------------------------------------


async def _branches(port: int, count: int, each: int, folded: bool) -> None:
    """So many brokers with a link and a client each; a line when all links are up, another when all is declared."""
    brokers: list[Broker] = []
    for number in range(count):
        upstream = Upstream(
            name="up",
            url=f"mqtt://{HOST}:{port}",
            client_id=f"branch-{number}",
            aggregate=(f"site/{number}/#",) if folded else (),
            keep_alive=0,
        )
        settings = Settings(
            listen=(f"mqtt://{HOST}:0",), sys=Sys(interval=0), shutdown=Shutdown(flush_timeout=0), upstream=(upstream,)
        )
        broker = Broker(settings)
        await broker.start()
        brokers.append(broker)
    links = [broker.links.links["up"] for broker in brokers if broker.links is not None]
    while not all(link.connected for link in links):  # noqa: ASYNC110  nothing tells of all of them
        await asyncio.sleep(0.05)
    print("linked", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    clients: list[asyncio.StreamWriter] = []
    for number, broker in enumerate(brokers):
        reader, writer = await asyncio.open_connection(HOST, broker.ports[0])
        filters = [f"site/{number}/device/{device}/command" for device in range(each)]
        writer.write(encode(Connect("client", V5), V5))
        writer.write(encode(Subscribe(1, [SubscriptionRequest(topic_filter, 0) for topic_filter in filters]), V5))
        await reader.readexactly(2)
        clients.append(writer)
    while not all(link.demand.ledger.demanded == each and link.declarer.settled for link in links):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    print(sum(len(link.declarer.held) for link in links), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    os._exit(0)


def _entries(port: int) -> int:
    """What the upstream says of itself."""
    client = Client(port, "observer")
    client.subscribe(["$SYS/broker/subscriptions/count"])
    found = 0
    client.patience(QUIET)
    while True:
        # What comes first may be older than the last change.
        try:
            body = client.wait(1, 3)
        except TimeoutError:
            break
        found = int(body)
    client.close()
    # Its own is among them.
    return found - 1


def table(sizes: Sequence[tuple[int, int]]) -> None:
    """Entries and memory of the upstream."""
    print("| upstream | branches × filters | | entries | memory before | links | with the filters | for the filters |")
    print("|---|---|---|---|---|---|---|---|")
    for name in ("canopy", "mosquitto"):
        for count, each in sizes:
            taken: list[int] = []
            for folded in (False, True):
                taken.append(_one_table(name, count, each, folded))
            if taken[1] > 0:
                print(
                    f"| {name} | {count:,} × {each} | plain ÷ folded | | | | | {taken[0] / taken[1]:.1f}× |", flush=True
                )


def _one_table(name: str, count: int, each: int, folded: bool) -> int:
    raise_file_limit(4 * count + 200)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="canopy-upstream-"))
        port = free_port()
        command = PEERS[name].begin(Order(port, Path(folder), statistics=1))
        upstream = stack.enter_context(BrokerProcess(command, port, None))
        upstream.settle()
        before = upstream.resident()
        child = subprocess.Popen(
            [sys.executable, "-P", __file__, "branches", str(port), str(count), str(each), str(int(folded))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(child.wait)
        stack.callback(child.kill)
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        upstream.settle()
        linked = upstream.resident()
        child.stdin.write("\n")
        child.stdin.flush()
        held = int(child.stdout.readline())
        upstream.settle()
        after = upstream.resident()
        entries = _entries(port)
        said = "" if entries == held else f" (links say {held:,})"
        way = "folded" if folded else "plain"
        print(
            f"| {name} | {count:,} × {each} | {way} | {entries:,}{said} | {before / 1e6:.1f} MB | "
            f"{linked / 1e6:.1f} MB | {after / 1e6:.1f} MB | {(after - linked) / 1e6:.1f} MB |",
            flush=True,
        )
        return after - linked


# -- fold ------------------------------------------------------------------------------------------------------------


def fold() -> None:
    """Microseconds for a filter that comes and goes."""
    count = 100_000
    filters = [f"site/7/device/{number}/command" for number in range(count)]
    print("| 100,000 filters, come and gone | µs a filter | calls of the upstream |")
    print("|---|---|---|")
    many = [f"other/{number}/#" for number in range(99)] + ["site/7/#"]
    for title, aggregates in (("no aggregates", []), ("one aggregate", ["site/7/#"]), ("100 aggregates", many)):
        calls = Calls()
        best = 1e9
        for _ in range(5):
            ledger = Ledger(calls, aggregates)
            began = time.process_time()
            for topic_filter in filters:
                ledger.add(topic_filter)
            for topic_filter in filters:
                ledger.remove(topic_filter)
            best = min(best, time.process_time() - began)
        print(f"| {title} | {best / count * 1e6:.2f} | {calls.count // 5:,} |", flush=True)


class Calls(UpstreamSubscriptions):
    """Counts."""

    count = 0

    def declare(self, topic_filter: str) -> None:
        del topic_filter
        self.count += 1

    withdraw = declare


# -- local and bridge ------------------------------------------------------------------------------------------------


def _edge(port: int, upstream: int | None, publish: str = "") -> list[str]:
    command = [*python_module("broker"), "serve", "--listen", f"mqtt://{HOST}:{port}", "--set", "log.level=error"]
    command += ["--set", "sys.interval=0"]
    if upstream is not None:
        link = f'{{name = "up", url = "mqtt://{HOST}:{upstream}", aggregate = ["load/#"], publish = [{publish}]}}'
        command += ["--set", f"upstream=[{link}]"]
    return command


def _through(source: int, target: int, topic_filter: str, topic: str, qos: int, count: int) -> float:
    """Publish here, receive there; messages a second."""
    receiver = Client(target, "receiver")
    request = SubscriptionRequest(topic_filter, qos)
    receiver.send(encode(Subscribe(1, [request]), V5))
    receiver.wait(1, 9)
    sender = Client(source, "sender")
    # Until the link carries: the first may come before it is up.
    began = time.monotonic()
    receiver.patience(0.2)
    while True:
        sender.send(publish(Publish(topic.encode(), b"begin", 0), V5))
        try:
            receiver.wait(1, 3)
            break
        except TimeoutError:
            if time.monotonic() - began > 20.0:
                raise
    receiver.patience(PATIENCE)
    time.sleep(0.5)
    began = time.monotonic()
    sent = received = 0
    payload = b"x" * 64
    chunk = 500
    while received < count:
        while sent < count and sent - received <= WINDOW - chunk:
            frames = [
                publish(Publish(topic.encode(), payload, qos, packet_id=(sent + n) % 60_000 + 1 if qos else 0), V5)
                for n in range(chunk)
            ]
            sender.send(b"".join(frames))
            if qos:
                sender.wait(chunk, 4)
            sent += chunk
        receiver.wait(chunk, 3)
        received += chunk
        if qos:
            # The receiver acknowledges in one piece what it was sent in order.
            first = received - chunk
            receiver.send(b"".join(b"\x40\x02" + (n % 65_535 + 1).to_bytes(2, "big") for n in range(first, received)))
    seconds = time.monotonic() - began
    sender.close()
    receiver.close()
    return count / seconds


def local(rounds: int, count: int) -> None:
    """A message that stays: with a link, and without."""
    print("| local message, 1 → 1, QoS 0, one at a time in bursts of 500 | CPU µs a message |")
    print("|---|---|")
    found: dict[str, list[float]] = {"without a link": [], "with a link, its filter folded": []}
    cores = Cores.choose()
    for _ in range(rounds):
        for title, figures in found.items():
            with ExitStack() as stack:
                up, port = free_port(), free_port()
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="canopy-upstream-")))
                stack.enter_context(BrokerProcess(PEERS["canopy"].begin(Order(up, folder)), up, None))
                linked = "with " in title
                edge = stack.enter_context(BrokerProcess(_edge(port, up if linked else None), port, cores.broker))
                edge.settle()
                before = edge.cpu()
                _through(port, port, "load/x", "load/x", 0, count)
                figures.append((edge.cpu() - before) / count / 1000)
    for title, figures in found.items():
        print(f"| {title} | {median(figures):.3f} |", flush=True)


def bridge(rounds: int, count: int) -> None:
    """A message that goes up, beside mosquitto's bridge."""
    print("| message that goes up, 64 bytes | CPU µs at the edge | CPU µs upstream | messages/s |")
    print("|---|---|---|---|")
    for qos in (0, 1):
        for name in ("canopy", "mosquitto"):
            edges: list[float] = []
            ups: list[float] = []
            rates: list[float] = []
            for _ in range(rounds):
                with ExitStack() as stack:
                    up, port = free_port(), free_port()
                    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="canopy-upstream-")))
                    upstream = stack.enter_context(BrokerProcess(PEERS[name].begin(Order(up, folder)), up, None))
                    command = _edge(port, up, '"up/#"')
                    if name == "mosquitto":
                        command = mosquitto_bridge(port, up, folder, "up/#", qos)
                    edge = stack.enter_context(BrokerProcess(command, port, None))
                    edge.settle()
                    at_edge, at_up = edge.cpu(), upstream.cpu()
                    rates.append(_through(port, up, "up/x", "up/x", qos, count))
                    edges.append((edge.cpu() - at_edge) / count / 1000)
                    ups.append((upstream.cpu() - at_up) / count / 1000)
            print(f"| {name}, QoS {qos} | {median(edges):.2f} | {median(ups):.2f} | {median(rates):,.0f} |", flush=True)


# -- outage ----------------------------------------------------------------------------------------------------------


def outage(seconds: float) -> None:
    """The upstream is gone for so long; the queue holds 20,000 messages."""
    room, rate = 20_000, 1_000
    with ExitStack() as stack:
        up, port = free_port(), free_port()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="canopy-upstream-")))
        command = PEERS["mosquitto"].begin(Order(up, folder))
        upstream = BrokerProcess(command, up, None)
        upstream.__enter__()
        link = f'{{name = "up", url = "mqtt://{HOST}:{up}", publish = ["up/#"], policy = "drop-oldest"'
        link += f", queue_messages = {room}, retry_max = 2.0}}"
        flags = ["--set", "log.level=error", "--set", "sys.interval=1", "--set", f"upstream=[{link}]"]
        serve = [*python_module("broker"), "serve", "--listen", f"mqtt://{HOST}:{port}", *flags]
        edge = stack.enter_context(BrokerProcess(serve, port, None))
        edge.settle()
        sender = Client(port, "sender")
        before = edge.resident()
        child = upstream.pid
        os.kill(child, signal.SIGKILL)
        upstream.stop()
        sent = 0
        began = time.monotonic()
        worst = before
        while time.monotonic() < began + seconds:
            for number in range(sent, sent + rate // 10):
                packet = Publish(b"up/x", b"%010d" % number + b"x" * 190, 1, packet_id=number % 60_000 + 1)
                sender.send(publish(packet, V5))
            sender.wait(rate // 10, 4)
            sent += rate // 10
            worst = max(worst, edge.resident())
            time.sleep(max(0.0, began + sent / rate - time.monotonic()))
        upstream = stack.enter_context(BrokerProcess(command, up, None))
        receiver = Client(up, "receiver")
        receiver.subscribe(["up/#"])
        expected = min(sent, room)
        first = -1
        arrived: set[int] = set()
        receiver.patience(20.0)
        while len(arrived) < expected:
            arrived.add(int(receiver.wait(1, 3)[:10]))
            first = min(arrived) if first < 0 else first
        after = edge.resident()
        whole = arrived == set(range(sent - expected, sent))
        print("| upstream away | published | queue | arrived after it | edge's memory before, at most, after |")
        print("|---|---|---|---|---|")
        print(
            f"| {seconds:,.0f} s | {sent:,} | {room:,} | {len(arrived):,}{'' if whole else ' (not the newest)'} | "
            f"{before / 1e6:.1f}, {worst / 1e6:.1f}, {after / 1e6:.1f} MB |",
            flush=True,
        )


def main() -> int:
    """Print the tables that are asked for; all of them when none is.

    - `table`: N branches with K topic filters each, linked to one upstream process, with and without `aggregate`:
      entries in its table (counted by itself, `$SYS/broker/subscriptions/count`) and its resident memory. The branches
      are whole brokers with a client each, all in one process.
    - `fold`: what the ledger costs for a filter that comes and goes.
    - `local`: CPU for each message that stays at the edge, with and without a link.
    - `bridge`: CPU of the edge and of the upstream for each message that goes up, beside mosquitto's bridge.
    - `outage`: a publisher of QoS 1 at the edge while the upstream is killed, and started again after six minutes: the
      edge's memory, what was dropped, and whether all the rest arrived.
    """
    if sys.argv[1:2] == ["branches"]:
        port, count, each, folded = (int(part) for part in sys.argv[2:])
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard) if soft < hard else (soft, hard))
        asyncio.run(_branches(port, count, each, bool(folded)))
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="*", choices=["table", "fold", "local", "bridge", "outage", []], default=[])
    parser.add_argument("--quick", action="store_true", help="small sizes, one round")
    wanted = parser.parse_args()
    what = wanted.what or ["table", "fold", "local", "bridge", "outage"]
    if "table" in what:
        table([(20, 50)] if wanted.quick else [(100, 50), (1_000, 100)])
    if "fold" in what:
        fold()
    if "local" in what:
        local(1 if wanted.quick else 5, 100_000 if wanted.quick else 1_000_000)
    if "bridge" in what:
        bridge(1 if wanted.quick else 3, 20_000 if wanted.quick else 200_000)
    if "outage" in what:
        outage(10.0 if wanted.quick else 360.0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
