"""What an attack works with: hostile connections, the time it has, and the account of what it sent and was answered.

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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from benchmarks.attack.listeners import Listeners
from broker.core.codec.encoder import encode
from broker.core.codec.packets import V5, Connect, Packet, Publish, Subscribe, SubscriptionRequest, Will
from broker.core.codec.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL, Properties
from loadtest.brokers import frames
from loadtest.brokers.process import HOST

READ: Final = 1 << 18  # bytes
CONNECT_TIMEOUT: Final = 5.0  # seconds for the system to connect a socket; the broker may be busy
ANSWER_TIMEOUT: Final = 5.0  # seconds for a CONNACK that an attack needs
IP_BIND_ADDRESS_NO_PORT: Final = 24  # ip(7); not in the socket module of every Python
NARROW: Final = 4096  # bytes asked of the system for a client that is to take little

DISCONNECT: Final = 0xE0


class Refused(Exception):
    """The broker did not let a client in that the attack cannot do without."""


@dataclass
class Field:
    """One attack's share of the world. Times in seconds of the monotonic clock."""

    port: int
    until: float
    # 1.0 is the whole attack; tests run a part of it.
    scale: float = 1.0
    listeners: Listeners = field(default_factory=Listeners)
    sent: int = 0
    connections: int = 0
    # What was refused, by packet and reason code, and how connections ended.
    answers: Counter[str] = field(default_factory=Counter)
    _opened: list[Hostile] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)

    @property
    def over(self) -> bool:
        """Whether the attack's time has passed."""
        return time.monotonic() >= self.until

    def some(self, number: int) -> int:
        """So many, or in a smaller attack fewer; at least two."""
        return max(2, int(number * self.scale))

    def rounds(self, most: int) -> Iterable[int]:
        """Count up to `some(most)`, while there is time."""
        for number in range(self.some(most)):
            if self.over:
                return
            yield number

    def socket(self, *, reads: bool = True, narrow: bool = False, source: str = "", port: int = 0) -> Hostile:
        """A connection on which nothing has been sent. `narrow`: the system takes little for a client.

        `source`: the local address it comes from; `port`: that of another listener.
        """
        hostile = Hostile(self, port or self.port, reads, narrow, source)
        self._opened.append(hostile)
        return hostile

    def raw(self, port: int, *, narrow: bool = False) -> Hostile:
        """A connection to another listener, on which nothing has been sent, and that does not answer in MQTT."""
        hostile = Hostile(self, port, True, narrow)
        hostile.mqtt = False
        self._opened.append(hostile)
        return hostile

    def client(
        self,
        client_id: str = "",
        *,
        version: int = V5,
        clean: bool = True,
        expiry: int = 0,
        will: Will | None = None,
        keep_alive: int = 0,
        receive_maximum: int = 0,
        user: Sequence[tuple[str, str]] = (),
        reads: bool = True,
        narrow: bool = False,
        port: int = 0,
        source: str = "",
    ) -> Hostile:
        """A client that was let in; `port`: by another listener; `source`: from this local address.

        Raises:
            Refused: it was not, or the attack is over.
        """
        hostile = self.socket(reads=True, narrow=narrow, port=port, source=source)
        properties = Properties()
        if version == V5:
            if expiry:
                properties.integers[SESSION_EXPIRY_INTERVAL] = expiry
            if receive_maximum:
                properties.integers[RECEIVE_MAXIMUM] = receive_maximum
            properties.user.extend(user)
        name = client_id or f"hostile-{next(self._numbers)}"
        hostile.send(encode(Connect(name, version, clean, keep_alive, will, properties=properties), version))
        hostile.version = version
        if not hostile.wait_for("CONNACK"):
            raise Refused(f"{name} was not let in")
        hostile.reads = reads
        return hostile

    def listen(self, seconds: float = 60.0) -> None:
        """Hold all connections, and read what comes, until the time is over, or for so long though it is."""
        end = min(self.until, time.monotonic() + seconds) if seconds >= 60.0 else time.monotonic() + seconds
        while time.monotonic() < end:
            for hostile in self._opened:
                if hostile.reads and not hostile.closed:
                    hostile.drain()
            time.sleep(0.02)

    def close(self) -> None:
        """Close whatever is open."""
        for hostile in self._opened:
            hostile.close()
        self._opened.clear()


