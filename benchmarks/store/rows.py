"""What is measured, each on a fresh broker: pairs, offline sessions, the latency of a PUBACK, retained messages.

A row gets the entrant and a scale (1 for the counts below), and says what came of it as cells of its table.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.figures import number
from benchmarks.store.clients import Client, Publisher, Subscriber, drive, paced, publishes
from benchmarks.store.disk import bytes_on_disk
from benchmarks.store.entrants import Entrant
from loadtest.brokers.process import BrokerProcess, Cores, free_port
from loadtest.brokers.stats import percentile

PAIRS: Final = 50
PAIR_MESSAGES: Final = 4_000
PAIR_WINDOW: Final = 20

SESSIONS: Final = 8
SESSION_MESSAGES: Final = 50_000
SESSION_WINDOW: Final = 1_000

RATE: Final = 1_000.0
"""Messages a second, where latency is measured."""
PACED_MESSAGES: Final = 10_000
PACED_CLIENTS: Final = 10

TOPICS: Final = 50_000
RETAINED_WINDOW: Final = 1_000


class Row(NamedTuple):
    """One measurement."""

    title: str
    headings: tuple[str, ...]
    measure: Callable[[Entrant, float, Path, int | None], list[str]]


class Running(NamedTuple):
    """A broker that runs, and where it keeps what it keeps."""

    process: BrokerProcess
    port: int
    directory: Path
    stack: ExitStack

    def client(self, name: str) -> Client:
        made = Client(self.port, name)
        self.stack.callback(made.socket.close)
        return made


@contextmanager
def running(entrant: Entrant, parent: Path, core: int | None) -> Iterator[Running]:
    """The entrant with an empty directory, which goes with it."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="canopy-store-", dir=parent)))
        # mosquitto gives up its privileges.
        directory.chmod(0o777)
        port = free_port()
        process = stack.enter_context(BrokerProcess(entrant.begin(port, directory), port, core))
        yield Running(process, port, directory, stack)


def pairs(entrant: Entrant, scale: float, parent: Path, core: int | None) -> list[str]:
    """Publishers and subscribers, all connected, sessions that stay: what is acknowledged at once need not be kept."""
    each = max(PAIR_WINDOW, int(PAIR_MESSAGES * scale * entrant.share))
    with running(entrant, parent, core) as broker:
        clients: list[Publisher | Subscriber] = []
        for at in range(PAIRS):
            topic = f"pairs/{at:04}"
            messages = publishes([topic], each)
            receiver = broker.client(f"s{at:04}")
            receiver.subscribe(topic)
            clients.append(Subscriber(receiver, len(messages[0]), each))
            clients.append(Publisher(broker.client(f"p{at:04}"), messages, PAIR_WINDOW))
        broker.process.settle()
        before = broker.process.cpu()
        seconds = drive(clients)
        cpu = (broker.process.cpu() - before) / 1e3 / (PAIRS * each)
        return [number(PAIRS * each / seconds), f"{cpu:.1f}"]


def offline(entrant: Entrant, scale: float, parent: Path, core: int | None) -> list[str]:
    """One publisher for each session that is away."""
    each = max(100, int(SESSION_MESSAGES * scale * entrant.share))
    with running(entrant, parent, core) as broker:
        clients: list[Publisher | Subscriber] = []
        for at in range(SESSIONS):
            topic = f"offline/{at:04}"
            away = broker.client(f"s{at:04}")
            away.subscribe(topic)
            away.close()
            clients.append(Publisher(broker.client(f"p{at:04}"), publishes([topic], each), SESSION_WINDOW))
        broker.process.settle()
        before, empty = broker.process.cpu(), bytes_on_disk(broker.directory)
        seconds = drive(clients)
        count = SESSIONS * each
        cpu = (broker.process.cpu() - before) / 1e3 / count
        resident = broker.process.resident()
        broker.process.end()
        kept = bytes_on_disk(broker.directory) - empty
        on_disk = number(kept / count) if kept > count else "–"
        return [f"{count:,}", number(count / seconds), f"{cpu:.1f}", on_disk, f"{resident / 1e6:.0f}"]


def latency(entrant: Entrant, scale: float, parent: Path, core: int | None) -> list[str]:
    """From the time a publish to an offline session was due to its PUBACK."""
    count = max(100, int(PACED_MESSAGES * scale * max(entrant.share, 0.1)))
    with running(entrant, parent, core) as broker:
        away = broker.client("away")
        away.subscribe("paced")
        away.close()
        clients = [broker.client(f"p{at:04}") for at in range(PACED_CLIENTS)]
        found = paced(clients, publishes(["paced"], count), RATE)
        return [f"{(percentile(found, share) or 0.0) * 1e3:.2f}" for share in (0.5, 0.99, 1.0)]


def retained(entrant: Entrant, scale: float, parent: Path, core: int | None) -> list[str]:
    """Every topic is set for the first time, and then once more."""
    count = max(100, int(TOPICS * scale * entrant.share))
    topics = [f"retained/{at % 100:02}/{at:06}" for at in range(count)]
    with running(entrant, parent, core) as broker:
        rates: list[str] = []
        for round_ in ("first", "again"):
            sender = broker.client(round_)
            seconds = drive([Publisher(sender, publishes(topics, count, retain=True), RETAINED_WINDOW)])
            rates.append(number(count / seconds))
        return [f"{count:,}", *rates]


ROWS: Final = {
    "pairs": Row(
        f"{PAIRS} pairs, QoS 1, sessions that stay, all connected, {PAIR_WINDOW} unacknowledged each",
        ("messages/s", "CPU µs a message"),
        pairs,
    ),
    "offline": Row(
        f"QoS 1 to {SESSIONS} sessions that are away, {SESSION_WINDOW:,} unacknowledged each",
        ("messages", "acknowledged/s", "CPU µs a message", "B on disk a message", "memory MB"),
        offline,
    ),
    "latency": Row(f"PUBACK at {RATE:,.0f} messages/s to a session that is away, ms", ("p50", "p99", "worst"), latency),
    "retained": Row("retained messages set, QoS 1", ("topics", "first/s", "again/s"), retained),
}
"""By name, in the order in which they are measured."""


def cores() -> Cores:
    """One for the broker, one for the clients, as in the other benchmarks."""
    return Cores.choose()
