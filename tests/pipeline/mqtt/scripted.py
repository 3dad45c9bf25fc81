"""A broker that says what a test wants it to say, byte by byte, in MQTT 5.0 with packets shorter than 128 bytes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from tests.pipeline.mqtt.conftest import PATIENCE

CONNACK = b"\x20\x03\x00\x00\x00"
SESSION_PRESENT = b"\x20\x03\x01\x00\x00"


def publish(number: int, qos: int, payload: bytes = b"x") -> bytes:
    """PUBLISH to topic `t`."""
    rest = b"\x00\x01t" + number.to_bytes(2, "big") + b"\x00" + payload
    return bytes([0x30 | qos << 1, len(rest)]) + rest


class Peer:
    """The broker's side of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE)
        self.socket = connection

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def receive(self) -> bytes:
        """The next packet; empty when the client has gone."""
        head = self._exactly(2)
        if len(head) < 2:
            return b""
        size, shift = head[1] & 0x7F, 7
        while head[-1] & 0x80:
            head += self._exactly(1)
            size |= (head[-1] & 0x7F) << shift
            shift += 7
        return head + self._exactly(size)

    def silent(self) -> bool:
        """Whether the client has sent nothing that is not received."""
        self.socket.setblocking(False)
        try:
            return not self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        finally:
            self.socket.settimeout(PATIENCE)

    def send(self, packet: bytes) -> None:
        self.socket.sendall(packet)

    def welcome(self, connack: bytes = CONNACK) -> None:
        """CONNECT, CONNACK."""
        assert self.receive()[0] == 0x10
        self.send(connack)

    def subscribed(self, reason: int = 1) -> None:
        """SUBSCRIBE, SUBACK."""
        packet = self.receive()
        assert packet[0] == 0x82
        self.send(bytes([0x90, 4, packet[2], packet[3], 0, reason]))

    def _exactly(self, size: int) -> bytes:
        got = b""
        while len(got) < size and (part := self.socket.recv(size - len(got))):
            got += part
        return got


@contextmanager
def scripted(*scripts: Callable[[Peer], None]) -> Iterator[int]:
    """Each connection in turn follows its script; the port. What a script asserts, the test asserts."""
    failed: list[BaseException] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)

        def serve() -> None:
            try:
                for script in scripts:
                    with Peer(server.accept()[0]) as peer:
                        script(peer)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "the script waits for something"
    if failed:
        raise failed[0]