class Hostile:
    """One hostile connection: it sends what it is told to and counts what it is answered."""

    def __init__(self, owner: Field, port: int, reads: bool, narrow: bool, source: str = "") -> None:
        self.field = owner
        # Whether answers are packets; else what HTTP says is counted.
        self.mqtt = True
        self.reads = reads
        self.version = V5
        self.closed = False
        # A CONNACK has let it in.
        self.accepted = False
        self.seen: Counter[str] = Counter()
        self._rest = b""
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
                wanted = [self._sock] if self.reads else []
                readable, _, _ = select.select(wanted, [self._sock], [], 0.05)
                if readable:
                    self.drain()
                continue
            except OSError:
                self._over("closed by the broker")
                break
            self.field.sent += sent
            view = view[sent:]
        if self.reads:
            self.drain()
        return not self.closed

    def packets(self, packets: Iterable[Packet], at_once: int = READ) -> bool:
        """Encode and send packets, joined to pieces of about so many bytes."""
        pieces: list[bytes] = []
        size = 0
        for packet in packets:
            piece = encode(packet, self.version)
            pieces.append(piece)
            size += len(piece)
            if size >= at_once:
                if self.field.over or not self.send(b"".join(pieces)):
                    return False
                pieces, size = [], 0
        return self.send(b"".join(pieces))

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
        """SUBSCRIBE to these, `each` in a packet. `retain_handling` 2: no retained messages."""
        properties = Properties()
        if self.version == V5:
            if identifier:
                properties.integers[0x0B] = identifier
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
        """One PUBLISH."""
        return self.packets([Publish(topic, payload, qos, retain, packet_id=1 if qos else 0)])

    def wait_for(self, name: str, count: int = 1, timeout: float = ANSWER_TIMEOUT) -> bool:
        """Read until so many packets of that name have come; False when the connection or the time is over first."""
        end = time.monotonic() + timeout
        while self.seen[name] < count and not self.closed and time.monotonic() < end:
            select.select([self._sock], [], [], 0.05)
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
                self._over("closed by the broker")
                return
            self._read(data)

    def take(self, most: int) -> None:
        """Read so many bytes of what has come, and forget them: what follows makes no packets any more."""
        with contextlib.suppress(OSError):
            self._sock.recv(most)

    def listen(self) -> None:
        """Read what comes until the attack's time is over."""
        while not self.field.over and not self.closed:
            select.select([self._sock], [], [], 0.05)
            self.drain()

    def vanish(self) -> None:
        """Close without a word: a reset, as from a machine that was switched off."""
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.close()

    def close(self) -> None:
        """Close; the broker may see it as it likes."""
        self.closed = True
        self._sock.close()

    def _over(self, how: str) -> None:
        self.field.answers[how] += 1
        self.close()

    def _read(self, data: bytes) -> None:
        if not self.mqtt:
            if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 101"):
                self.field.answers[f"HTTP {data[9:12].decode(errors='replace')}"] += 1
                self.seen["HTTP"] += 1
            return
        data = self._rest + data
        at = 0
        while size := frames.packet_size(data, at):
            if at + size > len(data):
                break
            self._count(data[at], data[at : min(at + size, at + 4096)])
            at += size
        self._rest = data[at:]

    def _count(self, first: int, packet: bytes) -> None:
        name = frames.packet_name(first)
        self.seen[name] += 1
        body = 2
        while packet[body - 1] & 0x80:
            body += 1
        kind = first & 0xF0
        codes: Iterable[int] = ()
        if kind == frames.CONNACK:
            codes = packet[body + 1 : body + 2]
            self.accepted = self.accepted or codes == b"\0"
        elif kind == DISCONNECT:
            codes = packet[body : body + 1]
        elif kind in (frames.PUBACK, frames.PUBREC, frames.PUBCOMP):
            codes = packet[body + 2 : body + 3]
        elif kind == frames.SUBACK:
            codes = [code for code in packet[body + 2 :] if code >= 0x80]
        for code in codes:
            if code >= 0x80 or (kind == frames.CONNACK and 0 < code < 6):
                self.field.answers[f"{name} 0x{code:02X}"] += 1
