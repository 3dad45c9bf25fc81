"""Measures how much folding saves an upstream broker, and what a link costs the edge, for docs/benchmarks-routing.md.

Owns four rows. ``table``: N branches with K topic filters each, linked to one upstream process, with and without
``aggregate``: its entries (counted by itself) and its resident memory; the branches are whole brokers with a client
each, all in one process. ``fold``: what the link's filters cost for a filter that comes and goes. ``local``: a message
that stays at the edge, with and without a link. ``bridge``: a message that goes up, beside mosquitto's bridge.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Final

from benchmarks.clients import BEGIN, heard, opened, wait_linked
from benchmarks.network import links
from benchmarks.network.links import Loop
from benchmarks.network.loads import AckedPairs, ClosedLoop, QuietPairs, Shape, topic
from benchmarks.network.measure import measure
from benchmarks.runner import HOST, Bench, Case, Line, Row, line_of, peers
from canopy_load.brokers.process import BrokerProcess, raise_file_limit
from canopy_mqtt.assembly.app import Broker
from canopy_mqtt.core.codec.encoder import encode
from canopy_mqtt.core.codec.packets import V5, Connect, Subscribe, SubscriptionRequest
from canopy_mqtt.links.filters.aggregated import AggregatedFilters, UpstreamSubscriptions
from canopy_mqtt.settings import Settings, Shutdown, Sys, Upstream

QUIET: Final = 3.0
"""Seconds after which a figure of `$SYS`, published every second, is taken for the last."""
FOLDED: Final = 100_000
SHAPE: Final = Shape(window=8_192, burst=512)


def branches(told: Connection, port: int, branch_count: int, each: int, folded: bool) -> None:
    """A process with so many brokers, each with a link and a client; it tells when all links are up and, once it has
    heard that it may go on, how many filters they have declared."""
    asyncio.run(_branches(told, port, branch_count, each, folded))


async def _branches(told: Connection, port: int, branch_count: int, each: int, folded: bool) -> None:
    brokers: list[Broker] = []
    for number in range(branch_count):
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
    up = [broker.links.links["up"] for broker in brokers if broker.links is not None]
    while not all(link.connected for link in up):  # noqa: ASYNC110  nothing tells of all of them
        await asyncio.sleep(0.05)
    told.send(None)
    await asyncio.to_thread(told.recv)
    clients: list[asyncio.StreamWriter] = []
    for number, broker in enumerate(brokers):
        reader, writer = await asyncio.open_connection(HOST, broker.ports[0])
        filters = [f"site/{number}/device/{device}/command" for device in range(each)]
        writer.write(encode(Connect("client", V5), V5))
        writer.write(encode(Subscribe(1, [SubscriptionRequest(topic_filter, 0) for topic_filter in filters]), V5))
        await reader.readexactly(2)
        clients.append(writer)
    while not all(link.subscriber.filters.demanded == each and link.declarer.settled for link in up):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    told.send(sum(len(link.declarer.held) for link in up))
    await asyncio.to_thread(told.recv)


def table(case: Case) -> Iterator[Line]:
    """As many branches as the size says."""
    each = 50 if case.size <= 100 else 100
    raise_file_limit(4 * case.size + 200)
    for folded in (False, True):
        with ExitStack() as stack:
            upstream = stack.enter_context(case.broker(pinned=False, statistics=1))
            upstream.settle()
            before = upstream.resident()
            context = multiprocessing.get_context("spawn")
            told, telling = context.Pipe()
            asked = (telling, upstream.port, case.size, each, folded)
            child = context.Process(target=branches, args=asked, daemon=True)
            child.start()
            stack.callback(child.kill)
            telling.close()
            told.recv()
            upstream.settle()
            linked = upstream.resident()
            told.send(None)
            held = told.recv()
            upstream.settle()
            after = upstream.resident()
            entries = _entries(upstream.port)
            figures = {
                "entries": entries,
                "before MB": before / 1e6,
                "links MB": linked / 1e6,
                "with the filters MB": after / 1e6,
                "for the filters MB": (after - linked) / 1e6,
            }
            notes = () if entries == held else (f"the links say {held:,} entries",)
            yield Line(f"{each} filters each, {'folded' if folded else 'plain'}", figures, notes)


def _entries(port: int) -> int:
    """The upstream's entries, as it says itself, without that of who asks."""
    observer = links.open_clients(HOST, port, ["observer"])
    links.subscribe_all(observer, lambda _: [("$SYS/broker/subscriptions/count", 0)])
    # What comes first may be older than the last change.
    *_, (_, last) = heard(observer[0], QUIET)
    links.close_all(observer)
    return int(last) - 1


