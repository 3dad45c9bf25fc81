"""Socket options: what the settings ask of TCP."""

from __future__ import annotations

import socket
import sys

import pytest

from broker.net.sockets import tune
from broker.settings import Queue, Settings

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="TCP_USER_TIMEOUT is Linux's")


def user_timeout(stall_timeout: float) -> int:
    """Milliseconds after which the system gives up a peer that acknowledges nothing."""
    with socket.socket() as sock:
        tune(sock, Settings(queue=Queue(stall_timeout=stall_timeout)))
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) > 0
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


@pytest.mark.parametrize(("seconds", "milliseconds"), [(30.0, 30_000), (0.0001, 1), (86_400.0, 86_400_000)])
def test_the_system_is_as_patient_as_the_stall_timeout(seconds: float, milliseconds: int) -> None:
    assert user_timeout(seconds) == milliseconds


def test_without_a_stall_timeout_the_system_decides() -> None:
    with socket.socket() as untouched:
        assert user_timeout(0.0) == untouched.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
