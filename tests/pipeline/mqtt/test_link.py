"""The options of TLS, and large messages over it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import trustme

from canopy_mqtt.core.codec.packets import Publish
from canopy_pipeline.mqtt.link import broker_client
from canopy_pipeline.mqtt.mqtt_options import BatchOptions, chosen
from tests.pipeline.mqtt.scripted import Peer
from tests.pipeline.mqtt.scripted import publish as sent

PAYLOAD = bytes(range(256)) * 40_000
"""Ten megabytes: more than any socket takes at once."""


@contextlib.contextmanager
def tls_broker(authority: trustme.CA, got: list[bytes]) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)

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
        options = {"url": f"mqtts://localhost:{port}", "tls_ca": str(tmp_path / "ca.pem"), "filters": "t"}
        link = broker_client(chosen(BatchOptions, options), "c")
        link.on_message = arrived.append
        link.connect()
        link.publish(Publish(b"t", PAYLOAD, 0))
        while not arrived:
            link.step(1)
        link.disconnect()
    assert arrived[0].payload == b"answer"
    assert got[0].endswith(PAYLOAD)
