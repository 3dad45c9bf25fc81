"""The rows of the benchmark: what each puts on a broker.

Owns: the registry ``ROWS`` (name to ``Measurement``) and the numbers in it: how many clients, how large a window; and
``BENCH``, the same for the runner.

Promises: a row closes every connection it opened, and asks of a broker only what ``needs`` names. Windows are the same
for every broker. All messages of a row in flight together stay below 4,096 for any one subscriber.

No row is tuned for a broker. The one setting that rows with clients who do not read ask for, how many messages may wait
for one client, is the same for every broker; the rows of Canopy's queue policies are Canopy's alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from socket import socket
from typing import Final, TypeAlias

from benchmarks.certificates import certificate
from benchmarks.network import links
from benchmarks.network.frozen import PLUGS, Frozen, frozen_clients
from benchmarks.network.links import Loop
from benchmarks.network.loads import AckedPairs, ClosedLoop, FanIn, FanOut, QuietPairs, Shape, topic
from benchmarks.network.measure import Clocks, Meter, Sample, measure, settled
from benchmarks.network.paced import Churn, Paced
from benchmarks.runner import Bench, Case, Line, NotRun, Row, line_of, peers
from canopy_load.brokers import frames
from canopy_load.brokers.listeners import TLS, WEBSOCKET, Listener
from canopy_load.brokers.process import HOST, free_port, raise_file_limit
from canopy_load.brokers.registry import FILTERS, PEERS, POLICIES, QOS, QOS2, SECURED, V5, WEB

CHURN_RATE: Final = 1000.0  # cycles a second, each one SUBSCRIBE and one UNSUBSCRIBE
ZEEK_RATE: Final = 20_000.0  # messages a second of all pairs together
ZEEK_PAIRS: Final = 10
SCALED: Final = 150  # counts from which on a quick run has fewer
READERS: Final = 190  # with 10 more who do not read, 5 % of 200; with 190 more, half
FROZEN_RATE: Final = 100.0  # messages a second to every reader
WAITING: Final = 1000  # messages that may wait for one client, where some do not read
DROPPING: Final = 200  # clients with full queues, or as many that read
LATEST_TOPICS: Final = 64
SPARE: Final = 100
EVERY: Final = "bench/+"  # all topics of a load
WARM_CLIENTS: Final = 10  # connected before memory is first looked at, so that lazy set-up is not counted
LATEST_PEBBLES: Final = WAITING - PLUGS - LATEST_TOPICS - SPARE  # so that the load's own topics find a place

_ToReaders: TypeAlias = Callable[[Loop, socket, list[socket]], Paced | FanOut]


@dataclass(frozen=True)
class Run:
    """What a row is run with; counts of 150 and more are divided by ``divide`` (a quick run's shortcut).

    Clients connect to ``listener`` where there is one."""

    meter: Meter
    divide: int = 1
    listener: Listener | None = None

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        return self.meter.process.port if self.listener is None else self.listener.port

    def scaled(self, count: int) -> int:
        """A count of clients or filters for this run."""
        return max(2, count // self.divide) if count >= SCALED else count

    @contextmanager
    def clients(self, kind: str, count: int, level: int = frames.MQTT_3_1_1) -> Iterator[list[socket]]:
        """Connected clients, closed when the block is left."""
        names = [f"{kind}-{number}" for number in range(count)]
        opened = links.open_clients(HOST, self.port, names, level, listener=self.listener)
        try:
            yield opened
        finally:
            links.close_all(opened)


@dataclass(frozen=True)
class Measurement:
    """What one row measures, by ``run`` on a fresh broker; ``files`` is how many clients it holds open at most.

    The broker is to let ``waiting`` messages wait for one client (0: as many as it likes), and is started with
    ``settings`` if it is Canopy: where they are what is measured. Clients connect to a ``listener`` of that kind.
    Beside each run there is one of ``base``, on a broker of its own, and the row tells how many times of ``beside`` it
    is."""

    name: str
    title: str
    run: Callable[[Run], Sample]
    needs: frozenset[str] = frozenset()
    unit: str = "message"
    files: int = 300
    waiting: int = 0
    settings: tuple[str, ...] = ()
    listener: str = ""
    base: Measurement | None = None
    beside: str = "without"


def _pairs(run: Run, count: int, shape: Shape, qos: int = 0, visits: bool = False) -> Sample:
    """Pairs; with `visits`, after others have subscribed to the same topics and have gone."""
    level = shape.level
    with (
        Loop() as loop,
        run.clients("sub", count, level) as subscribers,
        run.clients("pub", count, level) as publishers,
    ):
        links.subscribe_all(subscribers, lambda number: [(topic(number), qos)], level)
        if visits:
            _visit(run, count, qos)
        links.prepare(subscribers + publishers)
        load: ClosedLoop
        if qos:
            load = AckedPairs(loop, publishers, subscribers, shape, qos)
        else:
            load = QuietPairs(loop, publishers, subscribers, shape)
        return measure(run.meter, loop, load)


def _visit(run: Run, count: int, qos: int) -> None:
    """A subscriber of everything, and a second one of each pair's filter, come and go."""
    each = [(topic(number), qos) for number in range(count)]
    with run.clients("visitor", 2) as visitors:
        links.subscribe_all(visitors, lambda number: each if number else [("#", qos)])
        run.meter.process.settle()
    run.meter.process.settle()


def _after_visits(run: Run, count: int, shape: Shape, qos: int = 0) -> Sample:
    """Pairs, and then the same on topics that the broker knows, after a visit."""
    without = _pairs(run, count, shape, qos)
    return replace(_pairs(run, count, shape, qos, visits=True), without=without)


def _fan_out(run: Run) -> Sample:
    with (
        Loop() as loop,
        run.clients("sub", run.scaled(1000)) as subscribers,
        run.clients("pub", 1) as publishers,
    ):
        links.subscribe_all(subscribers, lambda _: [(topic(0), 0)])
        links.prepare(subscribers + publishers)
        return measure(run.meter, loop, FanOut(loop, publishers[0], subscribers, _BURSTS))


def _fan_in(run: Run) -> Sample:
    with Loop() as loop, run.clients("sub", 1) as subscribers, run.clients("pub", 100) as publishers:
        links.subscribe_all(subscribers, lambda _: [(EVERY, 0)])
        links.prepare(subscribers + publishers)
        return measure(run.meter, loop, FanIn(loop, publishers, subscribers[0], Shape(window=32, burst=32)))


def _paced(run: Run, publishers: int, subscribers: int, rate: float) -> Sample:
    with Loop() as loop:
        return _paced_on(loop, run, publishers, subscribers, rate)


def _paced_on(loop: Loop, run: Run, publishers: int, subscribers: int, rate: float) -> Sample:
    with run.clients("sub", subscribers) as hearing, run.clients("pub", publishers) as sending:
        each = subscribers // publishers
        links.subscribe_all(hearing, lambda number: [(topic(number // each) if each else EVERY, 0)])
        links.prepare(hearing + sending)
        return measure(run.meter, loop, Paced(loop, sending, hearing, rate))


def _beside_idle(run: Run) -> Sample:
    shape = Shape()
    without = _pairs(run, 10, shape)
    with run.clients("idle", run.scaled(4000)) as idle:
        links.subscribe_all(idle, lambda number: [(f"idle/{number}/+", 0)])
        run.meter.process.settle()
        return replace(_pairs(run, 10, shape), without=without)


def _zeek(run: Run, others: int) -> Sample:
    """Paced pairs, beside ``others`` subscribers whose filters match none of their topics."""
    rate = ZEEK_RATE / run.divide
    with Loop() as alone, Loop() as beside:  # while descriptors are low: a loop made later could not pace as finely
        without = _paced_on(alone, run, ZEEK_PAIRS, ZEEK_PAIRS, rate)
        if not others:
            return without
        with run.clients("other", run.scaled(others)) as silent:
            links.subscribe_all(silent, lambda number: [(f"zeek/{number}/+", 0)])
            run.meter.process.settle()
            return replace(_paced_on(beside, run, ZEEK_PAIRS, ZEEK_PAIRS, rate), without=without)


def _connect(run: Run, clients: int = 4000) -> Sample:
    process, count = run.meter.process, run.scaled(clients)
    with run.clients("warm", WARM_CLIENTS):
        process.settle()
        memory, clocks = process.resident(), Clocks(process)
        with run.clients("client", count):
            return settled(process, clocks, clocks.read(), count, memory)


def _subscribe(run: Run, clients: int, filters: Callable[[int], list[tuple[str, int]]]) -> Sample:
    process, count = run.meter.process, clients * len(filters(0))
    with run.clients("sub", clients) as subscribers:
        process.settle()
        memory, clocks = process.resident(), Clocks(process)
        links.subscribe_all(subscribers, filters)
        return settled(process, clocks, clocks.read(), count, memory)


def _own_filters(run: Run) -> Sample:
    each = run.scaled(1000)
    return _subscribe(run, 100, lambda client: [(f"device/{client}/+/{number}/#", 0) for number in range(each)])


def _same_filters(run: Run) -> Sample:
    same = [("bench/+/a/#", 0), ("bench/+/b/#", 0), ("bench/all", 0), ("command/#", 0)]
    return _subscribe(run, run.scaled(4000), lambda _: same)


def _beside_churn(run: Run) -> Sample:
    shape = Shape(window=1024, burst=256)
    without = _pairs(run, 1, shape)
    with (
        Loop() as loop,
        run.clients("sub", 1) as subscribers,
        run.clients("pub", 1) as publishers,
        run.clients("churn", 1) as churners,
    ):
        links.subscribe_all(subscribers, lambda number: [(topic(number), 0)])
        links.prepare(subscribers + publishers + churners)
        load = QuietPairs(loop, publishers, subscribers, shape)
        churn = Churn(loop, churners[0], CHURN_RATE)
        churn.start()
        return replace(measure(run.meter, loop, load, churn.tick), without=without, skipped=churn.skipped)


def _frozen(run: Run, frozen: int, load: _ToReaders) -> Sample:
    """A load on ``READERS`` clients, alone and then beside ``frozen`` others of the same topic who do not read."""
    readers = run.scaled(READERS)
    with Loop() as alone, Loop() as beside:
        without = _to_readers(run, alone, readers, load)
        if not frozen:
            return without
        with frozen_clients(run.port, run.scaled(frozen), EVERY, WAITING + SPARE) as crowd:
            run.meter.process.settle()
            return replace(_to_readers(run, beside, readers, load, crowd), without=without)


def _dropping(run: Run, pebbles: int, topics: int = 1) -> Sample:
    """Bursts to ``DROPPING`` clients who read, and then to as many whose queues are full, and to one who reads."""

    def load(loop: Loop, publisher: socket, subscribers: list[socket]) -> FanOut:
        return FanOut(loop, publisher, subscribers, _BURSTS, topics)

    dropping = run.scaled(DROPPING)
    with Loop() as alone, Loop() as beside:
        without = _to_readers(run, alone, dropping, load)
        with frozen_clients(run.port, dropping, EVERY, pebbles) as crowd:
            run.meter.process.settle()
            sample = _to_readers(run, beside, 1, load, crowd)
            return replace(sample, units=sample.units * dropping, without=without)


def _to_readers(
    run: Run,
    loop: Loop,
    readers: int,
    make: _ToReaders,
    frozen: Frozen | None = None,
) -> Sample:
    """One publisher to so many subscribers who read, and what the frozen ones missed of it."""
    with run.clients("sub", readers) as hearing, run.clients("pub", 1) as sending:
        links.subscribe_all(hearing, lambda _: [(EVERY, 0)])
        links.prepare(hearing + sending)
        load = make(loop, sending[0], hearing)
        warm: list[int] = []
        sample = measure(run.meter, loop, load, at_begin=lambda: warm.append(load.sent))
        if frozen is not None:
            run.meter.process.settle()
            sample.missed = frozen.thaw(load.sent, load.sent - warm[0])
        return sample


def _paced_to(loop: Loop, publisher: socket, subscribers: list[socket]) -> Paced:
    return Paced(loop, [publisher], subscribers, FROZEN_RATE)


def _bursts_to(loop: Loop, publisher: socket, subscribers: list[socket]) -> FanOut:
    return FanOut(loop, publisher, subscribers, _BURSTS)


_QOS2: Final = frozenset({QOS, QOS2})
_V5: Final = Shape(level=frames.MQTT_5)
_ACKED: Final = Shape(window=64, burst=32)
_BURSTS: Final = Shape(window=64, burst=32)
_LARGE: Final = Shape(payload=16_384, window=8, burst=4)


def _frozen_row(name: str, title: str, frozen: int, load: _ToReaders) -> Measurement:
    return Measurement(
        name,
        title,
        lambda run: _frozen(run, frozen, load),
        frozenset({FILTERS}),
        files=READERS + frozen,
        waiting=WAITING,
    )


def _access_rules() -> str:
    """A hundred access rules as one setting: of some users, of every user, and the last one lets the load pass."""
    tables = [f'{{user = "site-{number}-*", filters = ["site/{number}/#"]}}' for number in range(40)]
    tables += [f'{{action = "publish", filters = ["plant/{number}/{{user}}/#"]}}' for number in range(30)]
    tables += [f'{{filters = ["hall/{number}/+/state"], effect = "deny"}}' for number in range(29)]
    tables.append('{filters = ["bench/#", "$SYS/#"]}')
    return f"rule=[{', '.join(tables)}]"


def _ruled_row(row: Measurement) -> Measurement:
    """The same load with access rules, which are asked at each publish and each delivery."""
    needs = row.needs | {POLICIES}
    settings = (*row.settings, _access_rules())
    name, title = f"{row.name}-rules", f"{row.title}, with 100 rules"
    return replace(row, name=name, title=title, needs=needs, settings=settings, base=row)


def _secured_row(row: Measurement) -> Measurement:
    """The same load over TLS 1.3."""
    return replace(
        row, name=f"{row.name}-tls", title=f"{row.title}, TLS 1.3", needs=row.needs | {SECURED}, listener=TLS
    )


def _web_row(row: Measurement) -> Measurement:
    """The same load over WebSocket, told by what it costs over TCP."""
    name, title, needs = f"{row.name}-ws", f"{row.title}, WebSocket", row.needs | {WEB}
    return replace(row, name=name, title=title, needs=needs, listener=WEBSOCKET, base=row, beside="TCP")


def _drop_row(name: str, settings: Sequence[str] = (), pebbles: int = WAITING + SPARE, topics: int = 1) -> Measurement:
    return Measurement(
        name,
        f"to 200 full queues, {name}",
        lambda run: _dropping(run, pebbles, topics),
        frozenset({FILTERS, POLICIES} if settings else {FILTERS}),
        "dropped message",
        2 * DROPPING,
        WAITING,
        tuple(settings),
    )


ROWS: Final[dict[str, Measurement]] = {
    row.name: row
    for row in (
        Measurement("one-to-one", "1 → 1, QoS 0", lambda run: _pairs(run, 1, Shape(window=1024, burst=256))),
        Measurement("pairs", "100 pairs, QoS 0", lambda run: _pairs(run, 100, Shape())),
        Measurement("fan-out", "1 → 1,000 fan-out", _fan_out, files=1100),
        Measurement("fan-in", "100 → 1 fan-in (bench/+)", _fan_in, frozenset({FILTERS})),
        Measurement("pairs-v5", "100 pairs, MQTT 5", lambda run: _pairs(run, 100, _V5), frozenset({V5})),
        Measurement(
            "pairs-qos1", "100 pairs, QoS 1 both sides", lambda run: _pairs(run, 100, _ACKED, 1), frozenset({QOS})
        ),
        Measurement(
            "pairs-qos1-single",
            "100 pairs, QoS 1, one in flight for each",
            lambda run: _pairs(run, 100, Shape(window=1, burst=1), 1),
            frozenset({QOS}),
        ),
        Measurement("pairs-qos2", "100 pairs, QoS 2 both sides", lambda run: _pairs(run, 100, _ACKED, 2), _QOS2),
        Measurement("pairs-16k", "10 pairs, 16 KiB payload", lambda run: _pairs(run, 10, _LARGE)),
        Measurement(
            "paced-pairs",
            "1,000 pairs paced at 10,000 msg/s",
            lambda run: _paced(run, run.scaled(1000), run.scaled(1000), 10_000.0 / run.divide),
            files=2100,
        ),
        Measurement(
            "paced-fan-out",
            "1 → 1,000 paced at 20 msg/s",
            lambda run: _paced(run, 1, run.scaled(1000), 20.0),
            files=1100,
        ),
        Measurement(
            "paced-fan-in",
            "100 → 1 paced at 10,000 msg/s (bench/+)",
            lambda run: _paced(run, 100, 1, 10_000.0 / run.divide),
            frozenset({FILTERS}),
        ),
        Measurement("idle", "10 pairs beside 4,000 idle subscribers", _beside_idle, files=4100),
        Measurement("connect", "connect 4,000 clients", _connect, unit="client", files=4100),
        Measurement(
            "own-filters", "100 × 1,000 filters device/%c/+/%n/#", _own_filters, frozenset({FILTERS}), "filter"
        ),
        Measurement("same-filters", "4,000 × the same 4 filters", _same_filters, frozenset({FILTERS}), "filter", 4100),
        Measurement("churn", "1 → 1 beside 1,000 SUBSCRIBE + UNSUBSCRIBE/s", _beside_churn, frozenset({FILTERS})),
        Measurement(
            "one-to-one-visited",
            "1 → 1, QoS 0, after a visit",
            lambda run: _after_visits(run, 1, Shape(window=1024, burst=256)),
            frozenset({FILTERS}),
        ),
        Measurement(
            "pairs-qos1-visited",
            "100 pairs, QoS 1 both sides, after a visit",
            lambda run: _after_visits(run, 100, _ACKED, 1),
            frozenset({FILTERS, QOS}),
        ),
        Measurement("zeek-0", "10 pairs at 20,000 msg/s", lambda run: _zeek(run, 0)),
        Measurement("zeek-20", "10 pairs at 20,000 msg/s + 20 others", lambda run: _zeek(run, 20)),
        Measurement("zeek-1000", "10 pairs at 20,000 msg/s + 1,000 others", lambda run: _zeek(run, 1000), files=1100),
        Measurement("zeek-4000", "10 pairs at 20,000 msg/s + 4,000 others", lambda run: _zeek(run, 4000), files=4100),
        _frozen_row("frozen-0", "1 → 190 paced at 100 msg/s", 0, _paced_to),
        _frozen_row("frozen-5", "1 → 190 paced at 100 msg/s + 10 frozen", 10, _paced_to),
        _frozen_row("frozen-50", "1 → 190 paced at 100 msg/s + 190 frozen", 190, _paced_to),
        _frozen_row("frozen-5-bursts", "1 → 190 in bursts + 10 frozen", 10, _bursts_to),
        _frozen_row("frozen-50-bursts", "1 → 190 in bursts + 190 frozen", 190, _bursts_to),
        _drop_row("drop-newest"),
        _drop_row("drop-oldest", ["queue.policy=drop-oldest"]),
        _drop_row("latest", ["queue.policy=latest"], LATEST_PEBBLES, LATEST_TOPICS),
        _drop_row("max-age", ["queue.max_age=0.1", "queue.live_messages=0", "queue.live_bytes=0"]),
    )
}

_FURTHER: Final = (
    *(_ruled_row(ROWS[name]) for name in ("one-to-one", "pairs", "fan-out", "pairs-v5")),
    *(_secured_row(ROWS[name]) for name in ("pairs", "fan-out", "paced-pairs")),
    Measurement(
        "connect-tls",
        "1,000 handshakes, TLS 1.3",
        lambda run: _connect(run, 1000),
        frozenset({SECURED}),
        "client",
        1100,
        listener=TLS,
    ),
    *(_web_row(ROWS[name]) for name in ("pairs", "paced-pairs")),
)
ROWS.update((row.name, row) for row in _FURTHER)

BROKERS: Final = ("canopy", "mosquitto")
COLUMNS: Final = ("rate/s", "CPU µs", "RSS MB", "B each", "p50 µs", "p99 µs", "lost", "broker %", "gen %")
SPARE_FILES: Final = 100


def sample_of(row: Measurement, case: Case) -> Sample:
    """Measure a row once on a fresh broker, and its base before it.

    Raises:
        BrokerFailed, LoadError, FrameError: that went wrong.
        NotRun: this process may not open as many files.
    """
    base = None if row.base is None else sample_of(row.base, case)
    if not raise_file_limit(row.files + SPARE_FILES):
        raise NotRun(f"{row.files} open files are not allowed (ulimit -n)")
    listener = None
    if row.listener:
        listener = Listener(row.listener, free_port(), *(certificate() if row.listener == TLS else ()))
    with case.broker(*row.settings, waiting=row.waiting, listener=listener) as process:
        if listener is not None:
            process.wait_listening(listener.port)
        sample = row.run(Run(Meter(process, max(0.1, case.seconds / 4), case.seconds), case.divide, listener))
    return sample if base is None else replace(sample, without=base)


def _measured(row: Measurement, case: Case) -> Iterator[Line]:
    yield line_of("", sample_of(row, case), beside=row.beside)


BENCH: Final = Bench(
    "network",
    "The same MQTT loads on several brokers in one run.",
    {
        name: Row(
            row.title,
            partial(_measured, row),
            tuple(broker for broker in BROKERS if not row.needs & PEERS[broker].lacks),
            needs=row.needs,
            against="CPU µs",
            columns=COLUMNS,
            about=f"{row.title}; figures for each {row.unit}",
        )
        for name, row in ROWS.items()
    },
    peers(),
)
