"""TLS and WebSocket at both ends of a connection: what comes out is what went in, however the bytes are cut."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from benchmarks.certificates import certificate
from canopy_load.brokers import listeners
from canopy_load.brokers.listeners import (
    HEAD,
    TLS,
    WANTS,
    WEBSOCKET,
    HandshakeError,
    Listener,
    WebSocket,
    client_handshakes,
    server_handshake,
)
from tests.support.runs import for_each

SIZES = (1, 125, 126, 65_535, 65_536, 200_000)


def listener(kind: str) -> Listener:
    return Listener(kind, 0, *(certificate() if kind == TLS else ()))


@pytest.fixture(params=[TLS, WEBSOCKET])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client and a server whose handshake is through."""
    near, far = socket.socketpair()
    for end in (near, far):
        end.settimeout(10)
    found: list[socket.socket] = []
    other = threading.Thread(target=lambda: found.append(server_handshake(listener(request.param), far)))
    other.start()
    (client,) = client_handshakes(listener(request.param), [near])
    other.join()
    with closing(client), closing(found[0]):
        yield client, found[0]


def test_what_is_sent_arrives(ends: tuple[socket.socket, socket.socket]) -> None:
    """Both ways, also where neither end waits, nothing fits at once, and the rest is offered with more behind it."""
    for sender, receiver in (ends, ends[::-1]):
        for end in ends:
            end.setblocking(False)
        sent = bytearray(b"".join(bytes([number]) * size for number, size in enumerate(SIZES)))
        wanted = bytes(sent) + b"more"
        got = b""
        space = memoryview(bytearray(1 << 18))
        late = b"more"
        while len(got) < len(wanted):
            if sent:
                try:
                    del sent[: sender.send(sent)]
                except WANTS:
                    sent += late
                    late = b""
            try:
                size = receiver.recv_into(space)
            except WANTS:
                continue
            assert size
            got += space[:size]
        assert got == wanted


def test_a_reader_that_waits_gets_no_more_than_it_asks_for(ends: tuple[socket.socket, socket.socket]) -> None:
    client, server = ends
    client.sendall(b"abcdef")
    assert server.recv(2) + server.recv(1) == b"abc"
    space = memoryview(bytearray(10))
    assert bytes(space[: server.recv_into(space)]) == b"def"


@pytest.mark.parametrize("ends", [TLS], indirect=True)
def test_a_handshake_that_is_through_at_once_is_not_waited_for(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, server = ends
    server.sendall(b"a")
    assert client.recv(1) == b"a"  # and with it what else the server had said
    monkeypatch.setattr(listeners, "HANDSHAKE_TIMEOUT", 0.0)
    assert isinstance(client, ssl.SSLSocket)
    listeners._shake_hands([client])


@for_each("masked", [True, False])
@for_each("step", [1, 2, 3, 7, HEAD, 1000])
def test_frames_in_pieces_of_any_size(masked: bool, step: int) -> None:
    near, far = socket.socketpair()
    with WebSocket(near, not masked) as reader, far:
        maker = WebSocket(socket.socket(), masked)
        wanted = b"".join(bytes([number]) * size for number, size in enumerate((1, 125, 126, 0, 3000)))
        wire = b"".join(
            maker.header(size) + bytes([number]) * size for number, size in enumerate((1, 125, 126, 0, 3000))
        )
        maker.close()
        reader.setblocking(False)
        space = memoryview(bytearray(1 << 16))
        got = b""
        for at in range(0, len(wire), step):
            far.sendall(wire[at : at + step])
            try:
                got += space[: reader.recv_into(space)]
            except BlockingIOError:
                continue
        assert got == wanted
        far.close()
        assert reader.recv_into(space) == 0


def test_a_frame_that_is_no_data_is_an_error() -> None:
    near, far = socket.socketpair()
    with WebSocket(near, True) as reader, far:
        far.sendall(b"\x88\x02\x03\xea")
        with pytest.raises(HandshakeError, match="0x88"):
            reader.recv(10)


def test_who_speaks_no_websocket_is_told(recwarn: pytest.WarningsRecorder) -> None:
    """And every socket is closed."""
    near, far = socket.socketpair()
    with far:
        far.sendall(b"HTTP/1.1 404 Not Found\r\n\r\n")
        with pytest.raises(HandshakeError, match="404"):
            client_handshakes(listener(WEBSOCKET), [near])
        assert far.recv(1 << 16).startswith(b"GET /mqtt ")
        assert far.recv(1) == b""
    assert not recwarn.list
