"""The health check, against answers written by hand."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from canopy_mqtt.command.health import UnhealthyError, check
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.packets import Connect
from canopy_mqtt.settings import Endpoint
from tests.support.runs import for_each


@contextmanager
def answering(handle: Callable[[socket.socket], None]) -> Iterator[Endpoint]:
    """A server for one connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                handle(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Endpoint("mqtt", *server.getsockname())
        finally:
            thread.join()


TOPIC = b"$SYS/broker/store/state"
SUBSCRIBE = b"\x82\x1c\x00\x01\x00\x17" + TOPIC + b"\x00"
SUBACK = b"\x90\x03\x00\x01\x00"
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"


def state(text: bytes) -> bytes:
    """The retained message that says how the store is."""
    return b"\x31" + bytes([2 + len(TOPIC) + len(text)]) + b"\x00\x17" + TOPIC + text


def connack(
    code: int, seen: list[bytes], about_store: bytes = SUBACK, behind: bytes = PINGRESP
) -> Callable[[socket.socket], None]:
    """A broker that answers so, and about its store so; then with `behind`."""

    def handle(connection: socket.socket) -> None:
        seen.append(connection.recv(100))
        connection.sendall(b"\x20\x02\x00" + bytes([code]))
        if code == 0:
            assert connection.recv(100) == SUBSCRIBE
            connection.sendall(about_store)
            asked = connection.recv(2)
            if asked == PINGREQ:
                connection.sendall(behind)
            else:
                seen.append(asked)
                return
        rest = b""
        while piece := connection.recv(100):
            rest += piece
        seen.append(rest)

    return handle


def test_healthy() -> None:
    seen: list[bytes] = []
    with answering(connack(0, seen)) as address:
        check(address, 10)
    connect, rest = seen
    assert connect[:2] == bytes([0x10, len(connect) - 2])
    assert connect[2:12] == b"\x00\x04MQTT\x04\x02\x00\x0a"
    assert connect[12:14] == bytes([0, len(connect) - 14])
    assert 1 <= len(connect) - 14 <= 23
    assert rest == b"\xe0\x00"


@for_each(
    ("about_store", "behind"),
    [
        (SUBACK, PINGRESP),  # a broker without a store
        (b"\x90\x03\x00\x01\x80", PINGRESP),  # that topic is not for this client
        (SUBACK + state(b"written"), PINGRESP),
        (SUBACK, state(b"written") + PINGRESP),
        (SUBACK, b""),  # the connection ends
    ],
)
def test_a_store_that_is_written_is_healthy(about_store: bytes, behind: bytes) -> None:
    def handle(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(b"\x20\x02\x00\x00")
        connection.recv(100)
        connection.sendall(about_store)
        connection.recv(2)
        connection.sendall(behind)

    with answering(handle) as address:
        check(address, 10)


@for_each(
    ("about_store", "behind"), [(SUBACK + state(b"disk\nfull"), PINGRESP), (SUBACK, state(b"disk\nfull") + PINGRESP)]
)
def test_a_store_that_cannot_be_written_is_not(about_store: bytes, behind: bytes) -> None:
    with (
        answering(connack(0, [], about_store, behind)) as address,
        pytest.raises(UnhealthyError, match=r"the store cannot be written: disk\?full$"),
    ):
        check(address, 10)


def test_every_check_is_another_client() -> None:
    """Two checks at once must not take over each other's session."""
    seen: list[bytes] = []
    for _ in range(2):
        with answering(connack(0, seen)) as address:
            check(address, 10)
    assert seen[0] != seen[2]


@for_each("code", [4, 5])
def test_a_broker_that_refuses_strangers_is_healthy(code: int) -> None:
    with answering(connack(code, [])) as address:
        check(address, 10)


@for_each(
    ("code", "words"),
    [
        (1, r"refused: Unsupported Protocol Version \(0x84\)$"),
        (2, r"refused: Client Identifier not valid \(0x85\)$"),
        (3, r"refused: Server unavailable \(0x88\)$"),
        (6, "the answer is no MQTT CONNACK$"),
    ],
)
def test_a_broker_that_cannot_serve_is_not(code: int, words: str) -> None:
    with answering(connack(code, [])) as address, pytest.raises(UnhealthyError, match=words):
        check(address, 10)


@for_each(
    ("user", "password", "flags"),
    [("u", None, 0x82), ("u", "p", 0xC2), ("", "", 0xC2), ("é" * 100, "p" * 20_000, 0xC2)],
)
def test_a_user(user: str, password: str | None, flags: int) -> None:
    """The fields in their order behind the client identifier, as the broker's own decoder reads them."""
    seen: list[bytes] = []

    def handle(connection: socket.socket) -> None:
        sent = b""
        decoder = Decoder(100_000)
        while not decoder.next_frame():
            piece = connection.recv(100_000)
            sent += piece
            decoder.feed(piece)
        packet = decoder.packet()
        assert isinstance(packet, Connect)
        found.append(packet)
        seen.append(sent)
        connection.sendall(b"\x20\x02\x00\x00")
        connection.recv(100)
        connection.sendall(SUBACK)
        assert connection.recv(2) == PINGREQ
        connection.sendall(PINGRESP)
        seen.append(connection.recv(100))

    found: list[Connect] = []
    with answering(handle) as address:
        check(address, 10, user, password)
    (packet,) = found
    assert (packet.user_name, packet.password) == (user, None if password is None else password.encode())
    assert packet.client_id.startswith("canopy-health-")
    assert packet.clean_start
    assert seen[0][seen[0].index(b"MQTT") + 5] == flags
    assert seen[1] == b"\xe0\x00"


@for_each(("code", "words"), [(4, "Bad User Name or Password"), (5, "Not authorized")])
def test_a_user_has_to_be_let_in(code: int, words: str) -> None:
    with answering(connack(code, [])) as address, pytest.raises(UnhealthyError, match=f"refused: {words}"):
        check(address, 10, "probe")


def test_a_user_that_cannot_be_sent() -> None:
    with pytest.raises(UnhealthyError, match="more than 65535 bytes"):
        check(Endpoint("mqtt", "127.0.0.1", 1), 10, "u", "p" * 65_536)


@for_each(
    ("answer", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no MQTT CONNACK"),
        (b"\x20\x03\x00\x00\x00", "no MQTT CONNACK"),
        (b"\x00\x00\x00\x00", "no MQTT CONNACK"),
        (b"", "closed before a CONNACK"),
        (b"\x20\x02\x00", "closed before a CONNACK"),
    ],
)
def test_no_broker_answers(answer: bytes, words: str) -> None:
    def handle(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(answer)

    with answering(handle) as address, pytest.raises(UnhealthyError, match=words):
        check(address, 10)


def test_no_answer_in_time() -> None:
    def handle(connection: socket.socket) -> None:
        while connection.recv(100):
            pass

    with answering(handle) as address, pytest.raises(UnhealthyError, match=r"no answer within 0\.1 s"):
        check(address, 0.1)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Endpoint("mqtt", *server.getsockname())
    with pytest.raises(UnhealthyError, match=f"^mqtt://127.0.0.1:{address.port}: "):
        check(address, 10)


@for_each("host", ["a" * 64 + ".example.org", "a..b"])
def test_what_can_be_no_host_name(host: str) -> None:
    with pytest.raises(UnhealthyError, match="not a host name"):
        check(Endpoint("mqtt", host, 1883), 1.0)


def test_an_endless_answer() -> None:
    """What is no answer to the question is read for so long, and no longer."""
    sent = [0]

    def handle(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(b"\x20\x02\x00\x00")
        connection.recv(100)
        # A PUBLISH of 200 MB.
        connection.sendall(b"\x30\x80\x80\x80\x60")
        with suppress(OSError):
            while True:
                sent[0] += connection.send(bytes(65_536))

    with answering(handle) as address:
        check(address, 10)
    assert sent[0] < 50_000_000
