"""A peer that routes nothing: it answers CONNECT, SUBSCRIBE, PINGREQ, and copies a publisher's bytes to subscribers.

Owns: the floor of the bench. What it reaches is what this load generator can generate and a process of one thread can
copy; a broker's figures near it are the kernel's and the generator's, not the broker's.

Promises: listens on 127.0.0.1 only, keeps what a subscriber will not take yet, ends with its parent or on SIGTERM.

There is nothing else of MQTT: no QoS 1 and 2, no wildcards, no two publishers of one topic. A publisher is known by the
topic of its first PUBLISH; nothing after that is looked at.
"""

from __future__ import annotations

import contextlib
import gc
import select
import socket
import sys
from typing import Final

from canopy_load.brokers import frames
from canopy_load.brokers.listeners import WANTS, Listener, server_handshake

READ_SIZE: Final = 1 << 18
HANDSHAKE_TIMEOUT: Final = 5.0  # seconds for a handshake


class Client:
    """One connection; ``targets`` is None until the first PUBLISH."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.targets: list[Client] | None = None
        self.level = frames.MQTT_3_1_1
        self.early = b""
        self.pending = bytearray()


class Relay:
    """The listening socket and its clients, served by one epoll loop."""

    def __init__(self, port: int, listener: Listener | None = None) -> None:
        self._epoll = select.epoll()
        # Who listens, by descriptor, and what is spoken there before MQTT; None: nothing.
        self._listeners: dict[int, tuple[socket.socket, Listener | None]] = {}
        self._listen(port, None)
        if listener is not None:
            self._listen(listener.port, listener)
        self._clients: dict[int, Client] = {}
        self._subscribers: dict[str, list[Client]] = {}
        self._buffer = memoryview(bytearray(READ_SIZE))

    def serve(self) -> None:
        """Relay until the process is ended."""
        while True:
            for number, mask in self._epoll.poll():
                if number in self._listeners:
                    self._accept(*self._listeners[number])
                    continue
                client = self._clients.get(number)
                if client is None:
                    continue
                if mask & select.EPOLLOUT:
                    self._flush(client)
                if mask & ~select.EPOLLOUT:
                    self._read(client)

    def _listen(self, port: int, listener: Listener | None) -> None:
        accepting = socket.create_server(("127.0.0.1", port), backlog=1024)
        accepting.setblocking(False)
        self._listeners[accepting.fileno()] = accepting, listener
        self._epoll.register(accepting.fileno(), select.EPOLLIN)

    def _accept(self, accepting: socket.socket, listener: Listener | None) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = accepting.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if listener is not None:
                    # One after the other: what comes before MQTT is not what a relay is there for.
                    sock.settimeout(HANDSHAKE_TIMEOUT)
                    try:
                        sock = server_handshake(listener, sock)
                    except OSError:
                        sock.close()
                        continue
                sock.setblocking(False)
                self._clients[sock.fileno()] = Client(sock)
                self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _read(self, client: Client) -> None:
        try:
            size = client.sock.recv_into(self._buffer)
        except WANTS:
            return
        except OSError:
            size = 0
        if not size:
            self._close(client)
            return
        data = self._buffer[:size]
        if client.targets is None:
            self._handshake(client, bytes(data))
            return
        for target in client.targets:
            self._send(target, data)

    def _handshake(self, client: Client, data: bytes) -> None:
        data = client.early + data
        offset = 0
        while (size := frames.packet_size(data, offset)) and offset + size <= len(data):
            packet = data[offset : offset + size]
            kind = packet[0] & 0xF0
            if kind == frames.PUBLISH:
                shape = frames.PublishShape.read(packet, 0, client.level)
                client.targets = self._subscribers.get(shape.topic, [])
                for target in client.targets:
                    self._send(target, data[offset:])
                return
            self._answer(client, packet)
            offset += size
        client.early = data[offset:]

    def _answer(self, client: Client, packet: bytes) -> None:
        _, used = frames.read_variable_byte_integer(packet, 1)
        body = packet[1 + used :]
        if packet[0] == 0x10:
            client.level = body[6]
            v5 = client.level == frames.MQTT_5
            self._send(client, b"\x20\x03\x00\x00\x00" if v5 else b"\x20\x02\x00\x00")
        elif packet[0] == 0x82:
            skip = 3 if client.level == frames.MQTT_5 else 2
            cursor, codes = skip, b""
            while cursor < len(body):
                length = body[cursor] << 8 | body[cursor + 1]
                topic = body[cursor + 2 : cursor + 2 + length].decode()
                self._subscribers.setdefault(topic, []).append(client)
                codes += b"\x00"
                cursor += 3 + length
            answer = body[:2] + (b"\x00" if skip == 3 else b"") + codes
            self._send(client, b"\x90" + frames.variable_byte_integer(len(answer)) + answer)
        elif packet == frames.PINGREQ:
            self._send(client, frames.PINGRESP)

    def _send(self, client: Client, data: bytes | memoryview) -> None:
        if client.pending:
            client.pending += data
            return
        try:
            sent = client.sock.send(data)
        except WANTS:
            sent = 0
        except OSError:
            return  # its own read will notice
        if sent < len(data):
            client.pending += data[sent:]
            self._epoll.modify(client.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _flush(self, client: Client) -> None:
        try:
            del client.pending[: client.sock.send(client.pending)]
        except WANTS:
            return
        except OSError:
            client.pending.clear()
        if not client.pending:
            self._epoll.modify(client.sock.fileno(), select.EPOLLIN)

    def _close(self, client: Client) -> None:
        del self._clients[client.sock.fileno()]
        for listening in self._subscribers.values():
            if client in listening:
                listening.remove(client)
        client.sock.close()


def main() -> None:
    """``python -m canopy_load.brokers.relay PORT [KIND PORT CERTIFICATE KEY]``."""
    port, *second = sys.argv[1:]
    relay = Relay(int(port), Listener(second[0], int(second[1]), second[2], second[3]) if second else None)
    gc.freeze()
    with contextlib.suppress(KeyboardInterrupt):
        relay.serve()


if __name__ == "__main__":
    main()
