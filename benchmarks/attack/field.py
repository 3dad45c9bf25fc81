"""The tools of an attack: the list of attacks, hostile connections, the time that is left, and the account of the
answers.

An attack never waits beyond its time: `Hostile.send` gives up when it is over, and when the broker closes. What the
broker answers is read (unless the connection never reads) and counted by packet and reason code, where the code says
that something was refused.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, Final

from benchmarks.clients import ready
from canopy_load.brokers.process import HOST
from canopy_mqtt.client.machine import connect_packet
from canopy_mqtt.core.codec import packets as wire
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.encoder import encode
from canopy_mqtt.core.codec.framing import MAX_PACKET
from canopy_mqtt.core.codec.packets import V5, Connack, Packet, Publish, Subscribe, SubscriptionRequest
from canopy_mqtt.core.codec.properties import SUBSCRIPTION_IDENTIFIER, Properties

READ: Final = 1 << 18  # bytes
CONNECT_TIMEOUT: Final = 5.0  # seconds for the system to connect a socket; the broker may be busy
ANSWER_TIMEOUT: Final = 5.0  # seconds for a CONNACK that an attack needs
IP_BIND_ADDRESS_NO_PORT: Final = 24  # ip(7); not in the socket module of every Python
NARROW: Final = 4096  # bytes asked of the system for a client that is to take little
LOOK: Final = 0.05  # seconds after which a connection that waits looks at the time again
BATCH: Final = 2_000  # packets that are made at once
LINGER: Final = b"\1\0\0\0\0\0\0\0"
CLOSED: Final = "closed by the broker"

GROWTH: Final = 64 << 20
"""Bytes by which one client may make the broker grow, whatever it sends."""
CROWD: Final = 256 << 20
"""The same for an attack of some hundred clients, each of which keeps to its own bounds."""
WAIT: Final = 0.05
"""Seconds of the broker's processor time that a PING may wait: one call takes at most 0.01, and there may be a few."""
CROWD_WAIT: Final = 0.3
"""The same beside some hundred hostile connections: each of them has its turn, and short ones, before a PING's."""


@dataclass(frozen=True)
class Attack:
    """One kind of hostile client. `growth`: bytes by which the broker may grow.

    `guarded`: the broker has authenticators; `stored`: it has a store on disk; `settings`: bounds that the attack can
    reach. `steady`: its publishers may not be held back for others (`queue.hold_publishers`).
    """

    about: str
    run: Callable[[Field], None]
    growth: int = GROWTH
    guarded: bool = False
    stored: bool = False
    settings: tuple[str, ...] = ()
    steady: bool = False

    @property
    def wait(self) -> float:
        """Seconds of the broker's processor time that a PING may wait: a crowd makes one wait as a crowd does."""
        return CROWD_WAIT if self.growth > GROWTH else WAIT


ATTACKS: Final[dict[str, Attack]] = {}


def attack(**more: Any) -> Callable[[Callable[[Field], None]], Callable[[Field], None]]:
    """Enter a function into the list, under its name with hyphens; its docstring says what it does."""

    def enter(run: Callable[[Field], None]) -> Callable[[Field], None]:
        ATTACKS[run.__name__.replace("_", "-")] = Attack(" ".join((run.__doc__ or "").split()), run, **more)
        return run

    return enter


class Refused(Exception):
    """The broker refused a client that the attack cannot do without."""


@dataclass
class Field:
    """One attack's context. `until` in seconds of the monotonic clock; `ports` of further listeners.

    `answers`: what was refused, by packet and reason code, and how connections ended.
    """

    port: int
    until: float
    ports: Mapping[str, int] = field(default_factory=dict)
    divide: float = 1
    """The divisor of the attack's numbers."""
    sent: int = 0
    connections: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    _opened: list[Hostile] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """True if the attack's time has passed."""
        return time.monotonic() >= self.until

    def some(self, number: int) -> int:
        """Return this number, or in a smaller attack a part of it; at least two."""
        return max(2, int(number / self.divide))

    def rounds(self, most: int) -> Iterator[int]:
        """Count up to `some(most)`, while there is time."""
        for number in range(self.some(most)):
            if self.over:
                return
            yield number

    def socket(self, listener: str = "", *, narrow: bool = False, source: str = "", reads: bool = True) -> Hostile:
        """Open a connection on which nothing has been sent. `narrow`: the system takes little for a client.

        `source`: the local address that it comes from. Only the first listener and `mounted` answer in MQTT.
        """
        hostile = Hostile(self, self.ports.get(listener, self.port), narrow, source)
        hostile.mqtt = listener in ("", "mounted")
        hostile.reads = reads
        self._opened.append(hostile)
        return hostile

    def client(
        self,
        client_id: str = "",
        *,
        listener: str = "",
        source: str = "",
        narrow: bool = False,
        reads: bool = True,
        **connect: Any,
    ) -> Hostile:
        """A client that was let in; `connect`: as `connect_packet` has them, without a keep alive of its own.

        Raises:
            Refused: it was not, or the attack is over.
        """
        hostile = self.socket(listener, narrow=narrow, source=source)
        packet = connect_packet(client_id or f"hostile-{self.connections}", **{"keep_alive": 0, **connect})
        hostile.version = hostile.decoder.version = packet.version
        hostile.packets([packet])
        if not hostile.wait_for("CONNACK"):
            raise Refused(f"{packet.client_id} was not let in")
        hostile.reads = reads
        return hostile

    def hold(self, connections: int, listener: str = "", data: bytes = b"") -> None:
        """Open connections that send this and stay."""
        for _ in self.rounds(connections):
            self.socket(listener).send(data)
        self.listen()

    def trickle(self, listener: str, data: bytes) -> None:
        """Open 300 connections that send this byte by byte."""
        hostiles = [self.socket(listener) for _ in self.rounds(300)]
        for at in range(len(data)):
            for each in hostiles:
                if self.over:
                    return
                each.send(data[at : at + 1])

    def listen(self, seconds: float = 0.0) -> None:
        """Hold all connections, and read what comes, until the time is over, or for so many seconds though it is."""
        end = time.monotonic() + seconds if seconds else self.until
        while time.monotonic() < end:
            for hostile in self._opened:
                if hostile.reads:
                    hostile.drain()
            time.sleep(0.02)

    def close(self) -> None:
        """Close all open connections."""
        for hostile in self._opened:
            hostile.close()


