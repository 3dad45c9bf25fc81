"""Socket options: what the settings ask of TCP."""

from __future__ import annotations

import socket
import sys

import pytest

from canopy_mqtt.net.stream import STALL_LOOKS
from canopy_mqtt.settings import Queue, Settings
from canopy_mqtt.sockets import low_latency, tune
from tests.support.runs import for_each

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="TCP_USER_TIMEOUT is Linux's")


def user_timeout(stall_timeout: float) -> int:
    """Milliseconds after which the system gives up a peer that acknowledges nothing."""
    with socket.socket() as sock:
        tune(sock, Settings(queue=Queue(stall_timeout=stall_timeout)))
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) > 0
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


@for_each("seconds", [0.0001, 0.4, 10.0, 30.0, 86_400.0])
def test_the_system_is_more_patient_than_the_broker(seconds: float) -> None:
    """The broker looks `STALL_LOOKS` times within its time-out, and its event loop may be late."""
    assert user_timeout(seconds) >= 1000 * seconds * (1 + 1 / STALL_LOOKS) + 4_000


def test_without_a_stall_timeout_the_system_decides() -> None:
    with socket.socket() as untouched:
        assert user_timeout(0.0) == untouched.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


def test_the_system_holds_little_for_a_peer_whose_messages_lose_their_worth() -> None:
    """A peer that does not read leaves some packets with the system, and not megabytes."""

    def held(*fresh: bool) -> int:
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname()) as ours,
        ):
            theirs, _ = listener.accept()
            with theirs:
                theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                ours.setblocking(False)
                for each in fresh:
                    low_latency(ours, each)
                sent = 0
                try:
                    while True:
                        sent += ours.send(b"x" * 4096)
                except BlockingIOError:
                    return sent

    assert held(True) < held() / 4
    assert held(True) < held(True, False) / 4
