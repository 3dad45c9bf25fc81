"""The connection: what a broker may not do, a broker that says nothing, and TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trustme

from broker.core.codec.packets import Publish
from pipeline.mqtt.link import Link, LostError, RefusedError
from pipeline.mqtt.options import Broker, batch_options
from tests.pipeline.mqtt.conftest import until
from tests.pipeline.mqtt.scripted import Peer, scripted
from tests.pipeline.mqtt.scripted import publish as sent

PAYLOAD = bytes(range(256)) * 40_000
"""Ten megabytes: more than any socket takes at once."""


def broker(port: int, **options: str) -> Broker:
    url = options.pop("url", f"mqtt://127.0.0.1:{port}")
    return batch_options({"url": url, "filters": "t", "connect_timeout": "10"} | options).broker


@pytest.mark.parametrize(
    "packet",
    [
        b"\x30\x06\x00\x00\x03\x23\x00\x01",
        b"\x30\x04\x00\x01+\x00",
        b"\xf0\x00",
        b"\x00\x00",
    ],
)
def test_a_broker_that_breaks_the_protocol_is_left(packet: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.welcome()
        peer.send(packet)
        peer.receive()

    got: list[Publish] = []
    with scripted(script) as port:
        link = Link(broker(port), "c")
        link.on_message = got.append
        link.connect()
        with pytest.raises(LostError, match="the broker breaks the protocol"):
            _receive(link)
        link.close()
    assert not got


def _receive(link: Link) -> None:
    while True:
        link.step(1)


def test_a_silent_broker_is_left_and_asked_before(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.welcome()
        asked.append(peer.receive())
        assert peer.receive()[:1] in (b"\xc0", b"")

    with scripted(script) as port:
        link = Link(broker(port, keep_alive="60"), "c")
        link.connect()
        begun = time.monotonic()
        # Half of keep alive, and one and a half, on a clock that the test moves.
        for later in (31, 91):
            monkeypatch.setattr("pipeline.mqtt.link.time.monotonic", lambda late=later: begun + late)
            with contextlib.suppress(LostError):
                link.step(0)
                link.step(0)
        assert not link.connected
        monkeypatch.undo()
        link.close()
    assert asked == [b"\xc0\x00"]


def test_who_does_not_read_blames_no_broker_for_its_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def script(peer: Peer) -> None:
        peer.welcome()
        asked.append(peer.receive())

    with scripted(script) as port:
        link = Link(broker(port, keep_alive="60"), "c")
        link.connect()
        begun = time.monotonic()
        monkeypatch.setattr("pipeline.mqtt.link.time.monotonic", lambda: begun + 600)
        link.stay()
        assert link.connected
        monkeypatch.undo()
        # Broken is told by the next step, and not here.
        until("it is over", lambda: asked)
        link.stay()
        link.close()
        link.stay()
    assert asked == [b"\xc0\x00"]


@contextlib.contextmanager
def tls_broker(authority: trustme.CA, got: list[bytes], names: Sequence[str] = ("localhost",)) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)

    def serve() -> None:
        with contextlib.suppress(OSError):
            connection = context.wrap_socket(server.accept()[0], server_side=True)
            with Peer(connection) as peer:
                peer.welcome()
                got.append(peer.receive())
                peer.send(sent(1, 1, b"answer"))
                peer.receive()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            thread.join(30)
            assert not thread.is_alive()


def test_large_messages_over_tls(tmp_path: Path) -> None:
    authority, got = trustme.CA(), list[bytes]()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    arrived: list[Publish] = []
    with tls_broker(authority, got) as port:
        link = Link(broker(0, url=f"mqtts://localhost:{port}", tls_ca=str(tmp_path / "ca.pem")), "c")
        link.on_message = arrived.append
        link.connect()
        link.publish(Publish(b"t", PAYLOAD, 0))
        while not arrived:
            link.step(1)
        link.close()
    assert arrived[0].payload == b"answer"
    assert got[0].endswith(PAYLOAD)


def test_a_certificate_that_is_not_trusted_is_told_and_final() -> None:
    with tls_broker(trustme.CA(), []) as port:
        link = Link(broker(0, url=f"mqtts://localhost:{port}"), "c")
        with pytest.raises(RefusedError, match="its certificate is not trusted"):
            link.connect()
        link.close()