class Hostile:
    """One hostile connection: it sends what the attack tells it, and counts the answers."""

    def __init__(self, owner: Field, port: int, narrow: bool, source: str) -> None:
        self.field = owner
        self.mqtt = True
        """True if answers are read as packets; else HTTP statuses are counted."""
        self.reads = True
        self.version = V5
        self.closed = False
        self.accepted = False
        """A CONNACK has let it in."""
        self.seen: Counter[str] = Counter()
        self.decoder = Decoder(MAX_PACKET, False, V5)
        owner.connections += 1
        self._sock = socket.socket()
        if narrow:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW)
        self._sock.settimeout(CONNECT_TIMEOUT)
        try:
            if source:
                # The port is chosen when the other end is known: as many from each address as there are ports.
                self._sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
                self._sock.bind((source, 0))
            self._sock.connect((HOST, port))
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            self._over("not connected")
            return
        self._sock.setblocking(False)

    def send(self, data: bytes) -> bool:
        """Send all of it; False when the connection or the attack is over first."""
        view = memoryview(data)
        while view and not self.closed:
            try:
                sent = self._sock.send(view)
            except BlockingIOError:
                if self.field.over:
                    return False
                if ready(self._sock, select.POLLOUT | (select.POLLIN if self.reads else 0), LOOK) & select.POLLIN:
                    self.drain()
                continue
            except OSError:
                self._over(CLOSED)
                break
            self.field.sent += sent
            view = view[sent:]
        if self.reads:
            self.drain()
        return not self.closed

    def packets(self, packets: Iterable[Packet]) -> bool:
        """Encode and send packets, joined to pieces of about `READ` bytes."""
        pieces = bytearray()
        for packet in packets:
            pieces += encode(packet, self.version)
            if len(pieces) >= READ:
                if self.field.over or not self.send(bytes(pieces)):
                    return False
                pieces.clear()
        return self.send(bytes(pieces))

    def flood(self, make: Callable[[int], Packet], batch: int = BATCH) -> None:
        """Send one packet after the other, made from their numbers, so many at once."""
        numbers = count()
        while not self.field.over and self.packets(make(number) for number in islice(numbers, batch)):
            pass

    def repeat(self, data: bytes) -> None:
        """Send the same bytes over and over."""
        while not self.field.over and self.send(data):
            pass

    def subscribe(
        self,
        filters: Sequence[str],
        qos: int = 0,
        *,
        each: int = 1000,
        retain_handling: int = 2,
        identifier: int = 0,
        user: Sequence[tuple[str, str]] = (),
    ) -> bool:
        """Subscribe to these filters, `each` in a packet. `retain_handling` 2: no retained messages."""
        properties = Properties()
        if identifier:
            properties.integers[SUBSCRIPTION_IDENTIFIER] = identifier
        properties.user.extend(user)
        return self.packets(
            Subscribe(
                1,
                [SubscriptionRequest(name, qos, False, False, retain_handling) for name in filters[at : at + each]],
                properties,
            )
            for at in range(0, len(filters), each)
        )

    def publish(self, topic: bytes, payload: bytes = b"", qos: int = 0, retain: bool = False) -> bool:
        """Send one PUBLISH."""
        return self.packets([Publish(topic, payload, qos, retain, packet_id=1 if qos else 0)])

    def wait_for(self, name: str, count: int = 1, timeout: float = ANSWER_TIMEOUT) -> bool:
        """Read until so many packets of that name have come; False when the connection or the time is over first."""
        end = time.monotonic() + timeout
        while self.seen[name] < count and not self.closed and time.monotonic() < end:
            ready(self._sock, select.POLLIN, LOOK)
            self.drain()
        return self.seen[name] >= count

    def drain(self) -> None:
        """Read what has come, without waiting."""
        while not self.closed:
            try:
                data = self._sock.recv(READ)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._over(CLOSED)
            elif self.mqtt:
                self._read(data)
            elif data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 101"):
                self.field.answers[f"HTTP {data[9:12].decode(errors='replace')}"] += 1
                self.seen["HTTP"] += 1

    def take(self, most: int) -> None:
        """Read so many bytes of what has come, and drop them; the rest is no longer read as packets."""
        with contextlib.suppress(OSError):
            self._sock.recv(most)

    def vanish(self) -> None:
        """Close without a word: a reset, as from a machine that was switched off."""
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.closed = True
        self._sock.close()

    def _over(self, how: str) -> None:
        self.field.answers[how] += 1
        self.close()

    def _read(self, data: bytes) -> None:
        self.decoder.feed(data)
        while self.decoder.next_frame():
            packet = self.decoder.packet()
            name = wire.NAMES[packet.kind]
            self.seen[name] += 1
            codes = getattr(packet, "reason_codes", (getattr(packet, "reason_code", 0),))
            lowest = 0x01 if isinstance(packet, Connack) else 0x80
            self.accepted = self.accepted or (isinstance(packet, Connack) and not packet.reason_code)
            for code in codes:
                if code >= lowest:
                    self.field.answers[f"{name} 0x{code:02X}"] += 1
