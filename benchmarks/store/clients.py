"""Clients of MQTT 3.1.1 with sessions that stay, many in one thread, which cost little: frames of one length.

Owns: the sockets, and the loops that publish within a window and acknowledge. A publisher knows its acknowledgements by
their count, since every packet that a broker sends it is one of four bytes.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Sequence
from typing import Final

from loadtest.brokers import frames
from loadtest.brokers.process import HOST

PATIENCE: Final = 120.0
"""Seconds without any packet after which a run counts as failed."""

PAYLOAD: Final = 64
ACK: Final = 4
"""Bytes of a PUBACK of MQTT 3.1.1."""

FLAGS: Final = 9
"""Where the flags stand in a CONNECT with a remaining length of one byte."""


class LoadError(Exception):
    """The broker did not do what it was asked for."""


class Client:
    """A connection."""

    def __init__(self, port: int, name: str, clean: bool = False) -> None:
        self.socket = socket.create_connection((HOST, port), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connect = bytearray(frames.connect(name))
        connect[FLAGS] = 0x02 if clean else 0x00
        self.socket.sendall(connect)
        if self._exactly(4)[3] != 0:
            raise LoadError(f"{name} was refused")

    def _exactly(self, count: int) -> bytes:
        found = self.socket.recv(count, socket.MSG_WAITALL)
        if len(found) != count:
            raise LoadError("the broker closed the connection")
        return found

    def subscribe(self, topic_filter: str, qos: int = 1) -> None:
        self.socket.sendall(frames.subscribe(1, [(topic_filter, qos)]))
        if self._exactly(5)[4] > 2:
            raise LoadError(f"no subscription to {topic_filter}")

    def close(self) -> None:
        self.socket.sendall(frames.DISCONNECT)
        self.socket.close()


def publishes(topics: Sequence[str], count: int, retain: bool = False) -> list[bytes]:
    """So many QoS 1 publishes, the topics in turn, which all have the same length."""
    found: list[bytes] = []
    for number in range(count):
        frame = bytearray(
            frames.publish(
                topics[number % len(topics)], number.to_bytes(8, "big") * (PAYLOAD // 8), 1, number % 60_000 + 1
            )
        )
        frame[0] |= retain
        found.append(bytes(frame))
    if len({len(frame) for frame in found}) > 1:
        raise LoadError("topics of several lengths")
    return found


class Publisher:
    """Publishes within a window, and counts acknowledgements."""

    def __init__(self, client: Client, messages: Sequence[bytes], window: int) -> None:
        self.client = client
        self.window = window
        self.count = len(messages)
        self.sent = 0
        self.acknowledged = 0
        self._size = len(messages[0])
        self._data = memoryview(b"".join(messages))
        self._rest = 0

    def send(self) -> None:
        """As much as the window has room for."""
        until = min(self.acknowledged + self.window, self.count)
        if until > self.sent:
            self.client.socket.sendall(self._data[self.sent * self._size : until * self._size])
            self.sent = until

    def receive(self) -> None:
        """Acknowledgements came."""
        data = self.client.socket.recv(65_536)
        if not data:
            raise LoadError("the broker closed the connection")
        self._rest += len(data)
        self.acknowledged += self._rest // ACK
        self._rest %= ACK
        self.send()

    @property
    def done(self) -> bool:
        return self.acknowledged == self.count


class Subscriber:
    """Takes publishes of one length, and acknowledges each."""

    def __init__(self, client: Client, size: int, count: int) -> None:
        self.client = client
        self.count = count
        self.received = 0
        self._size = size
        self._data = b""

    def receive(self) -> None:
        """Publishes came."""
        piece = self.client.socket.recv(262_144)
        if not piece:
            raise LoadError("the broker closed the connection")
        data, size = self._data + piece, self._size
        whole = len(data) // size
        if whole and data[0] & 0xF6 != 0x32:
            raise LoadError(f"a packet {data[0]:#x} where a QoS 1 PUBLISH was expected")
        # Behind the fixed header of two bytes: the length of the topic, the topic, the packet identifier.
        at = 4 + int.from_bytes(data[2:4], "big")
        acks = [b"\x40\x02" + data[start + at : start + at + 2] for start in range(0, whole * size, size)]
        self._data = data[whole * size :]
        self.received += whole
        self.client.socket.sendall(b"".join(acks))

    @property
    def done(self) -> bool:
        return self.received >= self.count


def drive(clients: Sequence[Publisher | Subscriber]) -> float:
    """Have all publish and receive until all is acknowledged and received; seconds."""
    left = len(clients)
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.client.socket, selectors.EVENT_READ, client)
        began = time.perf_counter()
        for client in clients:
            if isinstance(client, Publisher):
                client.send()
        while left:
            ready = selector.select(PATIENCE)
            if not ready:
                raise LoadError(f"nothing came for {PATIENCE:g} s")
            for key, _ in ready:
                client = key.data
                was = client.done
                client.receive()
                left -= client.done and not was
        return time.perf_counter() - began


def paced(clients: Sequence[Client], messages: Sequence[bytes], rate: float) -> list[float]:
    """Publish at a steady rate, the clients in turn; seconds from the time each was due to its PUBACK, sorted."""
    found: list[float] = []
    waiting: list[list[float]] = [[] for _ in clients]
    rests = [0] * len(clients)
    with selectors.DefaultSelector() as selector:
        for at, client in enumerate(clients):
            selector.register(client.socket, selectors.EVENT_READ, at)
        began, sent = time.perf_counter(), 0
        while len(found) < len(messages):
            now = time.perf_counter()
            while sent < len(messages) and (due := began + sent / rate) <= now:
                who = sent % len(clients)
                clients[who].socket.sendall(messages[sent])
                waiting[who].append(due)
                sent += 1
            pause = PATIENCE if sent == len(messages) else max(0.0, began + sent / rate - time.perf_counter())
            ready = selector.select(pause)
            now = time.perf_counter()
            if not ready and pause == PATIENCE:
                raise LoadError(f"no PUBACK for {PATIENCE:g} s")
            for key, _ in ready:
                who = key.data
                data = clients[who].socket.recv(65_536)
                if not data:
                    raise LoadError("the broker closed the connection")
                count, rests[who] = divmod(rests[who] + len(data), ACK)
                found += [now - due for due in waiting[who][:count]]
                del waiting[who][:count]
    return sorted(found)