class Calls(UpstreamSubscriptions):
    """Counts what is declared to the upstream."""

    count = 0

    def declare(self, topic_filter: str) -> None:
        del topic_filter
        self.count += 1

    withdraw = declare


def fold(case: Case) -> Iterator[Line]:
    """A filter that comes and goes, without a network."""
    filters = [f"site/7/device/{number}/command" for number in range(case.scaled(FOLDED))]
    many = [f"other/{number}/#" for number in range(99)] + ["site/7/#"]
    for title, aggregates in (("no aggregates", []), ("one aggregate", ["site/7/#"]), ("100 aggregates", many)):
        calls = Calls()
        local_filters = AggregatedFilters(calls, aggregates)
        began = time.process_time()
        for topic_filter in filters:
            local_filters.add(topic_filter)
        for topic_filter in filters:
            local_filters.remove(topic_filter)
        yield Line(title, {"CPU µs": (time.process_time() - began) / len(filters) * 1e6, "calls": calls.count})


def _link(port: int, options: str) -> str:
    return f'upstream=[{{name = "up", url = "mqtt://{HOST}:{port}", {options}}}]'


def _pair(case: Case, source: BrokerProcess, target: BrokerProcess, qos: int, step: str) -> Line:
    """One publisher here, one subscriber there; the CPU is that of the source, and of the target beside it."""
    with Loop() as loop, ExitStack() as stack:
        hearing = opened(stack, target.port, "receiver")
        sending = opened(stack, source.port, "sender")
        links.subscribe_all(hearing, lambda _: [(topic(0), qos), (BEGIN, 0)])
        wait_linked(sending[0], hearing)
        links.prepare([*hearing, *sending])
        load: ClosedLoop
        load = AckedPairs(loop, sending, hearing, SHAPE, qos) if qos else QuietPairs(loop, sending, hearing, SHAPE)
        begun = target.cpu()
        sample = measure(case.meter(source), loop, load)
        beside = (target.cpu() - begun) / load.ledger.delivered / 1e3
        return line_of(step, sample, {} if target is source else {"CPU µs upstream": beside})


def local(case: Case) -> Iterator[Line]:
    """A message that stays: without a link, and with one whose filter is folded."""
    with case.broker() as edge:
        yield _pair(case, edge, edge, 0, "without a link")
    with case.broker(pinned=False) as upstream, case.broker(_link(upstream.port, 'aggregate = ["bench/#"]')) as edge:
        yield _pair(case, edge, edge, 0, "with a link")


def bridge(case: Case) -> Iterator[Line]:
    """A message that goes up, edge and upstream the same broker."""
    for qos in (0, 1):
        with case.broker(pinned=False) as upstream:
            settings: Sequence[str] = [_link(upstream.port, 'publish = ["bench/#"]')]
            if case.entrant.peer == "mosquitto":
                settings = [
                    "connection up",
                    f"address {HOST}:{upstream.port}",
                    f"topic bench/# out {qos}",
                    "bridge_protocol_version mqttv50",
                    "notifications false",
                ]
            with case.broker(*settings, pinned=False) as edge:
                yield _pair(case, edge, upstream, qos, f"QoS {qos}")


_BOTH: Final = ("canopy", "mosquitto")

BENCH: Final = Bench(
    "upstream",
    "What folding saves an upstream broker, and what a link costs.",
    {
        "table": Row("the upstream's table", table, _BOTH, sizes=(100, 1_000)),
        "fold": Row("a filter that comes and goes", fold, ("canopy",)),
        "local": Row("local message, 1 → 1, QoS 0", local, ("canopy",)),
        "bridge": Row("message that goes up", bridge, _BOTH),
    },
    peers(*_BOTH),
)
